# SPDX-License-Identifier: MIT
"""The functions that programs and tests import from `deep_ep.utils`. Importing it leaves torch out."""

from . import comm, envs, event, gate, math, refs, semantic, testing
from .envs import (check_fast_rdma_atomic_support, check_nvlink_connections,
                   check_torch_deterministic, dist_print, get_global_seed, get_local_seed,
                   get_logical_domain_size, get_nvlink_gbs, get_physical_domain_size, get_rdma_gbs,
                   init_dist, init_seed)
from .event import EventHandle, EventOverlap
from .math import (align, calc_diff, ceil_div, count_bytes, create_grouped_scores, hash_tensor,
                   hash_tensors, inplace_unique, per_token_cast_back, per_token_cast_to_fp8, safe_div)
from .testing import (bench, bench_kineto, empty_suppress, flush_l2_cache, suppress_stdout_stderr)

__all__ = ["EventHandle", "EventOverlap", "align", "bench", "bench_kineto", "calc_diff", "ceil_div",
           "check_fast_rdma_atomic_support", "check_nvlink_connections",
           "check_torch_deterministic", "comm", "count_bytes", "create_grouped_scores", "dist_print",
           "empty_suppress", "envs", "event", "flush_l2_cache", "gate", "get_global_seed",
           "get_local_seed", "get_logical_domain_size", "get_nvlink_gbs", "get_physical_domain_size",
           "get_rdma_gbs", "hash_tensor", "hash_tensors", "init_dist", "init_seed",
           "inplace_unique", "math", "per_token_cast_back", "per_token_cast_to_fp8", "refs", "safe_div",
           "semantic", "suppress_stdout_stderr", "testing"]

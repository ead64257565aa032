# SPDX-License-Identifier: MIT
"""The names that programs import from DeepEP's compiled module: `deep_ep_cpp` of version 1, and
`deep_ep._C` of version 2."""

from .buffer import Buffer as _Buffer
from .comm import get_logical_domain_size, get_physical_domain_size
from .config import Config
from .event import EventHandle

__all__ = ["Config", "EventHandle", "get_logical_domain_size", "get_low_latency_rdma_size_hint",
           "get_physical_domain_size", "is_sm90_compiled", "topk_idx_t"]

get_low_latency_rdma_size_hint = _Buffer.get_low_latency_rdma_size_hint
is_sm90_compiled = _Buffer.is_sm90_compiled


def __getattr__(name):
    if name == "topk_idx_t":
        from . import topk_idx_t
        return topk_idx_t
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

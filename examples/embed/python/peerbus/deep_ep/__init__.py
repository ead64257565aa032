# SPDX-License-Identifier: MIT
"""DeepEP's module over peerbus, for CPUs: `import peerbus.deep_ep as deep_ep`.

V1's `Buffer`, normal and low-latency, version 2.1's `ElasticBuffer`, and version 2.5's `EPBuffer`,
`BucketBuffer`, `EngramBuffer` and `PPBuffer`. Tensors are torch tensors on the CPU or numpy arrays; results are of the kind of the first argument. What another
platform would refuse is refused here with `target="ascend_a3"`, or by the variable PEERBUS_TARGET.

`python -m peerbus.deep_ep.check program.py` reports it for a whole program, and
`python -m peerbus.deep_ep.run program.py` runs a program that says `import deep_ep`.
"""

import os
import sys

from . import comm, utils, watch
from .allocator import (BufferAllocator, get_num_allocation_alignment, get_num_rdma_alignment,
                        get_num_tma_alignment)
from .bucket import BucketBuffer, BucketSession
from .buffer import Buffer
from .buffer_base import BufferBase
from .comm import destroy_all_managed_nccl_comm
from .config import Config
from .elastic import ElasticBuffer
from .engram import EngramBuffer
from .ep_buffer import EPBuffer
from .ep_handle import EPHandle
from .event import EventHandle, EventOverlap
from .pp import PPBuffer
from .utils.envs import get_logical_domain_size, get_physical_domain_size
from . import _C, buffers

__all__ = ["BucketBuffer", "BucketSession", "Buffer", "BufferAllocator", "BufferBase", "Config",
           "EPBuffer", "EPHandle", "ElasticBuffer", "EngramBuffer", "EventHandle", "EventOverlap",
           "PPBuffer", "buffers", "comm", "destroy_all_managed_nccl_comm",
           "get_logical_domain_size", "get_num_allocation_alignment", "get_num_rdma_alignment", "get_num_tma_alignment",
           "get_physical_domain_size", "install", "topk_idx_t", "utils"]

__version__ = "2.5.0"  # The latest version of DeepEP whose calls are here.


if os.environ.get("PEERBUS_WATCH"):  # Set by peerbus.deep_ep.check.
    watch.start(os.environ["PEERBUS_WATCH"],
                {"Buffer": [Buffer], "BucketBuffer": [BucketBuffer],
                 "EPBuffer": [EPBuffer, ElasticBuffer]})


def install():
    """Makes `import deep_ep` and `import deep_ep_cpp` bring this module, for the rest of the process."""
    for name, module in list(sys.modules.items()):
        if name == __name__ or name.startswith(__name__ + "."):
            sys.modules["deep_ep" + name[len(__name__):]] = module
    sys.modules["deep_ep_cpp"] = _C


def __getattr__(name):
    if name == "topk_idx_t":  # The type of DeepEP's default build.
        try:
            import torch
            return torch.int64
        except ImportError:
            return "int64"
    raise AttributeError(f"module 'peerbus.deep_ep' has no attribute '{name}'")

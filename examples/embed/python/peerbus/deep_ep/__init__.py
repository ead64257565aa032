# SPDX-License-Identifier: MIT
"""DeepEP's module over peerbus, for CPUs: `import peerbus.deep_ep as deep_ep`.

V1's `Buffer`, normal and low-latency, and version 2.5's `EPBuffer` and `BucketBuffer`. Tensors are
torch tensors on the CPU or numpy arrays; results are of the kind of the first argument. What another
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
from .config import Config
from .ep_buffer import EPBuffer, EPHandle
from .event import EventHandle, EventOverlap

__all__ = ["BucketBuffer", "BucketSession", "Buffer", "BufferAllocator", "Config", "EPBuffer",
           "EPHandle", "EventHandle", "EventOverlap", "comm", "get_num_allocation_alignment",
           "get_num_rdma_alignment", "get_num_tma_alignment", "install", "topk_idx_t", "utils"]


if os.environ.get("PEERBUS_WATCH"):  # Set by peerbus.deep_ep.check.
    watch.start(os.environ["PEERBUS_WATCH"],
                {"Buffer": Buffer, "BucketBuffer": BucketBuffer, "EPBuffer": EPBuffer})


def install():
    """Makes `import deep_ep` bring this module, for the rest of the process."""
    for name, module in list(sys.modules.items()):
        if name == __name__ or name.startswith(__name__ + "."):
            sys.modules["deep_ep" + name[len(__name__):]] = module


def __getattr__(name):
    if name == "topk_idx_t":  # The type of DeepEP's default build.
        try:
            import torch
            return torch.int64
        except ImportError:
            return "int64"
    if name == "ElasticBuffer":
        raise AttributeError(
            "peerbus.deep_ep has no ElasticBuffer, the class of DeepEP 2.1: call EPBuffer, that "
            "of version 2.5 (rows by expert: do_expand), or Buffer for the calls of version 1")
    raise AttributeError(f"module 'peerbus.deep_ep' has no attribute '{name}'")

# SPDX-License-Identifier: MIT
"""DeepEP's module over peerbus, for CPUs: `import peerbus.deep_ep as deep_ep`.

V1's `Buffer`, normal and low-latency. Tensors are torch tensors on the CPU or numpy arrays; results
are of the kind of the first argument. What another platform would refuse is refused here with
`Buffer(..., target="ascend_a3")`, or by the variable PEERBUS_TARGET.
"""

from .buffer import Buffer, EventOverlap

__all__ = ["Buffer", "EventOverlap", "topk_idx_t"]


def __getattr__(name):
    if name == "topk_idx_t":  # The type of DeepEP's default build.
        try:
            import torch
            return torch.int64
        except ImportError:
            return "int64"
    raise AttributeError(f"module 'peerbus.deep_ep' has no attribute '{name}'")

# SPDX-License-Identifier: MIT
"""DeepEP's module `deep_ep.comm`: functions of groups and of any buffer. There are no communicators of
NCCL here, so that those of its functions that return one do not exist."""

from .event import comm_stream

__all__ = ["barrier", "destroy_all_managed_nccl_comm", "get_comm_stream", "get_logical_domain_size",
           "get_physical_domain_size"]


def barrier(buffer, wait_comm_stream=True, with_cpu_sync=False, sequential=True, context_idx=None):
    """Collective: returns after all ranks have called it. `context_idx` is the number of a group of a
    `BucketBuffer`."""
    if hasattr(buffer, "groups"):
        buffer.barrier(group=buffer.groups[context_idx or 0])
    else:
        buffer.comm.barrier()


def get_comm_stream(buffer):
    """Returns the stream whose `synchronize` completes the results of asynchronous calls."""
    return comm_stream


def get_physical_domain_size(group_or_buffer):
    """Returns (1, ranks): every rank reaches every other by loads and stores."""
    group = getattr(group_or_buffer, "comm", group_or_buffer)
    return 1, group.size() if callable(group.size) else group.size


def get_logical_domain_size(group_or_buffer, allow_hybrid_mode=None):
    """Returns (1, ranks), as `get_physical_domain_size` does."""
    return get_physical_domain_size(group_or_buffer)


def destroy_all_managed_nccl_comm():
    """Does nothing: buffers destroy what they have made."""

# SPDX-License-Identifier: MIT
"""DeepEP's module `deep_ep.comm`: functions of groups and of any buffer. There are no communicators of
NCCL here."""

from .. import _library as c
from .event import comm_stream

__all__ = ["barrier", "destroy_all_managed_nccl_comm", "get_comm_stream", "get_logical_domain_size",
           "get_nccl_comm_handle", "get_physical_domain_size"]


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
    """Returns (1, ranks): one domain, of one host or several, whose calls reach every rank."""
    group = getattr(group_or_buffer, "comm", group_or_buffer)
    return 1, group.size() if callable(group.size) else group.size


def get_logical_domain_size(group_or_buffer, allow_hybrid_mode=None):
    """Returns (1, ranks), as `get_physical_domain_size` does."""
    return get_physical_domain_size(group_or_buffer)


def get_nccl_comm_handle(group, force_new_comm=False):
    """Raises `Error` 9, unsupported: there is no communicator of NCCL to return."""
    raise c.Error(9, "get_nccl_comm_handle: there are no communicators of NCCL here, expected no call: "
                     "buffers take the group itself, and their nccl_comm_handle is None")


def destroy_all_managed_nccl_comm():
    """Does nothing: buffers destroy what they have made."""

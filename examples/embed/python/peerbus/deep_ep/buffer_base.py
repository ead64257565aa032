# SPDX-License-Identifier: MIT
"""Version 2.5's BufferBase: what all its buffers have."""

from .. import Communicator, _library as c
from .event import EventHandle, comm_stream


def ranks_of(group):
    """Returns the number of ranks of a process group, a communicator, a number of ranks or None (1)."""
    if group is None or isinstance(group, int):
        return group or 1
    return group.size() if callable(group.size) else group.size


class BufferBase:
    """The life of a buffer. `runtime` is the communicator of its ranks until `destroy`, then None; so
    is `main_context`. There are no communicators of NCCL: `nccl_comm_handle` is None."""

    nccl_comm_handle = None

    def __init__(self, explicitly_destroy=False):
        self.explicitly_destroy, self.runtime = explicitly_destroy, None

    def _join(self, group, timeout):
        """Joins the ranks of a group. They count as one domain, whose calls reach every rank."""
        self.comm, self.group = Communicator.of_group(group, timeout), group
        self.runtime = self.comm
        self.rank_idx, self.num_ranks = self.comm.rank, self.comm.size
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_ranks)

    def _alive(self):
        if self.runtime is None:
            raise c.InvalidArgument(1, f"the {type(self).__name__} was destroyed")

    @property
    def main_context(self):
        """The communicator of the first group."""
        return self.runtime

    context = main_context

    def print_memory_usage(self):
        """Prints the size of this rank's buffer, in DeepEP's bytes."""
        self._alive()
        print(f"{type(self).__name__} of rank {self.rank_idx}: {self.num_bytes} bytes")

    def destroy(self):
        """Ends the use of the buffer. Its memory is released when no result refers to it."""
        self.runtime = None

    @staticmethod
    def capture():
        """Returns an event for what this rank has called so far, all of which has ended."""
        return EventHandle()

    def get_comm_stream(self):
        """Returns the stream whose `synchronize` completes the results of asynchronous calls."""
        return comm_stream

    def get_physical_domain_size(self):
        """Returns (1, ranks): one domain, of one host or several, whose calls reach every rank."""
        return 1, self.num_ranks

    def get_logical_domain_size(self, allow_hybrid_mode=None):
        """Returns (1, ranks), as `get_physical_domain_size` does."""
        return 1, self.num_ranks

    def barrier(self, wait_comm_stream=True, with_cpu_sync=False, sequential=True):
        """Collective: returns after all ranks have called it."""
        self._alive()
        self.comm.barrier()

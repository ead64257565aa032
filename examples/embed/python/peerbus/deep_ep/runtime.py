# SPDX-License-Identifier: MIT
"""What programs ask of the C++ part of DeepEP's Buffer."""

from .event import comm_stream

RANKS_OF_NODE = 8  # In DeepEP.


class Runtime:
    """Tells where DeepEP's kernels would find this rank. A group of a multiple of 8 ranks fills nodes
    of 8; any other group counts as one node."""

    def __init__(self, rank, size):
        self._rank = rank
        self._nodes = 1 if size % RANKS_OF_NODE else size // RANKS_OF_NODE

    def is_available(self):
        """Returns True: the ranks have met."""
        return True

    def is_internode_available(self):
        """Returns whether the group has several nodes."""
        return self._nodes > 1

    def get_num_rdma_ranks(self):
        """Returns the number of nodes."""
        return self._nodes

    def get_rdma_rank(self):
        """Returns the node of this rank."""
        return self._rank // RANKS_OF_NODE if self._nodes > 1 else 0

    def get_root_rdma_rank(self, is_global):
        """Returns the rank in node 0 that has this rank's place, or 0 unless `is_global`."""
        if not is_global:
            return 0
        return self._rank % RANKS_OF_NODE if self._nodes > 1 else self._rank

    def get_local_device_id(self):
        """Returns 0: the only device is the CPU."""
        return 0

    def get_comm_stream(self):
        """Returns what `Buffer.get_comm_stream` returns."""
        return comm_stream

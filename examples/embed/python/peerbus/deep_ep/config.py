# SPDX-License-Identifier: MIT
"""DeepEP's Config."""

import ctypes

from .. import _library as c


class Config:
    """DeepEP's sizes of the chunks into which its normal mode cuts transfers. Calls accept a
    configuration and have nothing to tune with it; its size hints are DeepEP's figures."""

    def __init__(self, num_sms=20, num_max_nvl_chunked_send_tokens=6,
                 num_max_nvl_chunked_recv_tokens=256, num_max_rdma_chunked_send_tokens=6,
                 num_max_rdma_chunked_recv_tokens=256):
        self._members = c.DeepEpConfig(
            num_sms=num_sms, num_max_nvl_chunked_send_tokens=num_max_nvl_chunked_send_tokens,
            num_max_nvl_chunked_recv_tokens=num_max_nvl_chunked_recv_tokens,
            num_max_rdma_chunked_send_tokens=num_max_rdma_chunked_send_tokens,
            num_max_rdma_chunked_recv_tokens=num_max_rdma_chunked_recv_tokens)
        self.get_nvl_buffer_size_hint(2, 1)  # Refuses what DeepEP's constructor refuses.

    def get_nvl_buffer_size_hint(self, hidden_bytes, num_ranks):
        """Returns the bytes that DeepEP asks for within a node."""
        nbytes = ctypes.c_uint64()
        c.check(c.lib.peerbus_nvl_buffer_size_hint(ctypes.byref(self._members),
                                                   c.number(hidden_bytes, "hidden_bytes"),
                                                   c.number(num_ranks, "num_ranks"),
                                                   ctypes.byref(nbytes)))
        return nbytes.value

    def get_rdma_buffer_size_hint(self, hidden_bytes, num_ranks):
        """Returns 0: nothing is needed here, and DeepEP needs nothing within a node. Between nodes
        DeepEP's own figure is larger."""
        return 0

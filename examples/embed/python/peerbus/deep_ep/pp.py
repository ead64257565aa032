# SPDX-License-Identifier: MIT
"""Tensors sent to the next or the previous rank of a ring: DeepEP's PP."""

import ctypes

from .. import _library as c
from .._tensors import view_of
from .buffer_base import BufferBase
from .raw import Bytes


class Pipeline:
    """The messages between neighbours of a ring."""

    def __init__(self, comm, call, max_bytes, max_tensors, most_bytes=None):
        """Collective, with equal arguments on all ranks. `most_bytes` is the size of the buffer."""
        problem, sizes = None, (0, 0)  # No rank accepts these sizes, so that all of them refuse.
        try:
            sizes = c.number(max_bytes, f"{call}: num_max_tensor_bytes"), \
                c.number(max_tensors, f"{call}: num_max_inflight_tensors")
            needed = 4 * max_bytes * max_tensors
            if most_bytes is not None and needed > most_bytes:
                raise c.InvalidArgument(1, f"{call}: {max_tensors} tensors of {max_bytes} bytes need "
                                           f"{needed}, expected at most the buffer's {most_bytes}: see "
                                           "get_pp_buffer_size_hint")
        except (TypeError, ValueError) as found:  # InvalidArgument is a ValueError.
            problem, sizes = found, (0, 0)
        try:
            self._calls = c.Object("pp", c.make("pp", c.lib.peerbus_pp_create, comm, *sizes, 0))
        except c.InvalidArgument as refused:
            raise problem or refused

    @property
    def storage(self):
        """The memory of this rank's places, uint8."""
        size = ctypes.c_uint64()
        address = c.lib.peerbus_pp_storage(self._calls, ctypes.byref(size))
        return view_of(address, "uint8", [size.value], self._calls)

    def send(self, tensor, peer):
        """Sends to a neighbour. Waits only while all its places hold tensors that it has not taken. A
        bad tensor raises here, and in the neighbour's `recv`."""
        peer = c.number(peer, "pp_send: dst_rank_idx")
        try:
            memory = Bytes(tensor, "the tensor")
        except (TypeError, ValueError):
            c.lib.peerbus_pp_send(self._calls, None, 1, peer, 0)  # The library refuses that everywhere.
            raise
        c.check(c.lib.peerbus_pp_send(self._calls, memory.address, memory.nbytes, peer, 0))

    def recv(self, tensor, peer):
        """Fills a tensor with the next one of a neighbour. If that has another size, raises on this
        rank, and the next call may take it."""
        memory = Bytes(tensor, "the tensor", is_written=True)
        c.check(c.lib.peerbus_pp_recv(self._calls, memory.address, memory.nbytes,
                                      c.number(peer, "pp_recv: src_rank_idx"), 0))


class PPBuffer(BufferBase):
    """DeepEP's PPBuffer of version 2.5: sends tensors to neighbours in the ring of ranks.

    Collective, with equal sizes on all ranks. `group` as in `Buffer`. Up to `num_max_inflight_tensors`
    of at most `num_max_tensor_bytes` may be on their way from one rank to a neighbour; the next
    `send` waits until the neighbour has received one.
    """

    def __init__(self, group, num_max_tensor_bytes, num_max_inflight_tensors, sl_idx=None,
                 num_gpu_timeout_secs=100, explicitly_destroy=False):
        super().__init__(explicitly_destroy)
        self._join(group, num_gpu_timeout_secs)
        self._pipeline = Pipeline(self.comm, "PPBuffer", num_max_tensor_bytes,
                                  num_max_inflight_tensors)
        self.storage = self._pipeline.storage
        self.num_bytes = self.storage.nbytes

    def send(self, x, dst_rank_idx, num_sms=None):
        """Sends a tensor of any type to the previous or the next rank; `x` may change on return. A bad
        one raises here and in the neighbour's `recv`."""
        self._alive()
        self._pipeline.send(x, dst_rank_idx)

    def recv(self, x, src_rank_idx, num_sms=None):
        """Fills `x` with the next tensor that the previous or the next rank sends here."""
        self._alive()
        self._pipeline.recv(x, src_rank_idx)

    def destroy(self):
        """Ends the use of the buffer."""
        super().destroy()
        self._pipeline = self.storage = None

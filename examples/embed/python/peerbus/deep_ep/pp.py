# SPDX-License-Identifier: MIT
"""Tensors sent to the next or the previous rank of a ring: DeepEP's PP."""

import numpy

from .. import _library as c
from .buffer_base import BufferBase
from .raw import Bytes
from .words import Words

_HEAD = 64  # Bytes in front of each tensor: its size, in a cache line of its own.


class Pipeline:
    """The messages between neighbours of a ring, through a window: each rank has as many places for
    those of either neighbour as may be on their way.

    Signals of a rank: 0 and 1 count what has arrived from the previous and from the next rank, 2 and 3
    what those two have taken of what this rank sent them.
    """

    def __init__(self, comm, call, max_bytes, max_tensors, most_bytes=None):
        """Collective, with equal arguments on all ranks. `most_bytes` is the size of the buffer."""
        def arguments():
            if max_bytes <= 0 or max_tensors <= 0:
                raise c.InvalidArgument(1, f"{call}: {max_tensors} tensors of {max_bytes} bytes, "
                                           "expected at least one of each")
            if most_bytes is not None and 4 * max_bytes * max_tensors > most_bytes:
                raise c.InvalidArgument(1, f"{call}: {max_tensors} tensors of {max_bytes} bytes need "
                                           f"{4 * max_bytes * max_tensors}, expected at most the "
                                           f"buffer's {most_bytes}: see get_pp_buffer_size_hint")
            return str((max_bytes, max_tensors)), None

        Words(comm).agree(call, "the size or the number of tensors", arguments)
        self._comm, self._max_bytes, self._max_tensors = comm, max_bytes, max_tensors
        self._neighbours = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        self._place_bytes = _HEAD + -(-max_bytes // _HEAD) * _HEAD
        self._window = comm.window(2 * max_tensors * self._place_bytes, signals=4)
        self._sent, self._received = [0, 0], [0, 0]

    @property
    def storage(self):
        """The memory of this rank's places, uint8."""
        return self._window.part(self._comm.rank)

    def send(self, call, tensor, peer):
        """Sends to a neighbour. Waits only while all its places hold tensors that it has not taken."""
        memory = Bytes(tensor, "the tensor")
        # Of two ranks each is both neighbours of the other: then all goes forward.
        way = 1 if peer == self._neighbours[1] else self._way(call, peer)
        self._require_size(call, memory.nbytes)
        number = self._sent[way] + 1
        if number > self._max_tensors:
            self._window.wait(2 + way, number - self._max_tensors, awaited=peer)
        offset = self._offset(1 - way, number)
        self._window.put(peer, offset, numpy.array([memory.nbytes], numpy.uint64))
        self._window.put(peer, offset + _HEAD, memory.flat, signal=1 - way, value=number)
        self._sent[way] = number

    def recv(self, call, tensor, peer):
        """Fills a tensor with the next one of a neighbour. If that has another size, raises on this
        rank, and the next call may take it."""
        memory = Bytes(tensor, "the tensor", is_written=True)
        way = self._way(call, peer)
        self._require_size(call, memory.nbytes)
        number = self._received[way] + 1
        self._window.wait(way, number, awaited=peer)
        part, offset = self.storage, self._offset(way, number)
        sent = int(part[offset:offset + 8].view(numpy.uint64)[0])
        if sent != memory.nbytes:
            raise c.Error(3, f"{call}: rank {peer} sent {sent} bytes, the tensor has {memory.nbytes}")
        memory.flat[:] = part[offset + _HEAD:offset + _HEAD + sent]
        self._received[way] = number
        self._window.signal(peer, 3 - way, number)

    def _offset(self, way, number):
        return (way * self._max_tensors + (number - 1) % self._max_tensors) * self._place_bytes

    def _way(self, call, peer):
        if peer not in self._neighbours:
            raise c.InvalidArgument(1, f"{call}: rank {peer}, expected the previous or the next one in "
                                       f"the ring, {' or '.join(map(str, self._neighbours))}")
        return self._neighbours.index(peer)

    def _require_size(self, call, nbytes):
        if nbytes > self._max_bytes:
            raise c.InvalidArgument(1, f"{call}: the tensor has {nbytes} bytes, expected at most "
                                       f"{self._max_bytes}")


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
        """Sends a tensor of any type to the previous or the next rank; `x` may change on return. Bad
        arguments raise on this rank alone."""
        self._alive()
        self._pipeline.send("PPBuffer.send", x, dst_rank_idx)

    def recv(self, x, src_rank_idx, num_sms=None):
        """Fills `x` with the next tensor that the previous or the next rank sends here."""
        self._alive()
        self._pipeline.recv("PPBuffer.recv", x, src_rank_idx)

    def destroy(self):
        """Ends the use of the buffer."""
        super().destroy()
        self._pipeline = self.storage = None

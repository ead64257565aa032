# SPDX-License-Identifier: MIT
"""All-gathers in sessions: DeepEP 2.1's AGRS."""

import zlib

import numpy

from .. import _library as c
from .._tensors import empty_like
from .bucket_call import empty, view_as
from .raw import Bytes
from .words import Words


def gathered_bytes(ranks, nbytes):
    """Returns the bytes of a session that a tensor of `nbytes` takes, gathered from `ranks` ranks."""
    return -(-ranks * nbytes // 32) * 32


class GatherSessions:
    """A window into which ranks put what they gather. A session uses it from its start; it is over
    when all ranks have ended it.

    Signals: for each gather of a session and each rank, the number of the latest session in which its
    part has arrived; then for each rank, that of the latest session that it has ended. Behind the
    memory of sessions lies, for each gather and rank, a word that tells of the sizes that it gathers.
    """

    def __init__(self, comm, call, session_bytes, gathers, most_bytes):
        """Collective, with equal arguments on all ranks."""
        def arguments():
            if session_bytes <= 0 or gathers <= 0 or session_bytes > most_bytes:
                raise c.InvalidArgument(1, f"{call}: {gathers} gathers in {session_bytes} bytes, "
                                           "expected at least one of each, and at most the buffer's "
                                           f"{most_bytes} bytes")
            return str((session_bytes, gathers)), None

        Words(comm).agree(call, "the bytes or the gathers of a session", arguments)
        self._comm, self._gathers = comm, gathers
        self._words_at = gathered_bytes(1, session_bytes)
        self._window = comm.window(self._words_at + 8 * gathers * comm.size,
                                   signals=(gathers + 1) * comm.size)
        self._memory = self._window.part(comm.rank)
        self._address = self._memory.__array_interface__["data"][0]
        self._session, self._is_open, self._used, self._called = 0, False, 0, 0

    def begin(self):
        if self._is_open:
            raise c.InvalidArgument(1, "create_agrs_session: a session is open, expected none")
        self._session, self._is_open, self._used, self._called = self._session + 1, True, 0, 0

    def end(self):
        """Collective: returns when no rank uses the memory of the session any longer."""
        self._require_open("destroy_agrs_session")
        self._is_open = False
        size, first = self._comm.size, self._gathers * self._comm.size
        for i in range(size):
            self._window.signal((self._comm.rank + i) % size, first + self._comm.rank, self._session)
        for peer in range(size):
            self._window.wait(first + peer, self._session, awaited=peer)

    def place(self, shapes, dtype):
        """Returns this rank's parts of what the next gather of these shapes fills."""
        call = "agrs_get_inplace_tensor"
        self._require_open(call)
        like, made, offset = empty(dtype), [], self._used
        item = like.itemsize if isinstance(like, numpy.ndarray) else like.element_size()
        for shape in shapes:
            nbytes = int(numpy.prod(shape, dtype=int)) * item
            address = self._address + offset + self._comm.rank * nbytes
            offset += gathered_bytes(self._comm.size, nbytes)
            self._require_room(call, offset)
            made.append(view_as(address, nbytes, like, self._memory).reshape(tuple(shape)))
        return made

    def gather(self, tensors):
        """Puts this rank's tensors to all ranks. Returns the views that will hold those of all, and the
        function that waits for them."""
        call, size, rank = "all_gather", self._comm.size, self._comm.rank
        self._require_open(call)
        parts, begins, offset = [Bytes(tensor, "t") for tensor in tensors], [], self._used
        if not parts:
            raise c.InvalidArgument(1, f"{call}: no tensors, expected at least one")
        for part in parts:
            begins.append(offset)
            own = self._address + offset + rank * part.nbytes
            if 0 <= part.address - self._address < self._words_at and part.address != own:
                raise c.InvalidArgument(1, f"{call}: a tensor lies in the session's memory, but not "
                                           "where agrs_get_inplace_tensor places it")
            offset += gathered_bytes(size, part.nbytes)
        self._require_room(call, offset)
        slot, self._called, self._used = self._called, self._called + 1, offset
        sizes = zlib.crc32(str([part.nbytes for part in parts]).encode())
        word, signal = numpy.array([sizes], numpy.uint64), slot * size + rank
        for i in range(size):
            peer = (rank + i) % size
            for begin, part in zip(begins, parts):
                if peer != rank or part.address != self._address + begin + rank * part.nbytes:
                    self._window.put(peer, begin + rank * part.nbytes, part.flat)
            self._window.put(peer, self._words_at + 8 * signal, word, signal=signal,
                             value=self._session)
        made = [view_as(self._address + begin, size * part.nbytes, empty_like(tensor, [0]),
                        self._memory).reshape((size, *part.shape))
                for begin, part, tensor in zip(begins, parts, tensors)]
        session = self._session

        def wait():
            self._require_open("the function that all_gather returned")
            if self._session != session:
                raise c.InvalidArgument(1, "the function that all_gather returned was called in "
                                           f"session {self._session}, expected {session}, its own")
            for peer in range(size):
                self._window.wait(slot * size + peer, session, awaited=peer)
            told = self._memory[self._words_at:].view(numpy.uint64)[slot * size:(slot + 1) * size]
            others = numpy.flatnonzero(told != sizes)
            if len(others):
                raise c.Error(3, f"{call}: rank {others[0]} gathers other sizes than rank {rank}, "
                                 f"whose tensors have {[part.nbytes for part in parts]} bytes")

        return made, wait

    def _require_open(self, call):
        if not self._is_open:
            raise c.InvalidArgument(1, f"{call}: no session is open: call create_agrs_session first")

    def _require_room(self, call, end):
        if end > self._words_at or self._called >= self._gathers:
            raise c.InvalidArgument(1, f"{call}: call {self._called + 1} of the session needs {end} "
                                       f"bytes, expected at most {self._gathers} calls and "
                                       f"{self._words_at} bytes, those of agrs_set_config")

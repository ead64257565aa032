# SPDX-License-Identifier: MIT
"""One word of each rank, brought to all ranks."""

import zlib

import numpy

from .. import _library as c


class Words:
    """A window through which ranks tell each other a word."""

    def __init__(self, comm):
        """Collective."""
        self._size, self._rank, self._epoch = comm.size, comm.rank, 0
        # A word for each rank and each parity of the epoch. A rank writes those of epoch n + 2 after
        # all have read those of epoch n, because each signals n + 1 only after reading.
        self._window = comm.window(2 * 8 * comm.size, signals=comm.size)

    def gather(self, word):
        """Collective: returns the words of all ranks as uint64 [ranks]. Cost: a put to every rank and
        a wait for its own."""
        self._epoch += 1
        base = self._epoch % 2 * 8 * self._size
        source = numpy.array([word], numpy.uint64)
        for peer in range(self._size):
            self._window.put(peer, base + 8 * self._rank, source, signal=self._rank,
                             value=self._epoch)
        for peer in range(self._size):
            self._window.wait(peer, self._epoch, awaited=peer)
        part = self._window.part(self._rank)
        return part[base:base + 8 * self._size].view(numpy.uint64).copy()

    def agree(self, call, what, arguments):
        """Collective: returns what `arguments()` returns, a pair of a text and anything. Raises on all
        ranks if it raises on one of them (`Refused` on the others), or if the texts differ: then
        `what` is named."""
        problem, text, made = None, None, None
        try:
            text, made = arguments()
        except (TypeError, ValueError) as found:  # InvalidArgument is a ValueError.
            problem = found
        words = self.gather(0 if text is None else zlib.crc32(text.encode()) + 1)
        if problem is not None:
            raise problem
        refusing = numpy.flatnonzero(words == 0)
        if len(refusing):
            raise c.Refused(8, f"{call}: rank {refusing[0]} refused its arguments")
        others = numpy.flatnonzero(words != words[0])
        if len(others):
            raise c.Error(3, f"{call}: {what} on rank {', '.join(map(str, others))} differ from those "
                             "of rank 0")
        return made

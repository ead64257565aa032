# SPDX-License-Identifier: MIT
"""Strict mode: all ranks refuse a call that would overwrite a low-latency result in use."""

import gc
import weakref

import numpy

from .. import _library as c
from .words import Words

IN_FLIGHT = 2  # Results of a shape that are valid at a time.


class Guard:
    """Knows which low-latency results are referenced, on this rank and on the others."""

    def __init__(self, comm):
        self._words = Words(comm)
        self._results = {}  # Shape: the results of its latest dispatches, oldest first.

    def before(self, shape):
        """Collective: raises on all ranks if a dispatch of `shape` would overwrite a result that is
        referenced on some rank. Cost: a word to every rank and a wait for theirs."""
        users = numpy.flatnonzero(self._words.gather(int(self._in_use(shape))))
        if len(users):
            raise c.Refused(8, f"low_latency_dispatch: the result of the {IN_FLIGHT} dispatches earlier "
                             f"is still referenced on rank {', '.join(map(str, users))}, and this "
                             "call would overwrite it; drop it (its tensors, handle, hook and event), "
                             "or copy what is needed")

    def add(self, shape, result):
        """Notes the result of a dispatch."""
        latest = self._results.setdefault(shape, [])
        latest.append([weakref.ref(result)])
        del latest[:-IN_FLIGHT]

    def add_to(self, dispatched, result):
        """Notes the result of a combine, which is overwritten together with its dispatch."""
        for latest in self._results.values():
            for known in latest:
                if known[0]() is dispatched:
                    known.append(weakref.ref(result))

    def _in_use(self, shape):
        latest = self._results.get(shape, ())
        if len(latest) < IN_FLIGHT:
            return False

        def referenced():
            return any(reference() is not None for reference in latest[0])

        if not referenced():
            return False
        gc.collect()  # What only a cycle of garbage refers to is not in use.
        return referenced()

# SPDX-License-Identifier: MIT
"""Writes down which calls a process makes, and where, for `peerbus.deep_ep.check`."""

import atexit
import functools
import json
import os
import sys
from multiprocessing import util

from . import calls

_package = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _site():
    """Returns (file, line, function) of the nearest caller outside of this package."""
    frame = sys._getframe(2)
    while frame.f_back is not None and os.path.abspath(
            frame.f_code.co_filename).startswith(_package):
        frame = frame.f_back
    return (os.path.abspath(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name)


class _Notes:
    """The file of this process. A line is written before the call is made, so that the file tells of
    a call that fails; the numbers of calls are written at the end."""

    def __init__(self, folder):
        self._folder = folder
        self.begin()

    def begin(self):
        """Begins a file: a process that fork made has one of its own."""
        self._counts, self._failures = {}, set()
        self._file = open(os.path.join(self._folder, f"{os.getpid()}.jsonl"), "a", buffering=1)

    def add(self, call):
        known = (_site(), tuple(call.items()))
        number = self._counts.get(known)
        self._counts[known] = 1 if number is None else number + 1
        if number is None:
            self._write({"key": len(self._counts) - 1, "site": known[0], "call": call})

    def add_failure(self, operation, problem):
        text = " ".join(f"{type(problem).__name__}: {problem}".split())
        known = (_site(), operation, text)
        if known not in self._failures:
            self._failures.add(known)
            self._write({"site": known[0], "operation": operation, "error": text})

    def end(self):
        self._write({"counts": list(self._counts.values())})

    def _write(self, line):
        print(json.dumps(line), file=self._file)


def _watched(notes, operation, method):
    @functools.wraps(method)
    def call(*arguments, **options):
        try:
            return method(*arguments, **options)
        except Exception as problem:
            notes.add_failure(operation, problem)
            raise

    return call


def start(folder, classes):
    """Makes this process, and those that it forks, write each new call to a file in `folder`, and what
    calls of `classes`, by the names of operations, raise."""
    notes = _Notes(folder)
    calls.watcher = notes.add
    for operation in calls.OPERATIONS:
        name, _, method = operation.rpartition(".")
        for kind in classes[name or "Buffer"]:
            if method in vars(kind):  # Otherwise it is that of its base, which is watched.
                setattr(kind, method, _watched(notes, operation, getattr(kind, method)))
    os.register_at_fork(after_in_child=notes.begin)
    atexit.register(notes.end)
    # A process of multiprocessing that was forked ends without atexit.
    util.register_after_fork(notes, lambda known: util.Finalize(None, known.end, exitpriority=0))

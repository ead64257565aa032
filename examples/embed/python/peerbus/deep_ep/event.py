# SPDX-License-Identifier: MIT
"""DeepEP's events and streams. A call has ended when it returns, except that an asynchronous one
leaves results to complete. Those are what the communication stream holds."""

import threading
import time

from .. import _library as c

_LEFT_AT_MOST = 64  # Far more than buffers keep valid.


class _Here(threading.local):
    """The results that a thread's calls have left to complete, the oldest first, and its stream."""

    def __init__(self):
        self.left, self.stream = [], None


_here = _Here()


def complete(results=None):
    """Completes results in their order, by default all that this thread's calls have left."""
    for pending in list(_here.left) if results is None else results:
        try:
            pending.current_stream_wait()
        finally:
            _here.left = [each for each in _here.left if each is not pending]


def forget(owner):
    """Forgets what this thread's calls of a destroyed buffer have left."""
    _here.left = [each for each in _here.left if each.owner is not owner]


class EventHandle:
    """An event of a stream. There are no streams here: nothing is left to wait for."""

    def current_stream_wait(self):
        """Does nothing."""


class EventOverlap:
    """DeepEP's EventOverlap. The results of a call that was to be asynchronous are valid after
    `current_stream_wait`, or after a `with` block. `event` is None if the call left nothing to do."""

    def __init__(self, event=None, extra_tensors=None, *, results=None):
        self.event, self.extra_tensors, self._results = event, extra_tensors, results
        self.hook_after_wait, self._releases = None, False
        if getattr(event, "is_left", False):
            _here.left = [*_here.left, event][-_LEFT_AT_MOST:]

    def current_stream_wait(self, release_handle=False):
        """Completes the results, then calls the hook that was registered. Waiting again has no effect.
        Returns the results of a call with `defer_epilogue`, otherwise what the hook returns, or None.
        With `release_handle`, drops the event with what it keeps alive."""
        if self.event is not None:
            complete([self.event])
        hook, self.hook_after_wait = self.hook_after_wait, None
        made = None if hook is None else hook()
        if release_handle:
            self.event = None
        return made if self._results is None else self._results

    wait = current_stream_wait

    def register_hook_after_wait(self, hook_after_wait):
        """Registers a function that the next `current_stream_wait` calls last. There may be one."""
        if self.hook_after_wait is not None:
            raise c.InvalidArgument(1, "register_hook_after_wait: a hook is registered, expected none")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle=False):
        """Returns this event, whose next `with` block ends by a wait with `release_handle`."""
        self._releases = release_handle
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        releases, self._releases = self._releases, False
        self.current_stream_wait(releases)


class Stream:
    """A stream on which nothing ever runs: every call has ended when it returns."""

    cuda_stream, priority = 0, 0

    def __init__(self, *_, **__):
        pass

    def left(self):
        """Returns the results that are to be completed before the stream has nothing more to do."""
        return []

    def wait_stream(self, stream):
        """Completes what `stream` holds."""
        complete(stream.left())

    def wait_event(self, event):
        """Completes what the event stands for."""
        event.wait()

    def record_event(self, event=None):
        """Records an event, by default a new one, and returns it."""
        event = ClockEvent() if event is None else event
        event.record(self)
        return event

    def synchronize(self):
        """Completes what this stream holds."""
        complete(self.left())

    def query(self):
        """Completes what this stream holds, and returns True."""
        self.synchronize()
        return True


class CommStream(Stream):
    """The communication stream of all buffers. It holds the results of this thread's asynchronous
    calls that are not complete."""

    def left(self):
        return list(_here.left)


default_stream, comm_stream = Stream(), CommStream()


def current_stream():
    """Returns the stream that this thread has made its current one."""
    return _here.stream or default_stream


def set_current_stream(stream):
    """Makes a stream this thread's current one, or the default stream for None."""
    _here.stream = stream


class ClockEvent:
    """An event of torch.cuda by the clock of this process. It stands for the results that its stream
    held when it was recorded."""

    def __init__(self, *_, **__):
        self._seconds, self._left = 0.0, []

    def record(self, stream=None):
        """Notes the time, and what the stream holds."""
        self._left = (current_stream() if stream is None else stream).left()
        self._seconds = time.perf_counter()

    def elapsed_time(self, end_event):
        """Returns the milliseconds from this event to a later one."""
        return (end_event._seconds - self._seconds) * 1e3

    def synchronize(self):
        """Completes what the event stands for."""
        left, self._left = self._left, []
        complete(left)

    def wait(self, stream=None):
        """Completes what the event stands for."""
        self.synchronize()

    def query(self):
        """Completes what the event stands for, and returns True."""
        self.synchronize()
        return True


class Pending:
    """The rest of a call of the buffer `owner`, which runs once."""

    is_left = True  # An event of this is something to complete.

    def __init__(self, complete, owner):
        self._complete, self.owner = complete, owner

    def current_stream_wait(self):
        complete, self._complete = self._complete, None
        if complete is not None:
            complete()


def wait_for(event):
    """Completes what a `previous_event` stands for, or nothing for None."""
    if event is not None:
        event.current_stream_wait()

# SPDX-License-Identifier: MIT
"""DeepEP's events. Calls of this module have no streams, so that an event is a call to complete."""

import time

from .. import _library as c


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

    def current_stream_wait(self, release_handle=False):
        """Completes the results, then calls the hook that was registered. Waiting again has no effect.
        Returns the results of a call with `defer_epilogue`, otherwise what the hook returns, or None.
        With `release_handle`, drops the event with what it keeps alive."""
        if self.event is not None:
            self.event.current_stream_wait()
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


class ClockEvent:
    """An event of torch.cuda by the clock of this process."""

    def __init__(self, *_, **__):
        self._seconds = 0.0

    def record(self, stream=None):
        """Notes the time."""
        self._seconds = time.perf_counter()

    def elapsed_time(self, end_event):
        """Returns the milliseconds from this event to a later one."""
        return (end_event._seconds - self._seconds) * 1e3

    def query(self):
        """Returns True: every call has ended."""
        return True

    def synchronize(self):
        """Does nothing."""

    def wait(self, stream=None):
        """Does nothing."""


class Stream:
    """A stream on which nothing ever runs: every call has ended when it returns."""

    cuda_stream, priority = 0, 0

    def __init__(self, *_, **__):
        pass

    def wait_stream(self, stream):
        """Does nothing."""

    def wait_event(self, event):
        """Does nothing."""

    def record_event(self, event=None):
        """Records an event, by default a new one, and returns it."""
        event = ClockEvent() if event is None else event
        event.record(self)
        return event

    def query(self):
        """Returns True: every call has ended."""
        return True

    def synchronize(self):
        """Does nothing."""


class Pending:
    """The rest of a call, which runs once."""

    def __init__(self, complete):
        self._complete = complete

    def current_stream_wait(self):
        complete, self._complete = self._complete, None
        if complete is not None:
            complete()


def wait_for(event):
    """Completes what a `previous_event` stands for, or nothing for None."""
    if event is not None:
        event.current_stream_wait()

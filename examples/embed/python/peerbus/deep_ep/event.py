# SPDX-License-Identifier: MIT
"""DeepEP's events. Calls of this module have no streams, so that an event is a call to complete."""

import time


class EventHandle:
    """An event of a stream. There are no streams here: nothing is left to wait for."""

    def current_stream_wait(self):
        """Does nothing."""


class EventOverlap:
    """DeepEP's EventOverlap. The results of a call that was to be asynchronous are valid after
    `current_stream_wait`, or after a `with` block."""

    def __init__(self, event=None, extra_tensors=None, *, results=None):
        self.event, self.extra_tensors, self._results = event, extra_tensors, results

    def current_stream_wait(self):
        """Completes the results. Waiting again has no effect. Returns the results of a call with
        `defer_epilogue`, otherwise None."""
        event, self.event = self.event, None
        if event is not None:
            event.current_stream_wait()
        return self._results

    wait = current_stream_wait

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.current_stream_wait()


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

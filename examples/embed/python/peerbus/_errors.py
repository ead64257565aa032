# SPDX-License-Identifier: MIT
"""The exceptions that calls of the library raise."""


class Error(RuntimeError):
    """A call that failed. ``code`` is its number, the text says what was given and expected."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    def __reduce__(self):  # For processes that send an exception to another one.
        return type(self), (self.code, str(self))


class InvalidArgument(Error, ValueError):
    """This rank gave a value that the call does not accept."""


class Refused(Error):
    """Another rank gave a value that the call does not accept. Nothing happened."""


class TimedOut(Error, TimeoutError):
    """The time limit passed first."""


class PeerDead(Error, ConnectionError):
    """A rank died, or left before it had done its part."""


class Unreachable(Error, ConnectionError):
    """The connection to a rank broke."""


class Poisoned(Error):
    """An earlier failure left the ranks out of step. Make a new communicator."""


class ViewChanged(Error):
    """Ranks went on without others. Resume what was made before, or make it anew with the survivors."""


class OutOfMemory(Error, MemoryError):
    """The machine does not have the memory."""


for _class in (Error, InvalidArgument, Refused, TimedOut, PeerDead, Unreachable, Poisoned,
               ViewChanged, OutOfMemory):
    _class.__module__ = "peerbus"  # As a program names it, and a traceback shows it.

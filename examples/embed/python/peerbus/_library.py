# SPDX-License-Identifier: MIT
"""libpeerbus.so by ctypes: where it is, its functions, and errors as exceptions.

ctypes releases the GIL during each call. `_interface` has what the headers declare.
"""

import ctypes
import operator
import os
import re
import threading
from ctypes import c_char_p, c_uint32, c_void_p

from ._errors import (Error, InvalidArgument, OutOfMemory, PeerDead, Poisoned, Refused, TimedOut,
                      Unreachable, ViewChanged)
from ._interface import *  # The structures, by which other modules call the library.
from ._interface import CONSTANTS, FUNCTIONS, Python

INTERRUPTED = CONSTANTS["PEERBUS_INTERRUPTED"]
ANY_RANK = 2**64 - 1
CODECS = ("bf16", "int8_per_token", "fp8_f32", "fp8_rounded", "fp8_ue8m0", "fp8_as_given", "nothing")
RELAYS = ("never", "always", "automatic")
RELAY_SUMS = ("bf16", "f32")
TRANSPORTS = ("automatic", "unified_bus", "planes", "planes_verbs", "fabric", "verbs")


def _load():
    """Returns the library: that of PEERBUS_LIBRARY, one beside this file, or that of the system."""
    here = os.path.join(os.path.dirname(__file__), "libpeerbus.so")
    given = os.environ.get("PEERBUS_LIBRARY")
    name = given or (here if os.path.exists(here) else "libpeerbus.so.0.1")
    try:
        return ctypes.CDLL(name)
    except OSError as problem:
        raise ImportError(
            f"peerbus cannot load {name}: {problem}. Build it (docs/c.md), and name it in "
            "PEERBUS_LIBRARY or install it where the loader looks"
        ) from None


lib = _load()
lib.peerbus_last_error.restype = c_char_p
lib.peerbus_code_text.restype = c_char_p
lib.peerbus_version.restype = c_uint32
if lib.peerbus_version() >> 8 != 0x0001:
    raise ImportError(f"peerbus needs libpeerbus 0.1, found {lib.peerbus_version():#x}")


_classes = {1: InvalidArgument, 2: InvalidArgument, 4: OutOfMemory, 5: TimedOut, 6: PeerDead,
            7: Poisoned, 8: Refused, 11: Unreachable, 12: ViewChanged}


def check(code):
    """Raises the exception for a failed call, or what a signal handler raised during the call."""
    if code == 0:
        return
    if code == INTERRUPTED:
        exception, raised[:] = raised[:], [None] * 3
        _restore(*exception)  # Raises it.
        raise KeyboardInterrupt  # If a call that another handler made has raised it already.
    text = lib.peerbus_last_error().decode(errors="replace")
    # The handle of an object of Python is null only after its `destroy`.
    raise _classes.get(code, Error)(code, re.sub(r"^peerbus: the ([a-z ]+) is NULL",
                                                 r"peerbus: the \1 was destroyed", text))


def check_refusal(code):
    """Raises what a handler of a signal raised while a call told other ranks of an error. Any other
    failure of that call is less than the error, which the caller is about to raise."""
    if code == INTERRUPTED:
        check(code)


def _declare():
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(lib, "peerbus_" + name)
        function.argtypes, function.restype = arguments, result


_declare()

# The type, value and traceback of what a handler of a signal has raised in a wait. It is never freed,
# because objects may wait when this module is gone already.
raised = (c_void_p * 3)()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(raised))
_restore = ctypes.pythonapi.PyErr_Restore
_restore.argtypes, _restore.restype = [c_void_p] * 3, None


def let_handlers_run(comm):
    """Lets handlers of signals, such as that of Ctrl-C, run while a call of the main thread waits."""
    api = [ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value for name in (
        "PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")]
    check(lib.peerbus_comm_set_python(comm, ctypes.byref(Python(
        thread=threading.main_thread().ident, ensure_gil=api[0], release_gil=api[1],
        check_signals=api[2], fetch=api[3], raised=ctypes.addressof(raised)))))


class Object:
    """An object of the library, destroyed with this one."""

    _reference = staticmethod(ctypes.byref)  # This module's names go before the last objects do.

    def __init__(self, kind, handle):
        self._as_parameter_ = handle
        self._destroy = getattr(lib, f"peerbus_{kind}_destroy")

    def destroy(self):
        """Releases what the library holds. Does nothing if that has happened before."""
        self._destroy(self._reference(self._as_parameter_))

    def alive(self):
        """Returns this object. Raises if it was destroyed: functions of the library that return no
        code take its handle, and would return 0."""
        if not self._as_parameter_:
            name = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(self).__name__).lower()
            raise InvalidArgument(1, f"the {name} was destroyed")
        return self

    def __del__(self):
        if hasattr(self, "_destroy"):
            self.destroy()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()


def nanoseconds(seconds):
    """Returns a time limit as the library takes it. None is the default of the communicator."""
    if seconds is None:
        return 0
    try:
        limit = seconds * 1e9
        if limit != limit:
            raise ValueError
        if limit >= 1 << 63:  # More than 292 years.
            return -1
        return max(1, round(limit)) if limit > 0 else 1
    except (TypeError, ValueError):
        raise TypeError(f"timeout is {seconds!r}, expected a number of seconds, or None for the "
                        "default") from None


def number(value, name):
    """Returns a number that the library takes as 64 bits. ctypes would cut others off."""
    value = operator.index(value)
    if not 0 <= value < 1 << 64:
        raise InvalidArgument(1, f"{name} is {value}, expected 0 or more, in 64 bits")
    return value


def at_most(value, name):
    """Returns a limit of 1 or more as the library takes it, which has 0 for None."""
    if value is not None and operator.index(value) < 1:
        raise InvalidArgument(1, f"{name} is {value}, expected 1 or more, or None")
    return 0 if value is None else number(value, name)


_collective = [getattr(lib, f"peerbus_{kind}_create")
               for kind in ("window", "exchange", "expert_weights", "team", "channels", "pp")]


def text(value):
    """Returns a text as the library takes it. None stays None."""
    return None if value is None else value.encode()


def place(name, value, known):
    """Returns the index of `value` among the known values of the argument `name`."""
    if value not in known:
        raise InvalidArgument(1, f"{name} is {value!r}, expected one of {', '.join(known)}")
    return known.index(value)


def make(kind, create, *arguments):
    """Returns the handle that `create(arguments..., &handle)` sets."""
    if arguments[0] is None:
        raise TypeError(f"the {kind} was to be made of None, expected the object that it belongs to")
    if create in _collective:
        # Ranks that are early wait here, where a signal ends the wait; the bootstrap has no such place.
        check(lib.peerbus_comm_barrier(arguments[0], arguments[-1]))
    handle = c_void_p()
    check(create(*arguments, ctypes.byref(handle)))
    return handle


def make_by_meeting(create, *arguments):
    """Returns the communicator that `create(arguments..., &handle)` sets. The library calls no signal handler
    while ranks meet, so they do in a thread, and a handler that raises ends the wait for it. The attempt
    then goes on by itself until its limit, and what it makes is destroyed."""
    if threading.current_thread() is not threading.main_thread():  # It gets no signals.
        return make("comm", create, *arguments)
    results = []
    given_up = threading.Event()
    lock = threading.Lock()

    def meet():
        try:
            result = make("comm", create, *arguments)
        except BaseException as problem:
            result = problem
        with lock:
            if not given_up.is_set() or isinstance(result, BaseException):
                results.append(result)
                return
        lib.peerbus_comm_destroy(ctypes.byref(result))

    try:
        thread = threading.Thread(target=meet, daemon=True)
        thread.start()
        while not results:
            thread.join(0.05)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]
    except BaseException:
        with lock:
            given_up.set()
        for result in results:
            if not isinstance(result, BaseException):
                lib.peerbus_comm_destroy(ctypes.byref(result))
        raise


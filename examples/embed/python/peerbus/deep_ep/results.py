# SPDX-License-Identifier: MIT
"""The parts that calls of buffers share: results of the library, copies."""

import ctypes
import sys

from .. import _library as c
from .._tensors import empty_like, given, is_torch, pointer, result
from .event import EventOverlap, Pending


class Result(c.Object):
    """The part of a call that stays in the library: its handle, event or hook. Keeps the buffer
    alive, and the call's arguments until it is complete."""

    is_left = True  # An event of this is something to complete.
    call = {}  # The sizes of a normal dispatch, for the limits of platforms.
    is_combined = False  # Set once the result is that of a dispatch whose rows went home.
    _destroy = c.lib.peerbus_result_destroy  # Of the class: every call makes one of these.

    def __init__(self, owner, raw, arguments=None):
        self._as_parameter_ = ctypes.c_void_p(raw.result)
        self.owner, self.arguments = owner, arguments

    def wait(self):
        c.check(c.lib.peerbus_result_wait(self))
        self.arguments = None

    current_stream_wait = wait


class Handle(tuple):
    """The handle of a dispatch: a tuple of DeepEP's members. `result` is the part of the dispatch
    that stays in the library."""

    def __new__(cls, members, left):
        made = super().__new__(cls, members)
        made.result = left
        return made


def result_of(handle):
    """Returns the `Result` of the dispatch of a handle."""
    if not isinstance(handle, Handle):
        raise TypeError(f"handle is {type(handle).__name__}, expected the one that a dispatch of this "
                        "module returned")
    return handle.result


def copy(array, dtype=None):
    """Returns a copy with memory of its own, of the type that `dtype` names; or None for None."""
    if array is None:
        return None
    if is_torch(array):
        return array.clone() if dtype is None else \
            array.to(getattr(sys.modules["torch"], dtype), copy=True)
    return array.copy() if dtype is None else array.astype(dtype)


def lengthened(array, rows, fill=None):
    """Returns an array of `rows` rows that begins with those of `array`. The others are `fill`, or
    unset."""
    if array is None or len(array) == rows:
        return array
    longer = empty_like(array, [rows, *array.shape[1:]])
    longer[:len(array)] = array
    if fill is not None:
        longer[len(array):] = fill
    return longer


def scales_of(array, given):
    """Returns received scales with the type of those that were given. What torch gives as uint8 would
    come back as float8_e4m3fn, for which uint8 stands."""
    if array is None or not is_torch(array) or array.dtype == given.dtype:
        return array
    return array.view(given.dtype)


def biases_of(bias):
    """Returns the two biases of a combine, None for each that was not given."""
    biases = tuple(bias) if isinstance(bias, (tuple, list)) else (bias,)
    if len(biases) > 2:
        raise c.InvalidArgument(1, f"bias has {len(biases)} tensors, expected at most 2")
    return (biases + (None, None))[:2]


def combined_of(function, owner, args, x, topk_weights, bias, is_async):
    """Calls a combine of the library on the buffer `owner`. Returns (combined_x,
    combined_topk_weights, event). The arrays own their memory; if `is_async`, the event's wait fills
    it."""
    views = [given(x, "x"), given(topk_weights, "topk_weights")]
    views += [given(value, "bias") for value in biases_of(bias)]
    args.x, args.topk_weights = pointer(views[0]), pointer(views[1])
    for i, view in enumerate(views[2:]):
        if view is not None:
            args.bias[i] = view.pointer
    raw = c.Combined()
    c.check(function(owner, ctypes.byref(args), ctypes.byref(raw)))
    left = Result(owner, raw, views if is_async else None)
    sums = [result(array, left, is_torch(x))
            for array in (raw.combined_x, raw.combined_topk_weights)]
    return tuple(_owned(sums, left if is_async else None))


def _owned(arrays, pending):
    """Returns the arrays with memory of their own, and an event. They are filled now, or when the
    event of a `pending` result is waited for."""
    if pending is None:
        return [*map(copy, arrays), EventOverlap()]
    filled = [None if array is None else empty_like(array, array.shape) for array in arrays]

    def complete():
        pending.wait()
        for target, source in zip(filled, arrays):
            if target is not None:
                target[:] = source

    return [*filled, EventOverlap(Pending(complete, pending.owner))]


def refuse(call, why, **arguments):
    """Raises if one of `arguments` is given."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise c.Error(9, f"{call}: {name}: {why}")


def check_stream_arguments(call, previous_event, is_async, allocate_on_comm_stream):
    """Raises if DeepEP would: memory of the communication stream needs an event on both sides."""
    if allocate_on_comm_stream and not (previous_event is not None and is_async):
        raise c.InvalidArgument(1, f"{call}: allocate_on_comm_stream is true, expected "
                                   "previous_event and the asynchronous form with it")

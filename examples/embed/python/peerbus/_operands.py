# SPDX-License-Identifier: MIT
"""Operands of collective operations and messages: views of arrays, and what is wrong with them."""

import ctypes
import math
import operator
import sys

import numpy

from . import _library as c
from ._tensors import Given, contiguous, empty_like, has_gaps, is_torch, require_writable

REDUCTIONS = ("sum", "prod", "min", "max")


class Operand(Given):
    """A view of an operand. Its elements are only moved or reduced, so more types are possible than
    in other calls, and uint8 is the integer."""

    codes = dict(Given.codes, uint8=(1, 8), int16=(0, 16), uint32=(1, 32), uint64=(1, 64),
                 float16=(2, 16), float64=(2, 64), complex64=(5, 64), complex128=(5, 128))
    kinds = {numpy.dtype(name): kind for name, kind in codes.items()
             if name not in ("bfloat16", "float8_e4m3fn")}

    def __init__(self, value, name):
        super().__init__(value, name)
        tensor = self.tensor
        if tensor.dtype_lanes != 1:
            raise TypeError(f"{name} has {tensor.dtype_lanes} lanes, expected 1")
        self.shape = tuple(tensor.shape[:tensor.ndim])
        self.count = math.prod(self.shape)
        self.dtype = tensor.dtype_code * 256 + tensor.dtype_bits

    def _types(self, name):
        return f"one of {', '.join(self.codes)} (uint16 stands for bfloat16)"

    def empty(self, shape, dtype=None):
        """Returns an array of the same kind with other sizes, and of the same type or of `dtype`, a
        type of numpy by name."""
        if dtype is not None:
            if is_torch(self.value):
                return self.value.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype))
            return numpy.empty(shape, dtype)
        if is_torch(self.value) or isinstance(self.value, numpy.ndarray):
            return empty_like(self.value, shape)
        kind = (self.tensor.dtype_code, self.tensor.dtype_bits)
        names = [dtype for dtype, known in self.kinds.items() if known == kind]
        return numpy.empty(shape, names[0] if names else f"V{kind[1] // 8}")


def given_input(value, name="x"):
    """Returns a view of an array that an operation reads, or of a copy of it if it has gaps."""
    return contiguous(value, name, Operand)


def given_output(value, name, is_written=True):
    """Returns a view of an array that an operation may write."""
    view = Operand(value, name)
    if has_gaps(view.tensor):
        raise c.InvalidArgument(1, f"{name} has gaps between its elements, expected a contiguous "
                                   "array")
    if is_written:
        require_writable(view, name)
    return view


def made_output(out, given, shape):
    """Returns a view of `out`, or of a new array of `shape` like `given`."""
    if out is None:
        return Operand(given.empty(shape), "out")
    view = given_output(out, "out")
    require_like(view, "out", given, math.prod(shape))
    return view


def required_output(out, root):
    """Returns a view of the `out` of a rank that does not know its size otherwise."""
    if out is None:
        raise c.InvalidArgument(1, "out is None, expected an array at ranks other than the root "
                                   f"{root}")
    return given_output(out, "out")


def require_like(view, name, given, count):
    """Requires `count` elements of the type of `given`."""
    if view.dtype != given.dtype or view.count != count:
        raise c.InvalidArgument(1, f"{name} has {view.count} elements of {type_name(view)}, expected "
                                   f"{count} of {type_name(given)}")


def type_name(view):
    return str(getattr(view.value, "dtype", f"type {view.dtype}"))


def row_of_each(given, size):
    """Requires an operand with a row for each rank. Returns the shape of a row."""
    if not given.shape or given.shape[0] != size:
        raise c.InvalidArgument(1, f"x has shape {list(given.shape)}, expected a row for each of "
                                   f"{size} ranks")
    return given.shape[1:]


def reduction(op):
    if op not in REDUCTIONS:
        raise c.InvalidArgument(1, f"op is {op!r}, expected one of {', '.join(REDUCTIONS)}")
    return REDUCTIONS.index(op)


def require_rank(rank, size, name="root"):
    """Returns `rank`, which `name` says. Requires that it is a rank."""
    if not 0 <= operator.index(rank) < size:
        raise c.InvalidArgument(1, f"{name} {rank}, expected a rank below {size}")
    return rank


def parts_of(counts, name, size, row):
    """Returns counts of rows, and the elements of each part."""
    if counts is None:
        raise c.InvalidArgument(1, f"{name} is None, expected a number of rows for each of {size} "
                                   "ranks")
    rows = [operator.index(count) for count in counts]
    if len(rows) != size or min(rows) < 0:
        raise c.InvalidArgument(1, f"{name} are {rows}, expected a number of rows for each of "
                                   f"{size} ranks")
    return rows, (ctypes.c_uint64 * size)(*[count * row for count in rows])


def require_rows(given, count):
    if not given.shape or given.shape[0] != count:
        raise c.InvalidArgument(1, f"x has shape {list(given.shape)}, expected {count} rows")

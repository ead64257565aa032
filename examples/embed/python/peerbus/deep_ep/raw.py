# SPDX-License-Identifier: MIT
"""Arrays of any type as bytes, for calls that only move them."""

import math
import sys

import numpy

from .. import _library as c
from .._operands import Operand
from .._tensors import has_gaps, is_torch, view_of


class Bytes:
    """The memory of an array without gaps as uint8: `flat` [bytes], and `rows` [first size, bytes of
    each]. Any type of torch on the CPU or of numpy without Python objects."""

    def __init__(self, value, name, is_written=False):
        if is_torch(value):
            if value.device.type != "cpu":
                raise TypeError(f"{name} is on {value.device}, expected the CPU: call .cpu()")
            self.shape, has_holes = tuple(value.shape), not value.is_contiguous()
            address, item = value.data_ptr(), value.element_size()
        elif isinstance(value, numpy.ndarray) and not isinstance(value, numpy.ma.MaskedArray):
            if value.dtype.hasobject:
                raise TypeError(f"{name} has Python objects, expected numbers")
            self.shape, has_holes = value.shape, not value.flags.c_contiguous
            address, item = value.ctypes.data, value.itemsize
        else:
            view = Operand(value, name)
            self.shape, has_holes = view.shape, has_gaps(view.tensor)
            address, item, value = view.address, view.dtype % 256 // 8, view
        if has_holes:
            raise c.InvalidArgument(1, f"{name} has gaps, expected a contiguous tensor")
        if is_written and isinstance(value, numpy.ndarray) and not value.flags.writeable:
            raise c.InvalidArgument(1, f"{name} is read-only")
        self.address, self.nbytes = address, math.prod(self.shape) * item
        self.flat = view_of(address, "uint8", [self.nbytes], value)

    @property
    def rows(self):
        first = self.shape[0]
        return self.flat.reshape(first, self.nbytes // first if first else 0)


def item_bytes(dtype):
    """Returns the bytes of an element of a type of torch or numpy."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return torch.empty(0, dtype=dtype).element_size()
    return numpy.dtype(dtype).itemsize


def as_moved(x):
    """Returns rows of any type, [T, H], as rows of a type that dispatches move, and a function that
    gives received rows, [any, as wide], the type of `x` again."""
    torch = sys.modules["torch"] if is_torch(x) else None
    name = str(x.dtype).rpartition(".")[2]
    if name in ("bfloat16", "float8_e4m3fn", "int8") or torch is None and name in ("uint16", "uint8"):
        return x, lambda rows: rows
    if len(x.shape) != 2:
        return x, lambda rows: rows  # The library refuses it.
    item = item_bytes(x.dtype)
    if torch is None:
        kind, contiguous = numpy.dtype("uint16" if item == 2 else "int8"), numpy.ascontiguousarray
    else:
        kind, contiguous = torch.bfloat16 if item == 2 else torch.int8, torch.Tensor.contiguous

    def viewed(rows, dtype, width):
        # The last stride of an empty tensor may be anything, so that it cannot be viewed.
        if 0 in tuple(rows.shape):
            return numpy.empty([len(rows), width], dtype) if torch is None else \
                rows.new_empty([len(rows), width], dtype=dtype)
        return contiguous(rows).view(dtype)

    wide = x.shape[1] * item // item_bytes(kind)
    return viewed(x, kind, wide), lambda rows: viewed(rows, x.dtype, x.shape[1])

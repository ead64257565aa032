# SPDX-License-Identifier: MIT
"""Arrays of Python as tensors of the library, and back.

An array is a numpy array, a torch tensor on the CPU, or anything with the buffer protocol or
``__dlpack__``. numpy has neither bfloat16 nor float8: uint16 stands for bfloat16 and uint8 for
float8_e4m3fn, in arguments and in results.
"""

import ctypes
import sys

import numpy

from . import _library as c

_codes = {"bool": (6, 8), "int8": (0, 8), "int32": (0, 32), "int64": (0, 64), "float32": (2, 32),
          "bfloat16": (4, 16), "uint16": (4, 16), "float8_e4m3fn": (10, 8), "uint8": (10, 8)}
_names = {(6, 8): "bool", (0, 8): "int8", (0, 32): "int32", (0, 64): "int64", (2, 32): "float32",
          (4, 16): "uint16", (10, 8): "uint8"}
_torch_names = {(4, 16): "bfloat16", (10, 8): "float8_e4m3fn"}


def is_torch(value):
    """Returns whether `value` is a tensor of torch, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class _DLManaged(ctypes.Structure):
    _fields_ = [("tensor", c.Tensor)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Given:
    """A view of an argument. It keeps the argument alive."""

    def __init__(self, value, name):
        self.value = value
        if is_torch(value):
            if value.device.type != "cpu":
                raise TypeError(f"{name} is on {value.device}, expected the CPU: call .cpu()")
            self._fill(value.data_ptr(), str(value.dtype)[len("torch."):], value.shape,
                       value.stride(), name)
        elif hasattr(value, "__dlpack__") and not isinstance(value, numpy.ndarray):
            self.capsule = value.__dlpack__()
            at = _capsule_pointer(self.capsule, b"dltensor")
            self.tensor = _DLManaged.from_address(at).tensor
        else:
            array = self.value = numpy.asarray(value)
            if array is not value and not isinstance(value, (memoryview, bytearray)):
                raise TypeError(f"{name} is {type(value).__name__}, expected an array")
            self._fill(array.ctypes.data, array.dtype.name, array.shape,
                       [stride // array.itemsize for stride in array.strides], name)
        self.pointer = ctypes.pointer(self.tensor)

    def _fill(self, address, dtype, shape, strides, name):
        if dtype not in _codes:
            raise TypeError(f"{name} has {dtype}, expected one of {', '.join(_codes)} "
                            "(uint16 stands for bfloat16, uint8 for float8_e4m3fn)")
        code, bits = _codes[dtype]
        extents = ctypes.c_int64 * max(1, len(shape))
        self.tensor = c.Tensor(address, 1, 0, len(shape), code, bits, 1, extents(*shape),
                               extents(*strides), 0)


def given(value, name):
    """Returns a view of an argument, or None."""
    return None if value is None else Given(value, name)


def pointer(view):
    """Returns what a structure of the library takes for a view, or for None."""
    return None if view is None else view.pointer


def view_of(address, dtype, shape, owner, strides=None):
    """Returns a numpy array over memory of the library, which keeps `owner` alive."""
    dtype = numpy.dtype(dtype)
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) \
        if strides is not None else numpy.prod(shape, dtype=int)
    if 0 in shape or not address:
        return numpy.empty(shape, dtype)
    memory = (ctypes.c_char * (int(span) * dtype.itemsize)).from_address(address)
    memory.owner = owner  # The array refers to `memory`.
    flat = numpy.frombuffer(memory, dtype)
    if strides is None:
        return flat.reshape(shape)
    return numpy.lib.stride_tricks.as_strided(
        flat, shape, [stride * dtype.itemsize for stride in strides])


def result(array, owner, like_torch):
    """Returns an array of the library as a numpy array, or as a torch tensor; None for none."""
    if array.ndim == 0:
        return None
    shape, strides = list(array.shape)[:array.ndim], list(array.strides)[:array.ndim]
    kind = (array.dtype_code, array.dtype_bits)
    view = view_of(array.data, _names[kind], shape, owner, strides)
    if not like_torch:
        return view
    torch = sys.modules["torch"]
    wanted = getattr(torch, _torch_names.get(kind, _names[kind]), None)
    if kind == (4, 16):
        view = view.view("int16")  # torch has no uint16 before 2.3.
    tensor = torch.from_numpy(view)
    return tensor if wanted is None or tensor.dtype == wanted else tensor.view(wanted)

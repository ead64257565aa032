# SPDX-License-Identifier: MIT
"""Arrays of Python as tensors of the library, and back.

An array is a numpy array, a torch tensor on the CPU, or anything with the buffer protocol or
``__dlpack__``. numpy has neither bfloat16 nor float8: uint16 stands for bfloat16 and uint8 for
float8_e4m3fn, in arguments and in results.
"""

import ctypes
import math
import sys

import numpy

from . import _library as c

_codes = {"bool": (6, 8), "int8": (0, 8), "int32": (0, 32), "int64": (0, 64), "float32": (2, 32),
          "bfloat16": (4, 16), "uint16": (4, 16), "float8_e4m3fn": (10, 8), "uint8": (10, 8)}
_names = {(6, 8): "bool", (0, 8): "int8", (0, 32): "int32", (0, 64): "int64", (2, 32): "float32",
          (4, 16): "uint16", (10, 8): "uint8"}
_kinds = {numpy.dtype(name): kind for name, kind in _codes.items()
          if name not in ("bfloat16", "float8_e4m3fn")}
_dtypes = {kind: numpy.dtype(name) for kind, name in _names.items()}
_renamed_codes = (4, 10)  # Of types for which integers of numpy stand.
_bf16 = "bfloat16 (uint16 of numpy)"
_fp8 = "float8_e4m3fn (uint8 of numpy)"
# The types that calls take for an argument, by its name.
_wanted = {"x": f"{_bf16} or {_fp8}", "tokens": f"{_bf16} or {_fp8}", "bias": _bf16, "out": _bf16,
           "topk_idx": "int64 or int32", "experts": "int64 or int32", "topk_weights": "float32",
           "weights": "float32", "x_scales": "float32, int32, uint8 or int8", "is_token_in_rank": "bool",
           "num_tokens_per_rank": "int32", "num_tokens_per_expert": "int32", "mask_status": "int32",
           "cumulative_local_expert_recv_stats": "int32", "dispatch_wait_recv_cost_stats": "int64",
           "combine_wait_recv_cost_stats": "int64"}
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

    codes = _codes  # What it accepts by name, and
    kinds = _kinds  # by numpy's dtype.

    def __init__(self, value, name):
        self.value = value
        if type(value) is numpy.ndarray:
            if not self._take_capsule(value):
                self._fill_from(value, name)
        elif is_torch(value):
            if value.device.type != "cpu":
                raise TypeError(f"{name} is on {value.device}, expected the CPU: call .cpu()")
            self._fill(value.data_ptr(), str(value.dtype)[len("torch."):], value.shape,
                       value.stride(), name)
        elif hasattr(value, "__dlpack__") and not isinstance(value, numpy.ndarray):
            self.capsule = value.__dlpack__()
            self.pointer = _capsule_pointer(self.capsule, b"dltensor")
            device = c.Tensor.from_address(self.pointer).device_type
            if device != 1:
                raise TypeError(f"{name} is on DLPack's device type {device}, expected 1, the CPU")
        else:
            self.value = _array_over(value, name)
            self._fill_from(self.value, name)

    def _take_capsule(self, array):
        """Takes the view that numpy makes, in a third of the time. Returns whether it makes one: not
        of read-only arrays, nor of bool, nor before numpy 1.22."""
        kind = self.kinds.get(array.dtype)
        if kind is None:
            return False
        try:
            self.capsule = array.__dlpack__()
        except (AttributeError, BufferError, TypeError):
            return False
        self.pointer = _capsule_pointer(self.capsule, b"dltensor")
        if kind[0] in _renamed_codes:
            c.Tensor.from_address(self.pointer).dtype_code = kind[0]
        return True

    def _types(self, name):
        """Returns the types that the argument of this name takes, in words."""
        return _wanted.get(name) or (f"one of {', '.join(self.codes)} (uint16 stands for bfloat16, "
                                     "uint8 for float8_e4m3fn)")

    @property
    def tensor(self):
        """The structure at `pointer`. It keeps this view alive."""
        tensor = c.Tensor.from_address(self.pointer)
        tensor.owner = self
        return tensor

    @property
    def address(self):
        """The address of the first element."""
        tensor = c.Tensor.from_address(self.pointer)
        return (tensor.data or 0) + tensor.byte_offset

    def _fill_from(self, array, name):
        if not array.dtype.isnative:
            raise TypeError(f"{name} has {array.dtype}, expected this machine's byte order")
        if any(stride % array.itemsize for stride in array.strides):  # A field of a structure.
            raise c.InvalidArgument(1, f"{name} has strides of {list(array.strides)} bytes, expected "
                                       f"multiples of {array.itemsize}, the size of its elements")
        self._fill(array.ctypes.data, array.dtype.name, array.shape,
                   [stride // array.itemsize for stride in array.strides], name)

    def _fill(self, address, dtype, shape, strides, name):
        if dtype not in self.codes:
            raise TypeError(f"{name} has {dtype}, expected {self._types(name)}")
        code, bits = self.codes[dtype]
        extents = ctypes.c_int64 * max(1, len(shape))
        self.filled = c.Tensor(address, 1, 0, len(shape), code, bits, 1, extents(*shape),
                               extents(*strides), 0)
        self.pointer = ctypes.addressof(self.filled)


def _array_over(value, name):
    """Returns a numpy array over the memory of an object with the buffer protocol, such as an instance
    of a class derived from numpy's array."""
    if isinstance(value, numpy.ma.MaskedArray):
        raise TypeError(f"{name} is {type(value).__name__}, expected an array without a mask")
    if isinstance(value, numpy.ndarray):
        return value.view(numpy.ndarray)
    try:
        return numpy.asarray(memoryview(value))
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {type(value).__name__}, expected an array") from None


def has_gaps(tensor):
    """Returns whether the elements of a tensor of the library do not lie one after another."""
    if 0 in tensor.shape[:tensor.ndim]:
        return False
    step = 1
    for d in reversed(range(tensor.ndim)):
        if tensor.strides and tensor.shape[d] > 1 and tensor.strides[d] != step:
            return True
        step *= tensor.shape[d]
    return False


def contiguous(value, name, kind=Given):
    """Returns a view of `value`, or of a copy of it if it has gaps."""
    if isinstance(value, numpy.ndarray) and not value.flags.c_contiguous:
        return kind(numpy.array(value, order="C", subok=True), name)
    view = kind(value, name)
    if not has_gaps(view.tensor):
        return view
    return kind(value.contiguous() if hasattr(value, "contiguous")
                else numpy.ascontiguousarray(value), name)


def as_numpy(array):
    """Returns a numpy view of a torch tensor on the CPU, or the numpy array itself."""
    return array.numpy() if is_torch(array) else array


def array_of(values, dtype, name, dimensions):
    """Returns an argument, which may be a list, as a contiguous array of numpy of type int64 or float64."""
    if is_torch(values):
        values = values.detach().cpu()
        values = (values.double() if dtype == numpy.float64 else values).numpy()
    array = numpy.asarray(values)
    if array.ndim != dimensions:
        raise c.InvalidArgument(1, f"{name} has {array.ndim} dimensions, expected {dimensions}")
    if dtype == numpy.int64 and array.dtype.kind not in "iu" or array.dtype.kind not in "iuf":
        raise TypeError(f"{name} has {array.dtype}, expected numbers"
                        f"{'' if dtype == numpy.float64 else ' without a fraction'}")
    return numpy.ascontiguousarray(array, dtype)


def like(array, values):
    """Returns a numpy array as a torch tensor if `array` is one."""
    return sys.modules["torch"].from_numpy(values) if is_torch(array) else values


def empty_like(array, shape):
    """Returns an array of the kind and type of another, with other sizes and unset elements."""
    if is_torch(array):
        return array.new_empty(tuple(shape))
    return numpy.empty(shape, array.dtype)


def require_writable(view, name):
    """Requires that the memory of a view may be written. Only numpy says whether it may."""
    if isinstance(view.value, numpy.ndarray) and not view.value.flags.writeable:
        raise c.InvalidArgument(1, f"{name} is read-only")


def given(value, name):
    """Returns a view of an argument, or None."""
    return None if value is None else Given(value, name)


def given_to_write(value, name):
    """Returns a view of an argument that the call writes, or None."""
    if value is None:
        return None
    view = Given(value, name)
    require_writable(view, name)
    return view


def pointer(view):
    """Returns what a structure of the library takes for a view, or for None."""
    return None if view is None else view.pointer


def view_of(address, dtype, shape, owner):
    """Returns a numpy array over memory of the library, which keeps `owner` alive."""
    dtype = numpy.dtype(dtype)
    if 0 in shape or not address:
        return numpy.empty(shape, dtype)
    return numpy.ndarray(shape, dtype, _memory(
        ctypes.c_char * (dtype.itemsize * math.prod(shape)), address, owner))


def _memory(kind, address, owner):
    """Returns memory of the library for an array, which then refers to `owner`."""
    memory = kind.from_address(address)
    memory.owner = owner
    return memory


class _Form:
    """The form of an array of the library: what making a numpy array over its memory takes."""

    def __init__(self, array):
        self.address = array.data
        self.shape = tuple(array.shape[:array.ndim])
        self.kind = (array.dtype_code, array.dtype_bits)
        self.dtype = _dtypes[self.kind]
        self.strides = tuple(stride * self.dtype.itemsize for stride in array.strides[:array.ndim])
        self.is_empty = 0 in self.shape or not self.address
        # The first stride is the largest of all tensors of the library.
        self.memory = ctypes.c_char * (0 if self.is_empty else self.shape[0] * self.strides[0])


# The forms of the latest arrays, by the bytes of their structures: a buffer gives the same ones again
# and again, and to make a form takes longer than to make an array.
_forms = {}
_most_forms = 256


def result(array, owner, like_torch):
    """Returns an array of the library as a numpy array, or as a torch tensor; None for none."""
    if array.ndim == 0:
        return None
    key = bytes(array)
    form = _forms.get(key)
    if form is None:
        if len(_forms) >= _most_forms:
            _forms.clear()
        form = _forms[key] = _Form(array)
    view = numpy.empty(form.shape, form.dtype) if form.is_empty else numpy.ndarray(
        form.shape, form.dtype, _memory(form.memory, form.address, owner), 0, form.strides)
    return _as_torch(view, form.kind) if like_torch else view


def _as_torch(view, kind):
    torch = sys.modules["torch"]
    wanted = getattr(torch, _torch_names.get(kind, _names[kind]), None)
    if kind == (4, 16):
        view = view.view("int16")  # torch has no uint16 before 2.3.
    tensor = torch.from_numpy(view)
    return tensor if wanted is None or tensor.dtype == wanted else tensor.view(wanted)


def view_like(array, values, kind):
    """Returns a numpy array over memory of the library, whose elements have the type `kind` of the
    library, as a torch tensor if `array` is one."""
    return _as_torch(values, kind) if is_torch(array) else values


def bits_of(array, name, shape):
    """Returns the bits of an array of bfloat16 as uint16 of numpy, without gaps. Requires the shape."""
    view = contiguous(array, name)
    tensor = view.tensor
    if (tensor.dtype_code, tensor.dtype_bits) != _codes["bfloat16"]:
        raise TypeError(f"{name} has {getattr(array, 'dtype', 'another type')}, expected {_bf16}")
    if list(tensor.shape[:tensor.ndim]) != list(shape):
        raise c.InvalidArgument(1, f"{name} are {list(tensor.shape[:tensor.ndim])}, expected "
                                   f"{list(shape)}")
    return view_of(view.address, "uint16", shape, view)

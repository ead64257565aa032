# SPDX-License-Identifier: MIT
"""What structures of the library have in common."""

import ctypes
from ctypes import c_int32, c_int64, c_uint32, c_uint64

from ._errors import InvalidArgument

_ranges = {c_int32: (-1 << 31, (1 << 31) - 1), c_uint32: (0, (1 << 32) - 1),
           c_int64: (-1 << 63, (1 << 63) - 1), c_uint64: (0, (1 << 64) - 1)}


class Struct(ctypes.Structure):
    """A structure of peerbus.h that begins with its size. It refuses numbers that do not fit, which
    ctypes would cut off."""

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        cls._limits = {name: _ranges[kind] for name, kind in cls._fields_ if kind in _ranges}

    def __init__(self, **members):
        for name, value in members.items():
            limits = self._limits.get(name)
            try:
                fits = limits is None or limits[0] <= value <= limits[1]
            except (TypeError, ValueError):  # No number, as ctypes will say.
                fits = True
            if not fits:
                raise InvalidArgument(1, f"{name} is {value}, expected {limits[0]} to {limits[1]}")
        super().__init__(struct_bytes=ctypes.sizeof(self), **members)

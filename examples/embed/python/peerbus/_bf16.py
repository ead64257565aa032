# SPDX-License-Identifier: MIT
"""bfloat16 in numpy, which does not have it: uint16 arrays with its bits."""

import numpy


def to_bf16(values):
    """Returns the bits of `values` (float32, or what numpy turns into it) as bfloat16: uint16 of the
    same shape. Rounds to the nearest, ties to even, too large ones to infinity. NaN stays NaN."""
    values = numpy.asarray(values, numpy.float32)
    bits = values.view(numpy.uint32)
    rounded = (bits + (0x7fff + (bits >> 16 & 1)).astype(numpy.uint32)) >> 16
    # To round the bits of NaN could give infinity; the quiet bit keeps one whose others are cut off.
    return numpy.where(numpy.isnan(values), bits >> 16 | 0x40, rounded).astype(numpy.uint16)


def from_bf16(bits):
    """Returns bfloat16 values, given by their bits in an uint16 array, as float32 of the same shape.
    Exact."""
    bits = numpy.asarray(bits)
    if bits.dtype != numpy.uint16:
        raise TypeError(f"bits has {bits.dtype}, expected uint16")
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)

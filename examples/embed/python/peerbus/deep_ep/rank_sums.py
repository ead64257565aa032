# SPDX-License-Identifier: MIT
"""The sums that a rank makes of its rows of a token, as DeepEP does before it sends them home."""

import sys

import numpy

from .._bf16 import from_bf16, to_bf16
from .._tensors import is_torch
from .results import copy

_most_elements = 1 << 20  # At a time, so that the sums stay in the cache.


def rank_sums(x, slots):
    """Returns the rows of an expanded combine, bfloat16 [M, H], in which one row of each token, that
    of its last slot, is the sum of all its rows here, added in float32 in the order of the slots and
    rounded; the others are zeros. `slots` are the rows of each token's slots, int32 [N, K], or -1.
    Returns `x` itself if no token has two rows; otherwise a copy."""
    several = slots[(slots >= 0).sum(axis=1) > 1]
    if len(several) == 0:
        return x
    x = copy(x)
    bits = x
    if is_torch(x):
        bits = x.detach().view(sys.modules["torch"].int16).numpy().view(numpy.uint16)
    step = max(1, _most_elements // max(1, bits.shape[1]))
    for begin in range(0, len(several), step):
        rows = several[begin:begin + step]
        total = numpy.zeros([len(rows), bits.shape[1]], numpy.float32)
        last = numpy.empty(len(rows), rows.dtype)
        with numpy.errstate(all="ignore"):
            for slot in rows.T:
                here = slot >= 0
                total[here] += from_bf16(bits[slot[here]])
                last[here] = slot[here]
        bits[rows[rows >= 0]] = 0
        bits[last] = to_bf16(total)
    return x


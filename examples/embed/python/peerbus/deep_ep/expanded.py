# SPDX-License-Identifier: MIT
"""Rows by expert, made of a rank's rows by token, and added up to rows by token again."""

import numpy

from .. import _library as c
from .._tensors import as_numpy, empty_like, given, is_torch
from .raw import Bytes


class Expansion:
    """Where the rows of each expert lie: by expert, then by token, those of each expert beginning at a
    multiple of `alignment`. `slots` [N, K] has the row of each slot of each token, or -1."""

    def __init__(self, local_ids, experts, alignment):
        """`local_ids` [N, K] are the experts of the slots, or -1."""
        tokens, slots = numpy.nonzero(local_ids >= 0)
        order = numpy.argsort(local_ids[tokens, slots], kind="stable")
        tokens, slots = tokens[order], slots[order]
        self.counts = numpy.bincount(local_ids[tokens, slots], minlength=experts)
        self.aligned = -(-self.counts // alignment) * alignment
        self.begins = self.aligned.cumsum() - self.aligned
        self.ends, self.size = self.begins + self.counts, int(self.aligned.sum())
        last = self.counts.cumsum()
        self._tokens = [tokens[end - count:end] for count, end in zip(self.counts, last)]
        rows = numpy.arange(len(tokens)) + numpy.repeat(self.ends - last, self.counts)
        self.slots = numpy.full(local_ids.shape, -1, numpy.int32)
        self.slots[tokens, slots] = rows

    def rows_of(self, array, fills_gaps):
        """Returns the rows of an array [N, any], each copied to its experts. Gaps are zeros or unset."""
        if array is None:
            return None
        made = empty_like(array, [self.size, *array.shape[1:]])
        if 0 in tuple(made.shape):
            return made
        source, target = Bytes(array, "rows").rows, Bytes(made, "rows").rows
        nexts = [*self.begins[1:], self.size]
        for begin, end, after, tokens in zip(self.begins, self.ends, nexts, self._tokens):
            if end > begin:
                # No index is out of bounds, and other modes copy twice.
                numpy.take(source, tokens, axis=0, out=target[begin:end], mode="clip")
            if fills_gaps:
                target[end:after] = 0
        return made

    def weights_of(self, weights, fills_gaps):
        """Returns the weight of each row, [M], of those of the slots, [N, K]."""
        made = empty_like(weights, [self.size])
        values = as_numpy(made)
        if fills_gaps:
            values[:] = 0
        held = self.slots >= 0
        values[self.slots[held]] = as_numpy(weights)[held]
        return made


def fold_rows(call, x, slots, rows):
    """Returns [N, H]: the sums of each token's rows of `x`, bfloat16 [`rows`, H], added in float32 in
    the order of `slots` [N, K] and rounded, as DeepEP does before it sends them home."""
    wanted = "torch.bfloat16" if is_torch(x) else "uint16"
    if str(x.dtype) != wanted or len(x.shape) != 2 or len(x) < rows:
        raise c.InvalidArgument(1, f"{call}: x is {x.dtype} {list(x.shape)}, expected {wanted} "
                                   f"[{rows}, any]")
    made = empty_like(x, [len(slots), x.shape[1]])
    views = given(x, "x"), given(slots, "slots"), given(made, "sums")
    c.check(c.lib.peerbus_fold_rows(*(view.pointer for view in views)))
    return made


def fold_weights(call, weights, slots, rows):
    """Returns the weights of slots, [N, K], of those of rows, [`rows`] or more; 0 for a slot of none."""
    if weights is None:
        return None
    values = as_numpy(weights)
    if values.dtype != numpy.float32 or values.ndim != 1 or len(values) < rows:
        raise c.InvalidArgument(1, f"{call}: topk_weights are {weights.dtype} {list(weights.shape)}, "
                                   f"expected float32 [{rows}]")
    made = empty_like(weights, slots.shape)
    held = slots >= 0
    as_numpy(made)[:] = 0
    as_numpy(made)[held] = values[slots[held]]
    return made

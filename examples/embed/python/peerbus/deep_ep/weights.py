# SPDX-License-Identifier: MIT
"""The transfer of experts' weights to spare slots of other ranks."""

import zlib

import numpy

from .. import _library as c
from .._tensors import Given, view_of
from .words import Words


class WeightMover:
    """Pushes weights by one-sided writes, through windows of the size of a rank's spare slots."""

    def __init__(self, comm):
        self._comm, self._words, self._windows = comm, Words(comm), {}

    def move(self, spare, own, mapping):
        """Collective; contract as `EPBuffer.lb_prefetch_weights`."""
        problem, agreed = None, None
        try:
            target, slot_type = _bytes_of(spare, "redundant_expert_weights")
            source, type_of_own = _bytes_of(own, "expert_weights")
            if slot_type != type_of_own:
                raise c.InvalidArgument(1, "lb_prefetch_weights: redundant_expert_weights and "
                                           "expert_weights have different types")
            plan = self._plan(mapping, target, source)
            agreed = str((plan.tolist(), target.shape[1], len(source), slot_type))
        except (TypeError, ValueError) as found:
            problem = found
        self._agree(agreed, problem)
        shape = target.shape
        if shape not in self._windows:
            self._windows[shape] = self._comm.window(max(1, shape[0] * shape[1]))
        window, local = self._windows[shape], len(source)
        for rank, experts in enumerate(plan):
            for slot, expert in enumerate(experts):
                if expert >= 0 and expert // local == self._comm.rank:
                    window.put(rank, slot * shape[1], source[expert % local])
        self._comm.barrier()
        arrived = window.part(self._comm.rank)[:shape[0] * shape[1]].reshape(shape)
        used = plan[self._comm.rank] >= 0
        target[used] = arrived[used]
        self._comm.barrier()  # Nobody writes again before all have read.

    def _plan(self, mapping, target, source):
        plan = numpy.asarray(mapping)
        size, local = self._comm.size, len(source)
        call = "lb_prefetch_weights: "
        if plan.dtype != numpy.int32 or plan.ndim != 2 or plan.shape != (size, len(target)):
            raise c.InvalidArgument(1, f"{call}redundancy_mapping is {plan.dtype} {list(plan.shape)},"
                                       f" expected int32 [{size}, {len(target)}]")
        if target.shape[1] != source.shape[1] or target.shape[1] % 32:
            raise c.InvalidArgument(1, f"{call}an expert has {source.shape[1]} bytes and a slot "
                                       f"{target.shape[1]}, expected equal multiples of 32")
        bad = (plan < -1) | (plan >= size * local) | (plan // local == numpy.arange(size)[:, None])
        bad &= plan != -1
        if bad.any():
            rank, slot = numpy.argwhere(bad)[0]
            raise c.InvalidArgument(1, f"{call}redundancy_mapping[{rank}, {slot}] is "
                                       f"{plan[rank, slot]}, expected -1, or an expert of another "
                                       f"rank below {size * local}")
        return plan

    def _agree(self, agreed, problem):
        """Collective: raises on all ranks unless each has equal arguments that fit."""
        words = self._words.gather(0 if agreed is None else zlib.crc32(agreed.encode()) + 1)
        if problem is not None:
            raise problem
        refusing = numpy.flatnonzero(words == 0)
        if len(refusing):
            raise c.Refused(8, f"lb_prefetch_weights: rank {refusing[0]} refused its arguments")
        others = numpy.flatnonzero(words != words[0])
        if len(others):
            raise c.Error(3, "lb_prefetch_weights: redundancy_mapping, or the number, size or type of "
                             f"experts, on rank {', '.join(map(str, others))} differ from those of "
                             "rank 0")


def _bytes_of(array, name):
    """Returns the memory of an array as uint8 [first size, bytes of the rest], and its type."""
    given = Given(array, name)
    view = given.tensor
    sizes = list(view.shape[:view.ndim])
    strides, step = list(view.strides[:view.ndim]) if view.strides else None, 1
    for size, stride in zip(reversed(sizes), reversed(strides or [])):
        if size > 1 and stride != step:
            raise c.InvalidArgument(1, f"{name} has gaps, expected a contiguous tensor")
        step *= size
    nbytes = int(numpy.prod(sizes[1:], dtype=int)) * view.dtype_bits // 8
    kind = view.dtype_code, view.dtype_bits
    return view_of(given.address, "uint8", [sizes[0], nbytes], array), kind

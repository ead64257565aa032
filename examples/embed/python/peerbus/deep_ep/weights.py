# SPDX-License-Identifier: MIT
"""The transfer of experts' weights to spare slots of other ranks, and of gradients back."""

import numpy

from .. import _library as c
from .raw import Bytes
from .words import Words


class WeightMover:
    """Moves rows through windows of the size of a rank's spare slots, by one-sided accesses."""

    def __init__(self, comm):
        self._comm, self._words, self._windows = comm, Words(comm), {}

    def move(self, spare, own, mapping):
        """Collective; contract as `EPBuffer.lb_prefetch_weights`."""
        call = "lb_prefetch_weights"
        targets, sources, plan, sizes = self._agree(call, mapping, lambda: (
            _rows_of(spare, "redundant_expert_weights", is_written=True),
            _rows_of(own, "expert_weights")))
        slots, slot_bytes, local = plan.shape[1], sum(sizes), len(sources[0])
        window = self._window(slots, slot_bytes)
        begins = [sum(sizes[:i]) for i in range(len(sizes))]  # Of each tensor's part of a slot.
        for rank, experts in enumerate(plan):
            for slot, expert in enumerate(experts):
                if expert >= 0 and expert // local == self._comm.rank:
                    for begin, source in zip(begins, sources):
                        window.put(rank, slot * slot_bytes + begin, source[expert % local])
        self._comm.barrier()
        arrived = window.part(self._comm.rank)[:slots * slot_bytes].reshape(slots, slot_bytes)
        used = plan[self._comm.rank] >= 0
        for begin, size, target in zip(begins, sizes, targets):
            target[used] = arrived[used, begin:begin + size]
        self._comm.barrier()  # Nobody writes again before all have read.

    def reduce(self, spare, own, mapping):
        """Collective; contract as `EPBuffer.lb_reduce_grads`."""
        call = "lb_reduce_grads"

        def tensors():
            for name, tensor in (("redundant_expert_grads", spare), ("expert_grads", own)):
                if not str(tensor.dtype).endswith("float32") or len(tensor.shape) != 2:
                    raise c.InvalidArgument(1, f"{call}: {name} is {tensor.dtype} "
                                               f"{list(tensor.shape)}, expected float32 [any, any]")
            return (_rows_of(spare, "redundant_expert_grads"),
                    _rows_of(own, "expert_grads", is_written=True))

        (terms,), (sums,), plan, (row_bytes,) = self._agree(call, mapping, tensors)
        slots, local = plan.shape[1], len(sums)
        window = self._window(slots, row_bytes)
        window.part(self._comm.rank)[:slots * row_bytes] = terms.reshape(-1)
        self._comm.barrier()
        sums, near = sums.view(numpy.float32), set(self._comm.near_ranks)
        with numpy.errstate(all="ignore"):
            for rank, experts in enumerate(plan):
                for slot, expert in enumerate(experts):
                    if expert < 0 or expert // local != self._comm.rank:
                        continue
                    begin = slot * row_bytes
                    row = window.part(rank)[begin:begin + row_bytes] if rank in near \
                        else window.get(rank, begin, row_bytes)
                    sums[expert % local] += row.view(numpy.float32)
        self._comm.barrier()  # Nobody writes again before all have read.

    def _agree(self, call, mapping, tensors):
        """Collective: returns the tensors as rows, the plan, and the bytes of a row of each."""
        def arguments():
            spare, own = tensors()
            plan = self._plan(call + ": ", mapping, spare, own)
            sizes = [rows.shape[1] for rows in spare]
            return str((plan.tolist(), sizes, len(own[0]))), (spare, own, plan, sizes)

        return self._words.agree(call, "redundancy_mapping, or the number or size of experts,",
                                 arguments)

    def _window(self, slots, slot_bytes):
        shape = slots, slot_bytes
        if shape not in self._windows:
            self._windows[shape] = self._comm.window(max(1, slots * slot_bytes))
        return self._windows[shape]

    def _plan(self, call, mapping, targets, sources):
        plan = numpy.asarray(mapping)
        size, local, slots = self._comm.size, len(sources[0]), len(targets[0])
        if len(targets) != len(sources):
            raise c.InvalidArgument(1, f"{call}redundant_expert_weights has {len(targets)} tensors and "
                                       f"expert_weights {len(sources)}, expected equal numbers")
        if plan.dtype != numpy.int32 or plan.ndim != 2 or plan.shape != (size, slots):
            raise c.InvalidArgument(1, f"{call}redundancy_mapping is {plan.dtype} {list(plan.shape)},"
                                       f" expected int32 [{size}, {slots}]")
        for i, (target, source) in enumerate(zip(targets, sources)):
            if len(target) != slots or len(source) != local:
                raise c.InvalidArgument(1, f"{call}tensor {i} has {len(target)} slots and "
                                           f"{len(source)} experts, expected {slots} and {local}, as "
                                           "tensor 0")
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


def _rows_of(tensors, name, is_written=False):
    """Returns the memory of a tensor, or of each of a sequence, as uint8 [first size, bytes of each]."""
    listed = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    if not listed:
        raise c.InvalidArgument(1, f"{name} is empty, expected a tensor or a sequence of them")
    made = []
    for tensor in listed:
        memory = Bytes(tensor, name, is_written)
        if not memory.shape:
            raise c.InvalidArgument(1, f"{name} has no dimensions, expected a row for each expert")
        made.append(memory.rows)
    return made

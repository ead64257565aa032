# SPDX-License-Identifier: MIT
"""Version 2.5's BucketBuffer: lists of tensors that are gathered or reduced by one call."""

import functools
import math
import operator
import sys

import numpy

from .. import Communicator, _library as c
from .._bf16 import from_bf16, to_bf16
from .._operands import given_output
from .allocator import ALIGNMENT, BufferAllocator, aligned
from .bucket_call import Call, empty, is_tensor, listed, view_as
from .buffer_base import BufferBase
from .calls import Target
from .event import EventOverlap

_MOST_ROUNDED = 1 << 18  # Elements of a bfloat16 message, so that its copies stay in the cache.


class BucketSession:
    """A time in which the calls of a `BucketBuffer` take tensors that lie anywhere. `with
    buffer.session() as session` opens it; the buffer's memory is then used from its start, so that
    results of an earlier session and tensors of an allocation plan must no longer be needed."""

    alignment, collective_methods = ALIGNMENT, ("all_gather", "reduce_scatter", "all_reduce")

    def __init__(self, buffer):
        self.buffer, self.num_allocated_bytes, self._context = buffer, 0, None

    @property
    def context_idx(self):
        """The index of the group whose calls the session has, or None before the first one."""
        return self._context

    def __enter__(self):
        if self.buffer._session is not None:
            raise c.InvalidArgument(1, "session: another session of the buffer is open, expected none")
        self.num_allocated_bytes, self._context = 0, None
        self.buffer._session = self
        return self

    def __exit__(self, *_):
        self.buffer._session = None

    def allocate(self, shapes, dtype=None, group=None):
        """Returns a tensor of `shapes` in the buffer, with unset elements, or a tuple of them if
        `shapes` is a list of shapes. `dtype` is a type of torch, float32 if it is None, or one of
        numpy, which makes numpy arrays; so does None if torch is not imported."""
        self._use(self.buffer.get_context_idx(group))
        if dtype is None:
            dtype = getattr(sys.modules.get("torch"), "float32", numpy.float32)
        is_batch = len(shapes) > 0 and isinstance(shapes[0], (tuple, list))
        like = empty(dtype)
        item = like.itemsize if isinstance(like, numpy.ndarray) else like.element_size()
        made = []
        for shape in shapes if is_batch else [shapes]:
            count = math.prod(shape)
            address = self._take(count * item)
            made.append(view_as(address, count * item, like, self.buffer._memory).reshape(tuple(shape)))
        return tuple(made) if is_batch else made[0]

    def _take(self, nbytes):
        """Returns the address of the next `nbytes` bytes of the buffer."""
        offset = self.num_allocated_bytes
        if offset + nbytes > self.buffer.num_bytes:
            raise c.OutOfMemory(4, f"BucketBuffer: a session needs {offset + nbytes} bytes, the buffer "
                                   f"has {self.buffer.num_bytes}")
        self.num_allocated_bytes = offset + aligned(nbytes)
        return self.buffer._begin + offset

    def _use(self, context):
        if self._context not in (None, context):
            raise c.InvalidArgument(1, "BucketBuffer: a session has calls of two groups, expected one")
        self._context = context


class BucketBuffer(BufferBase):
    """DeepEP's BucketBuffer of version 2.5: memory of which lists of tensors are gathered and reduced.

    Collective, with equal sizes on all ranks. `group` as in `Buffer`, or a list of groups that share
    the memory; the memory is a window of the first one, whose peers of one host access tensors where they lie.
    Other operands are staged. `allocation_plan_or_num_bytes` is the size in bytes or a
    `BufferAllocator`, whose tensors then lie in the buffer. `sl_idx` and `explicitly_destroy` are
    accepted and have no meaning here; `num_gpu_timeout_secs` is the time limit of calls. `target` as
    in `Buffer`: what it refuses is refused on all ranks alike.

    A call takes one tensor or a list, and is complete when it returns. It returns an event, whose
    `wait()` returns the results: one tensor or a list, as it was given. Tensors are contiguous, lie
    in the buffer (`storage`, `BufferAllocator`, `BucketSession.allocate`) and do not overlap.
    Within `session()` they lie anywhere; sources outside the buffer may have gaps. All ranks of the
    group call the same with equal types and numbers of elements. Otherwise all raise `Error`; if
    the arguments are bad on a rank, it raises `InvalidArgument` or `TypeError` and the others
    `Refused`. No tensor is changed then. A wrong `group` raises on its own rank only. Tensors may
    be empty, and lists too. One call at a time runs on a buffer. Cost: a small message to and from
    each rank, and one collective operation per tensor.
    """

    def __init__(self, group, allocation_plan_or_num_bytes, sl_idx=None, num_gpu_timeout_secs=100,
                 explicitly_destroy=False, *, target=None):
        super().__init__(explicitly_destroy)
        self._target = Target(target)
        planned = isinstance(allocation_plan_or_num_bytes, BufferAllocator)
        plan = allocation_plan_or_num_bytes if planned else None
        if planned:
            plan._require_open()
        self.num_bytes = plan.num_bytes if planned else operator.index(allocation_plan_or_num_bytes)
        self.groups = list(group) if isinstance(group, (list, tuple)) else [group]
        if self.num_bytes <= 0 or not self.groups:
            raise c.InvalidArgument(1, f"BucketBuffer: {self.num_bytes} bytes and {len(self.groups)} "
                                       "groups, expected at least one of each")
        self._session = None
        comms = [Communicator.of_group(each, num_gpu_timeout_secs) for each in self.groups]
        self.comm, self.rank_idx, self.num_ranks = comms[0], comms[0].rank, comms[0].size
        self.runtime, self.contexts = self.comm, comms
        self.nccl_comm_handles = [None] * len(comms)
        window = self.comm.window(self.num_bytes)
        self._memory = window.part(self.rank_idx)
        self._begin = self._memory.__array_interface__["data"][0]
        # (communicator, its team for operands anywhere, its team for operands in the buffer).
        teams = [comm.team() for comm in comms]
        self._contexts = list(zip(comms, teams, [teams[0].in_window(window)] + teams[1:]))
        if planned:
            plan.materialize(self.storage)

    @property
    def storage(self):
        """The memory of this rank as uint8: a tensor of torch if that is imported, otherwise a numpy
        array."""
        torch = sys.modules.get("torch")
        return self._memory if torch is None else torch.from_numpy(self._memory)

    def destroy(self):
        """Ends the use of the buffer. Its memory is released when no tensor refers to it."""
        super().destroy()
        self._contexts, self._session = None, None

    def get_context_idx(self, group):
        """Returns the index of `group` in the list of groups. None is the only one."""
        if self._contexts is None:
            raise c.InvalidArgument(1, "the BucketBuffer was destroyed")
        if group is None and len(self.groups) == 1:
            return 0
        if group is None or group not in self.groups:
            raise c.InvalidArgument(1, f"BucketBuffer: group is {group!r}, expected one of the "
                                       f"{len(self.groups)} groups of the buffer")
        return self.groups.index(group)

    def get_theoretical_num_sms(self, op, group=None):
        """Returns 0, the automatic number: there are no SMs here."""
        if op not in ("all_gather", "reduce_scatter", "all_reduce"):
            raise NotImplementedError(op)
        return 0

    def session(self):
        """Returns a `BucketSession`."""
        return BucketSession(self)

    def barrier(self, wait_comm_stream=True, with_cpu_sync=False, sequential=True, group=None):
        """Collective: returns after all ranks of the group have called it."""
        self._contexts[self.get_context_idx(group)][0].barrier()

    def all_gather(self, srcs, dsts=None, group=None, num_sms=None):
        """Collective: gathers each of `srcs` from all ranks, of any type. Without `dsts` a source lies
        in its place: at shard `rank` of size x itself, which the call fills. With `dsts`, each of them
        has the bytes of all ranks' sources, which may then lie outside the buffer. Results are 1-D
        views of the gathered shards, of the sources' type; in a session that has `dsts`, they are
        `dsts`."""
        def plan(call):
            rank, size = call.rank, call.size
            outputs = [None] * len(call.buckets) if dsts is None else listed(dsts)
            if len(outputs) != len(call.buckets):
                raise call.wrong(f"{len(outputs)} dsts for {len(call.buckets)} srcs")
            for i, (bucket, dst) in enumerate(zip(call.buckets, outputs)):
                bucket.output_nbytes = size * bucket.nbytes
                is_inside = call.is_inside(bucket, i)
                if dst is None:
                    if is_inside:
                        bucket.output = bucket.input - rank * bucket.nbytes
                    else:
                        bucket.output = call.take(bucket.output_nbytes, f"srcs[{i}]")
                    call.require_inside(bucket.output, bucket.output_nbytes,
                                        f"what is gathered around srcs[{i}]")
                else:
                    bucket.result = given_output(dst, f"dsts[{i}]")
                    nbytes = bucket.result.count * (bucket.result.dtype % 256 // 8)
                    if nbytes != bucket.output_nbytes:
                        raise call.wrong(f"dsts[{i}] has {nbytes} bytes, expected {size} ranks x "
                                         f"{bucket.nbytes} = {bucket.output_nbytes}")
                    bucket.output = bucket.result.address
                    if self._session is None:
                        call.require_inside(bucket.output, nbytes, f"dsts[{i}]")
                if not is_inside:
                    # The shard's own place, if peers can read it there.
                    own = bucket.output + rank * bucket.nbytes
                    bucket.stage(own if call.holds(own, bucket.nbytes)
                                 else call.take(bucket.nbytes, f"srcs[{i}]"))
            return ""

        def gather(call, bucket):
            if bucket.output_nbytes != 0:
                call.team.all_gather(call.bytes_at(bucket.input, bucket.nbytes),
                                     out=call.bytes_at(bucket.output, bucket.output_nbytes, bucket))
            if bucket.result is not None and self._session is not None:
                return bucket.result.value
            return call.view(bucket.output, bucket.output_nbytes, bucket)

        return self._call("all_gather", srcs, group, num_sms, plan, gather)

    def reduce_scatter(self, srcs, comm_precision="fp32", scale=1.0, group=None, num_sms=None):
        """Collective: adds each of `srcs` element by element, of float32 and in the order of ranks, and
        multiplies the sums by `scale`. Shard `rank` of a source is replaced by the result, a 1-D view
        of it; the others stay as they are. The number of elements is a multiple of the number of ranks.

        With `comm_precision` "bf16", what other ranks contribute travels as bfloat16, rounded to the
        nearest; the sum is of float32, and this rank's own part is not rounded. DeepEP rounds at
        random. Of a source outside the buffer (`session`), the result is a view of the buffer."""
        def plan(call):
            if comm_precision not in ("fp32", "bf16"):
                raise call.wrong(f"comm_precision is {comm_precision!r}, expected 'fp32' or 'bf16'")
            for i, bucket in enumerate(call.buckets):
                call.place_sum(bucket, i)
                if bucket.source.count % call.size:
                    raise call.wrong(f"srcs[{i}] has {bucket.source.count} elements, expected a "
                                     f"multiple of {call.size} ranks")
            return f", comm_precision {comm_precision}, scale {float(scale)!r}"

        def reduce(call, bucket):
            nbytes = bucket.nbytes // call.size
            if nbytes != 0:
                rows = call.bytes_at(bucket.input, bucket.nbytes).view("f4").reshape(call.size, -1)
                own = rows[call.rank]
                if comm_precision == "fp32":
                    call.team.reduce_scatter(rows, out=own)
                else:
                    _add_rounded(call, rows)
                _scale(own, scale)
            return call.view(bucket.input + call.rank * nbytes, nbytes, bucket)

        return self._call("reduce_scatter", srcs, group, num_sms, plan, reduce)

    def all_reduce(self, srcs, scale=1.0, group=None, num_sms=None):
        """Collective: replaces each of `srcs` by the sum of all ranks', of float32 and in the order of
        ranks, times `scale`. Results are 1-D views with equal bits on all ranks. A source outside the
        buffer (`session`) stays as it is, and its result is a view of the buffer."""
        def plan(call):
            for i, bucket in enumerate(call.buckets):
                call.place_sum(bucket, i)
            return f", scale {float(scale)!r}"

        def reduce(call, bucket):
            if bucket.nbytes != 0:
                values = call.bytes_at(bucket.input, bucket.nbytes).view("f4")
                call.team.all_reduce(values, out=values)
                _scale(values, scale)
            return call.view(bucket.input, bucket.nbytes, bucket)

        return self._call("all_reduce", srcs, group, num_sms, plan, reduce)

    def _call(self, name, srcs, group, num_sms, plan, work):
        """Agrees with the other ranks on the call that `plan(call)` describes, does `work(call,
        bucket)` for each tensor, and returns the event with the results."""
        call = Call(self, name, self.get_context_idx(group))
        is_one = is_tensor(srcs)

        def plan_and_see(planned):
            options = plan(planned)
            if self._target.wanted:
                sizes = [bucket.nbytes for bucket in planned.buckets]
                self._target.see(
                    operation=f"BucketBuffer.{name}", ranks=planned.size, tensors=len(sizes),
                    tensor_bytes=0 if 0 in sizes else functools.reduce(math.gcd, sizes, 0), num_sms=num_sms or 0)
            return options

        call.agree(srcs, plan_and_see)
        for bucket in call.buckets:
            bucket.copy_staged(self._memory)
        results = [work(call, bucket) for bucket in call.buckets]
        event = EventOverlap(results=results[0] if is_one else results)
        event.num_sms = num_sms or 0
        return event


def _scale(values, scale):
    if float(scale) != 1.0:
        with numpy.errstate(all="ignore"):
            values *= numpy.float32(scale)


def _add_rounded(call, rows):
    """Replaces row `rank` of [size, count] by the sum of all ranks', which travel as bfloat16."""
    if call.size == 1:
        return
    step = max(1, _MOST_ROUNDED // call.size)
    for first in range(0, rows.shape[1], step):
        part = rows[:, first:first + step]
        terms = from_bf16(call.base.all_to_all(to_bf16(part)))
        terms[call.rank] = part[call.rank]
        total = part[call.rank]
        total[:] = terms[0]
        with numpy.errstate(all="ignore"):
            for term in terms[1:]:
                total += term

# SPDX-License-Identifier: MIT
"""Version 2.5's BucketBuffer: lists of tensors that are gathered or reduced by one call."""

import hashlib
import math
import operator
import sys

import numpy

from .. import _library as c
from .._operands import Operand, given_output
from .._tensors import contiguous, has_gaps, is_torch, view_of
from .allocator import BufferAllocator, aligned
from .event import EventOverlap
from .results import join

_FLOAT32 = 2 * 256 + 32
_MOST_ROUNDED = 1 << 18  # Elements of a bfloat16 message, so that its copies stay in the cache.


def _to_bf16(values):
    """Returns the bits of float32 values rounded to the nearest bfloat16, ties to even."""
    bits = numpy.ascontiguousarray(values).view(numpy.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7fff)) >> 16
    is_nan = (bits & 0x7fffffff) > 0x7f800000
    return numpy.where(is_nan, (bits >> 16) | 0x40, rounded).astype(numpy.uint16)


def _from_bf16(bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


class _Bucket:
    """A tensor of a call: where its operands lie."""

    def __init__(self, source):
        self.source = source
        self.nbytes = source.count * (source.dtype % 256 // 8)
        self.input = source.address   # The address of the operand; another one if it is staged there.
        self.output = source.address  # The address of what the call writes,
        self.output_nbytes = self.nbytes  # with its size.
        self.result = None  # The tensor of a caller that has the result.

    def stage(self, address):
        self.input = address

    def copy_staged(self, owner):
        """Copies a source that lies elsewhere to its operand."""
        if self.nbytes != 0 and self.input != self.source.address:
            view_of(self.input, "uint8", [self.nbytes], owner)[:] = view_of(
                self.source.address, "uint8", [self.nbytes], self.source)


class BucketSession:
    """A time in which the calls of a `BucketBuffer` take tensors that lie anywhere. `with
    buffer.session() as session` opens it; the buffer's memory is then used from its start, so that
    results of an earlier session and tensors of an allocation plan must no longer be needed."""

    def __init__(self, buffer):
        self.buffer, self.num_allocated_bytes, self._context = buffer, 0, None

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
        like = _empty(dtype)
        item = like.itemsize if isinstance(like, numpy.ndarray) else like.element_size()
        made = []
        for shape in shapes if is_batch else [shapes]:
            count = math.prod(shape)
            address = self._take(count * item)
            made.append(_view(address, count * item, like, self.buffer._memory).reshape(tuple(shape)))
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


class BucketBuffer:
    """DeepEP's BucketBuffer of version 2.5: memory of which lists of tensors are gathered and reduced.

    Collective, with equal sizes on all ranks. `group` as in `Buffer`, or a list of groups that share
    the memory; the memory is a window of the first one, whose peers access tensors where they lie.
    Operands of other groups are staged. `allocation_plan_or_num_bytes` is the size in bytes or a
    `BufferAllocator`, whose tensors then lie in the buffer. `sl_idx` and `explicitly_destroy` are
    accepted and have no meaning here; `num_gpu_timeout_secs` is the time limit of calls.

    A call takes one tensor or a list, and is complete when it returns. It returns an event, whose
    `wait()` returns the results: one tensor or a list, as it was given. Tensors are contiguous, lie in
    the buffer (`storage`, `BufferAllocator`, `BucketSession.allocate`) and do not overlap; within
    `session()` they lie anywhere, and have no gaps only if they lie in the buffer. All ranks of the
    group call the same with equal types and numbers of elements. Otherwise all raise `Error`; if the
    arguments are bad on a rank, it raises `InvalidArgument` or `TypeError` and the others `Refused`.
    No tensor is changed then. A wrong `group` raises on its own rank only. Tensors may be empty, and
    lists too. One call at a time runs on a buffer. Cost: a small message to and from each rank, and
    one collective operation per tensor.
    """

    def __init__(self, group, allocation_plan_or_num_bytes, sl_idx=None, num_gpu_timeout_secs=100,
                 explicitly_destroy=False):
        planned = isinstance(allocation_plan_or_num_bytes, BufferAllocator)
        plan = allocation_plan_or_num_bytes if planned else None
        if planned:
            plan._require_open()
        self.num_bytes = plan.num_bytes if planned else operator.index(allocation_plan_or_num_bytes)
        self.groups = list(group) if isinstance(group, (list, tuple)) else [group]
        if self.num_bytes <= 0 or not self.groups:
            raise c.InvalidArgument(1, f"BucketBuffer: {self.num_bytes} bytes and {len(self.groups)} "
                                       "groups, expected at least one of each")
        self.explicitly_destroy, self._session = explicitly_destroy, None
        comms = [join(each, num_gpu_timeout_secs) for each in self.groups]
        self.comm, self.rank_idx, self.num_ranks = comms[0], comms[0].rank, comms[0].size
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
        self._contexts, self._session = None, None

    def get_context_idx(self, group):
        """Returns the index of `group` in the list of groups. None is the only one."""
        if self._contexts is None:
            raise c.InvalidArgument(1, "the BucketBuffer is destroyed")
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
            outputs = [None] * len(call.buckets) if dsts is None else _listed(dsts)
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
                    raise call.wrong(f"srcs[{i}] has {bucket.source.count} elements, expected a multiple "
                                     f"of {call.size} ranks")
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
        call = _Call(self, name, self.get_context_idx(group))
        is_one = _is_tensor(srcs)
        call.agree(srcs, plan)
        for bucket in call.buckets:
            bucket.copy_staged(self._memory)
        results = [work(call, bucket) for bucket in call.buckets]
        event = EventOverlap(results=results[0] if is_one else results)
        event.num_sms = num_sms or 0
        return event


class _Call:
    """A call on one group: its tensors, and what is wrong with them."""

    def __init__(self, buffer, name, context):
        self.buffer, self.name, self.context, self.buckets = buffer, name, context, []
        comm, self.base, self.team = buffer._contexts[context]
        self.rank, self.size = comm.rank, comm.size

    def wrong(self, problem):
        return c.InvalidArgument(1, f"BucketBuffer.{self.name}: {problem}")

    def holds(self, address, nbytes):
        begin = self.buffer._begin
        return nbytes == 0 or (begin <= address and address + nbytes <= begin + self.buffer.num_bytes)

    def require_inside(self, address, nbytes, what):
        if not self.holds(address, nbytes):
            raise self.wrong(f"{what} does not lie within the buffer of {self.buffer.num_bytes} bytes")

    def take(self, nbytes, what):
        """Returns memory of the session. Raises without one."""
        if self.buffer._session is None:
            raise self.wrong(f"{what} does not lie in the buffer; expected one that does, or a call "
                             "within session()")
        return self.buffer._session._take(nbytes)

    def is_inside(self, bucket, i):
        """Returns whether a source lies in the buffer. Requires that it has no gaps, or copies it."""
        if self.holds(bucket.source.address, bucket.nbytes):
            if has_gaps(bucket.source.tensor):
                raise self.wrong(f"srcs[{i}] has gaps between its elements, expected a contiguous tensor")
            return True
        bucket.source = contiguous(bucket.source.value, f"srcs[{i}]", Operand)
        return False

    def place_sum(self, bucket, i):
        """Places a source that is reduced in the buffer."""
        if bucket.source.dtype != _FLOAT32:
            raise self.wrong(f"srcs[{i}] has {getattr(bucket.source.value, 'dtype', 'another type')}, "
                             "expected float32")
        if not self.is_inside(bucket, i):
            bucket.stage(self.take(bucket.nbytes, f"srcs[{i}]"))
        bucket.output = bucket.input

    def bytes_at(self, address, nbytes, bucket=None):
        """Returns a view of bytes of the buffer, or of the `dst` of a bucket."""
        is_dst = bucket is not None and bucket.result is not None
        return view_of(address, "uint8", [nbytes], bucket.result if is_dst else self.buffer._memory)

    def view(self, address, nbytes, bucket):
        """Returns a 1-D view of bytes of the buffer as a tensor of the kind and type of a source."""
        like = bucket.source
        return _view(address, nbytes, like.value if is_torch(like.value) else like.empty([0]),
                     self.buffer._memory)

    def agree(self, srcs, plan):
        """Compares the call with those of the other ranks. Bad arguments end it on all of them."""
        session = self.buffer._session
        before = session and session.num_allocated_bytes

        def arguments():
            if session is not None:
                session._use(self.context)
            self.buckets = [_Bucket(Operand(src, f"srcs[{i}]")) for i, src in enumerate(_listed(srcs))]
            options = plan(self)
            self._require_apart()
            sizes = ", ".join(f"{bucket.source.count} x {_dtype_name(bucket.source)}"
                              for bucket in self.buckets)
            self.text = f"{self.name} of [{sizes}]{options}"
            digest = hashlib.blake2b(self.text.encode(), digest_size=16).digest()
            given = Operand(numpy.frombuffer(digest, numpy.uint8), "digest")
            made = Operand(numpy.empty([self.size, 16], numpy.uint8), "digests")
            return (given.address, made.address, 16, given.dtype), (given, made), made.value

        try:
            digests = self.base._run("all_gather", arguments, None)
            if (digests != digests[0]).any():
                self._throw_mismatch(digests)
        except Exception as problem:
            if session is not None:
                session.num_allocated_bytes = before
            if isinstance(problem, c.Refused):
                raise c.Refused(problem.code, f"BucketBuffer.{self.name}: {problem}") from None
            raise

    def _throw_mismatch(self, digests):
        text = numpy.zeros(512, numpy.uint8)
        told = self.text.encode()[:len(text)]
        text[:len(told)] = numpy.frombuffer(told, numpy.uint8)
        texts = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in self.base.all_gather(text)]
        other = int((digests != digests[0]).any(axis=1).argmax())
        raise c.Error(3, f"BucketBuffer.{self.name} did not happen: rank 0 called {texts[0]}, rank "
                         f"{other} called {texts[other]}")

    def _require_apart(self):
        """Requires that what the call writes overlaps nothing else that it reads or writes."""
        ranges = []  # (begin, end, whether it is written, number of the tensor)
        for i, bucket in enumerate(self.buckets):
            is_larger = bucket.output_nbytes > bucket.nbytes
            own = bucket.output + (self.rank * bucket.nbytes if is_larger else 0)
            ranges.append((bucket.output, bucket.output + bucket.output_nbytes, True, i))
            if bucket.input != own:
                is_staged = bucket.input != bucket.source.address
                ranges.append((bucket.input, bucket.input + bucket.nbytes, is_staged, i))
            if bucket.source.address not in (own, bucket.input):
                ranges.append((bucket.source.address, bucket.source.address + bucket.nbytes, False, i))
        ranges = sorted(each for each in ranges if each[0] != each[1])
        read_end = written_end = (0, 0)  # (the greatest end so far, number of the tensor)
        for begin, end, is_written, i in ranges:
            last = max(read_end, written_end) if is_written else written_end
            if begin < last[0]:
                raise self.wrong(f"tensors {min(i, last[1])} and {max(i, last[1])} overlap"
                                 if i != last[1] else f"srcs[{i}] and its result overlap, expected srcs "
                                 f"to be shard {self.rank} of it or apart")
            if is_written:
                written_end = max(written_end, (end, i))
            else:
                read_end = max(read_end, (end, i))


def _is_tensor(value):
    return not isinstance(value, (list, tuple))


def _listed(tensors):
    return [tensors] if _is_tensor(tensors) else list(tensors)


def _dtype_name(operand):
    return str(getattr(operand.value, "dtype", operand.dtype)).rpartition(".")[2]


def _empty(dtype):
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return torch.empty(0, dtype=dtype)
    return numpy.empty(0, dtype)


def _view(address, nbytes, like, owner):
    """Returns bytes as a 1-D array of the kind and type of `like`."""
    data = view_of(address, "uint8", [nbytes], owner)
    if is_torch(like):
        return sys.modules["torch"].from_numpy(data).view(like.dtype)
    return data.view(like.dtype)


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
        terms = _from_bf16(call.base.all_to_all(_to_bf16(part)))
        terms[call.rank] = part[call.rank]
        total = part[call.rank]
        total[:] = terms[0]
        with numpy.errstate(all="ignore"):
            for term in terms[1:]:
                total += term

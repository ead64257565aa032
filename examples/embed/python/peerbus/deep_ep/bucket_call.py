# SPDX-License-Identifier: MIT
"""A call of a BucketBuffer: its tensors, where they lie, and what is wrong with them."""

import hashlib
import sys

import numpy

from .. import _library as c
from .._operands import Operand
from .._tensors import contiguous, has_gaps, is_torch, view_of

_FLOAT32 = 2 * 256 + 32


class Bucket:
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


class Call:
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
                raise self.wrong(f"srcs[{i}] has gaps between its elements, expected a contiguous "
                                 "tensor")
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
        return view_as(address, nbytes, like.value if is_torch(like.value) else like.empty([0]),
                     self.buffer._memory)

    def agree(self, srcs, plan):
        """Compares the call with those of the other ranks. Bad arguments end it on all of them."""
        session = self.buffer._session
        before = session and session.num_allocated_bytes

        def arguments():
            if session is not None:
                session._use(self.context)
            self.buckets = [Bucket(Operand(src, f"srcs[{i}]")) for i, src in enumerate(listed(srcs))]
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
        texts = [bytes(row).rstrip(b"\0").decode(errors="replace")
                 for row in self.base.all_gather(text)]
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
                if i != last[1]:
                    raise self.wrong(f"tensors {min(i, last[1])} and {max(i, last[1])} overlap")
                raise self.wrong(f"srcs[{i}] and its result overlap, expected the source to be shard "
                                 f"{self.rank} of the result or apart")
            if is_written:
                written_end = max(written_end, (end, i))
            else:
                read_end = max(read_end, (end, i))


def is_tensor(value):
    return not isinstance(value, (list, tuple))


def listed(tensors):
    return [tensors] if is_tensor(tensors) else list(tensors)


def _dtype_name(operand):
    return str(getattr(operand.value, "dtype", operand.dtype)).rpartition(".")[2]


def empty(dtype):
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return torch.empty(0, dtype=dtype)
    return numpy.empty(0, dtype)


def view_as(address, nbytes, like, owner):
    """Returns bytes as a 1-D array of the kind and type of `like`."""
    data = view_of(address, "uint8", [nbytes], owner)
    if is_torch(like):
        return sys.modules["torch"].from_numpy(data).view(like.dtype)
    return data.view(like.dtype)

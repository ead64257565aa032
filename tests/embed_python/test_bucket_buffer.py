# SPDX-License-Identifier: MIT
"""Tests of DeepEP 2.5's BucketBuffer: the checks of its tests/bucket, written anew from their inputs and
oracles, bit by bit, and what is refused."""

import unittest

import numpy

import peerbus
import peerbus.deep_ep as deep_ep
from ranks import main, needs_torch, raises, run
from test_deep_ep import rounded

COUNTS = (8, 0, 4096, 3 * 1024 + 8)  # Elements of a shard: of no, one and several slices.


def values(rank, bucket, count):
    return numpy.random.default_rng(100 * rank + bucket).standard_normal(count).astype(numpy.float32)


def in_order(terms, scale):
    """Returns the sum of float32 arrays in the order of ranks, times `scale`."""
    total = terms[0].copy()
    for term in terms[1:]:
        total += term
    return total * numpy.float32(scale)


def same(result, expected, what):
    assert result.dtype == expected.dtype, f"{what}: {result.dtype}, expected {expected.dtype}"
    assert result.shape == expected.shape, f"{what}: shape {result.shape}, expected {expected.shape}"
    assert result.tobytes() == expected.tobytes(), f"{what} differs"


def address(array):
    return array.__array_interface__["data"][0]


def places(buffer, counts, dtype="float32"):
    """Returns arrays one after another in the buffer."""
    sizes = [count * numpy.dtype(dtype).itemsize for count in counts]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [buffer.storage[start:start + size].view(dtype) for start, size in zip(starts, sizes)]


def bits_of_bf16(x):
    """Returns `x` as bfloat16 holds it, rounded to the nearest, in float32."""
    return (rounded(x).astype(numpy.uint32) << 16).view(numpy.float32)


def reduced(buffer):
    rank, size = buffer.rank_idx, buffer.num_ranks
    counts = [size * count for count in COUNTS]
    for scale in (1.0, 0.25, -3.0):
        inputs = [[values(each, i, count) for i, count in enumerate(counts)] for each in range(size)]
        srcs = places(buffer, counts)
        for precision in ("fp32", "bf16"):
            for src, given in zip(srcs, inputs[rank]):
                src[:] = given
            handle = buffer.reduce_scatter(srcs, precision, scale, num_sms=4)
            assert handle.num_sms == 4
            for i, (src, dst, count) in enumerate(zip(srcs, handle.wait(), COUNTS)):
                own = slice(rank * count, (rank + 1) * count)
                terms = [inputs[each][i][own] for each in range(size)]
                if precision == "bf16":
                    terms = [term if each == rank else bits_of_bf16(term)
                             for each, term in enumerate(terms)]
                same(dst, in_order(terms, scale), f"reduce_scatter in {precision}")
                assert count == 0 or address(dst) == address(src) + rank * dst.nbytes
                rest = numpy.delete(src, numpy.r_[own])
                same(rest, numpy.delete(inputs[rank][i], numpy.r_[own]), "the other shards")
        for src, given in zip(srcs, inputs[rank]):
            src[:] = given
        for i, (src, dst) in enumerate(zip(srcs, buffer.all_reduce(srcs, scale).wait())):
            same(dst, in_order([each[i] for each in inputs], scale), "all_reduce")
            assert len(src) == 0 or address(dst) == address(src)
    # One tensor, and none.
    one = places(buffer, [size * 6])[0].reshape(2, -1, 3)
    one[:] = rank + 1
    same(buffer.all_reduce(one).wait(),
         numpy.full(size * 6, size * (size + 1) / 2, numpy.float32), "one tensor")
    assert buffer.all_reduce([]).wait() == [] and buffer.all_gather([], []).wait() == []
    assert buffer.reduce_scatter(()).wait() == []
    # What bfloat16 does with the largest numbers, infinities and NaN.
    if size == 2:
        x = places(buffer, [10])[0]
        special = numpy.array([numpy.inf, -numpy.inf, numpy.nan, 3.4e38, 1.0], numpy.float32)
        special.view(numpy.uint32)[2] = 0x7f800001  # A NaN whose upper half is that of infinity.
        x[:] = numpy.concatenate([special, special])
        with numpy.errstate(all="ignore"):
            expected = special + special
            result = buffer.reduce_scatter(x, "bf16").wait()
        same(numpy.isnan(result), numpy.isnan(expected), "NaN")
        same(result[[0, 1, 3, 4]], expected[[0, 1, 3, 4]], "infinities, and what rounds to one")
        x[:] = 1.0 + 2.0 ** -8 + rank * 2.0 ** -7  # Ties, which go to the even.
        own = 1.0 + 2.0 ** -8 + rank * 2.0 ** -7
        other = 1.0 if rank == 1 else 1.0 + 2.0 ** -6
        same(buffer.reduce_scatter(x, "bf16").wait(), numpy.full(5, own + other, numpy.float32), "ties")


def gathered(buffer):
    rank, size = buffer.rank_idx, buffer.num_ranks
    for dtype in ("float32", "uint8", "int64", "uint16"):
        shards = [[(values(each, i, count) * 100).astype(numpy.int8).astype(dtype)
                   for i, count in enumerate(COUNTS[:3])] for each in range(size)]
        expected = [numpy.concatenate([shards[each][i] for each in range(size)]) for i in range(3)]
        whole = places(buffer, [size * count for count in COUNTS[:3]], dtype)
        # In place.
        srcs = [each.reshape(size, -1)[rank] for each in whole]
        for src, given in zip(srcs, shards[rank]):
            src[:] = given
        handle = buffer.all_gather(srcs)
        assert handle.num_sms == 0
        for dst, there, wanted in zip(handle.wait(), whole, expected):
            same(dst, wanted, f"all_gather of {dtype}")
            assert len(there) == 0 or address(dst) == address(there)
        # From anywhere, one in place, one from elsewhere in the buffer, some with gaps.
        for there in whole:
            there[:] = 0
        srcs = list(shards[rank])
        srcs[0] = numpy.repeat(srcs[0], 2)[::2]
        srcs[2] = whole[2].reshape(size, -1)[rank]
        srcs[2][:] = shards[rank][2]
        for dst, there, wanted in zip(buffer.all_gather(srcs, whole).wait(), whole, expected):
            same(dst, wanted, f"all_gather of {dtype} to dsts")
            same(there, wanted, "dsts")
    everything = buffer.storage[64:64 + 8 * size].view("float32")
    apart = buffer.storage[:8].view("float32")
    apart[:] = rank, rank + 0.5
    same(buffer.all_gather(apart, everything).wait().reshape(size, 2)[:, 1],
         numpy.arange(size, dtype=numpy.float32) + numpy.float32(0.5), "from elsewhere in the buffer")


def in_session(buffer):
    rank, size = buffer.rank_idx, buffer.num_ranks
    src = values(rank, 7, size * 6).reshape(3, -1)
    inputs = [values(each, 7, size * 6) for each in range(size)]
    total = in_order(inputs, 0.5)
    before = src.copy()
    with buffer.session() as session:
        raises(peerbus.InvalidArgument, "another session", buffer.session().__enter__)
        same(buffer.all_reduce(src, 0.5).wait(), total, "all_reduce in a session")
        same(buffer.reduce_scatter([src], scale=0.5).wait()[0], total.reshape(size, -1)[rank],
             "reduce_scatter in a session")
        same(src, before, "a source outside the buffer")
        dst = numpy.zeros([size, *src.shape], numpy.float32)
        assert buffer.all_gather(src, dst).wait() is dst
        same(dst.reshape(size, -1), numpy.stack(inputs), "all_gather in a session")
        same(buffer.all_gather([src[:, ::2]]).wait()[0].reshape(size, -1),
             numpy.stack([each.reshape(3, -1)[:, ::2].reshape(-1) for each in inputs]), "gaps")
        # Tensors of the buffer beside others, into others.
        inside, bits = session.allocate([(3, size * 2), (5,)])[0], session.allocate((2, 3), "uint8")
        assert inside.dtype == numpy.float32 and bits.shape == (2, 3) and bits.dtype == numpy.uint8
        inside[:] = src
        others = [numpy.empty(size * size * 6, numpy.float32) for _ in range(2)]
        result = buffer.all_gather([inside, src], others).wait()
        for each, other in zip(result, others):
            assert each is other
            same(other.reshape(size, -1), numpy.stack(inputs), "all_gather of both")
        same(buffer.all_reduce(inside).wait() * numpy.float32(0.5), total, "all_reduce in the buffer")
        used = session.num_allocated_bytes
        if size == 1:
            raises(MemoryError, "the buffer has", buffer.all_reduce,
                   [src, numpy.zeros(buffer.num_bytes // 4, numpy.float32)])
            raises(RuntimeError, "the buffer has", session.allocate, [buffer.num_bytes])
            assert session.num_allocated_bytes == used
    with buffer.session() as session:
        assert session.num_allocated_bytes == 0
        session.allocate([3])
        assert session.num_allocated_bytes == deep_ep.get_num_allocation_alignment()
    everywhere = numpy.zeros(4, numpy.float32)
    if size == 1:
        raises(peerbus.InvalidArgument, "does not lie in the buffer", buffer.all_reduce, everywhere)


def refused(buffer):
    """The last rank gives bad arguments; all ranks raise, nothing changes, and the next call works."""
    rank, size = buffer.rank_idx, buffer.num_ranks
    last = rank == size - 1
    first, second, third = places(buffer, [size * 4, size * 4, size * size * 4])
    first[:], second[:], third[:] = rank, 2, 3
    outside = numpy.ones(size * 4, numpy.float32)

    def all_raise(fragment, call, bad, good, kind=peerbus.InvalidArgument, **options):
        before = buffer.storage.copy()
        if last:
            raises(kind, fragment, call, *bad, **options)
        else:
            raises(peerbus.Refused, f"rank {size - 1} was given", call, *good)
        same(buffer.storage, before, "storage")

    good = ([first, second],)
    for call in (buffer.all_reduce, buffer.reduce_scatter):
        all_raise("srcs[1] does not lie in the buffer", call, ([first, outside],), good)
        all_raise("has uint8, expected float32", call, ([first, buffer.storage[:8]],), good)
        all_raise("srcs[0] has gaps", call, ([first[::2], second],), good)
        all_raise("tensors 0 and 1 overlap", call, ([first, first],), good)
        all_raise("tensors 0 and 1 overlap", call,
                  ([first, buffer.storage[8:8 + first.nbytes].view("float32")],), good)
        all_raise("expected an array", call, ([first, [1.0]],), good, TypeError)
        all_raise("", call, (good[0],), good, ValueError, scale="x")
    all_raise("comm_precision is 'fp8', expected 'fp32' or 'bf16'", buffer.reduce_scatter,
              good + ("fp8",), good)
    if size > 1:
        all_raise(f"expected a multiple of {size} ranks", buffer.reduce_scatter,
                  ([first, second[:-1]],), good)
    gather = buffer.all_gather
    good = ([outside[:4]], [third[:size * 4]])
    all_raise("1 dsts for 2 srcs", gather, ([first, second], [third]), good)
    all_raise("dsts[0] does not lie within the buffer", gather,
              (outside[:4], numpy.zeros(size * 4, numpy.float32)), good)
    all_raise("gaps", gather, (outside[:4], numpy.zeros(size * 8, numpy.float32)[::2]), good)
    all_raise("srcs[0] does not lie in the buffer", gather, (outside,), good)
    if size > 1:
        all_raise(f"dsts[0] has {third.nbytes} bytes, expected {size} ranks x 16", gather,
                  (outside[:4], third), good)
        # A source that is not this rank's shard of its place.
        all_raise("overlap", gather, (first[2:6], first), good)
        all_raise("what is gathered around srcs[0] does not lie within the buffer", gather,
                  (buffer.storage[:8],), good)
    raises(peerbus.InvalidArgument, "expected one of the 1 groups", buffer.all_reduce, first,
           group="other")
    raises(NotImplementedError, "", buffer.get_theoretical_num_sms, "broadcast")
    assert buffer.get_theoretical_num_sms("all_reduce") == 0
    # Calls that differ, and tensors after the first that do.
    before = buffer.storage.copy()
    name = f"rank {size - 1} called"
    if size > 1:
        raises(peerbus.Error, name + f" all_reduce of [{size * 4} x float32], scale 1.0",
               buffer.all_reduce, [first] if last else [first, second])
        raises(peerbus.Error, name + f" all_reduce of [{size * 4} x float32, 4 x float32], scale 1.0",
               buffer.all_reduce, [first, second[:4] if last else second])
        raises(peerbus.Error, name + " all_reduce of", buffer.all_reduce, [first], 2.0 if last else 1.0)
        raises(peerbus.Error, "comm_precision bf16", buffer.reduce_scatter, [first],
               "bf16" if last else "fp32")
        raises(peerbus.Error, name + " all_reduce", buffer.all_reduce if last else buffer.all_gather,
               first.reshape(size, -1)[rank] if not last else first)
    same(buffer.storage, before, "storage")
    same(buffer.all_reduce([first, second]).wait()[1], numpy.full(size * 4, 2.0 * size, "f4"), "after")


def everything():
    comm = peerbus.Communicator()
    size = comm.size
    raises(peerbus.InvalidArgument, "0 bytes and 1 groups", deep_ep.BucketBuffer, comm, 0)
    raises(peerbus.InvalidArgument, "0 groups", deep_ep.BucketBuffer, [], 64)
    buffer = deep_ep.BucketBuffer(comm, size * sum(COUNTS) * 8, explicitly_destroy=True)
    assert (buffer.rank_idx, buffer.num_ranks) == (comm.rank, size)
    reduced(buffer)
    gathered(buffer)
    in_session(buffer)
    refused(buffer)
    buffer.barrier()
    deep_ep.comm.barrier(buffer)
    for domain in (deep_ep.comm.get_physical_domain_size, deep_ep.comm.get_logical_domain_size):
        assert domain(buffer) == domain(comm) == (1, size)
    assert deep_ep.comm.get_comm_stream(buffer).query()
    deep_ep.comm.destroy_all_managed_nccl_comm()
    # Groups that share the memory: all ranks, and halves.
    half = comm.subgroup([each for each in range(size) if each % 2 == comm.rank % 2])
    shared = deep_ep.BucketBuffer([comm, half], 1 << 16)
    x, y = places(shared, [2 * half.size, 2])
    x[:] = comm.rank
    same(shared.all_reduce(x, group=half).wait(), numpy.full(
        2 * half.size, sum(range(comm.rank % 2, size, 2)), "f4"), "all_reduce in a half")
    same(shared.all_gather(y, group=comm, dsts=shared.storage[64:64 + 8 * size].view("f4")).wait(),
         numpy.zeros(2 * size, "f4"), "all_gather of all")
    same(shared.reduce_scatter(x, "bf16", 2.0, half).wait(),
         numpy.full(2, 2.0 * half.size * sum(range(comm.rank % 2, size, 2)), "f4"), "bf16 in a half")
    raises(peerbus.InvalidArgument, "expected one of the 2 groups", shared.all_reduce, x)
    with shared.session():
        shared.all_reduce(numpy.ones(1, "f4"), group=half)
        raises(peerbus.InvalidArgument, "two groups", shared.all_reduce, numpy.ones(1, "f4"), group=comm)
    # Results outlive the buffer.
    kept = buffer.all_reduce(places(buffer, [4])[0]).wait()
    buffer.destroy()
    raises(peerbus.InvalidArgument, "the BucketBuffer was destroyed", buffer.all_reduce, kept)
    kept += 1
    raises(TypeError, "expected a type of torch", deep_ep.BufferAllocator().allocate, (2,),
           "float32")


def torch_tensors():
    import torch
    comm = peerbus.Communicator()
    rank, size = comm.rank, comm.size
    plan = deep_ep.BufferAllocator()
    first, second = plan.allocate((size, 300), torch.float32), plan.allocate((size * 7,), torch.bfloat16)
    buffer = deep_ep.BucketBuffer(comm, plan)
    raises(peerbus.InvalidArgument, "has been used", deep_ep.BucketBuffer, comm, plan)
    raises(peerbus.InvalidArgument, "has been used", plan.allocate, (1,), torch.float32)
    assert first.data_ptr() == buffer.storage.data_ptr() and first.shape == (size, 300)
    assert second.dtype == torch.bfloat16 and buffer.storage.numel() == plan.num_bytes
    first[:] = torch.arange(size * 300.0).view(size, 300) + rank
    expected = torch.arange(size * 300.0) * size + sum(range(size))
    result = buffer.all_reduce(first, scale=0.5).wait()
    assert result.data_ptr() == first.data_ptr() and torch.equal(result, expected * 0.5)
    first[:] = rank + 1
    result = buffer.reduce_scatter([first], comm_precision="bf16").wait()[0]
    assert result.dtype == torch.float32 and torch.equal(result, torch.full([300], size * (size + 1) / 2))
    second.view(size, 7)[rank] = rank + 0.5
    result = buffer.all_gather([second.view(size, 7)[rank]]).wait()[0]
    assert result.dtype == torch.bfloat16 and result.data_ptr() == second.data_ptr()
    assert torch.equal(result.float(), (torch.arange(size) + 0.5).repeat_interleave(7))
    with buffer.session() as session:
        x = torch.full([3, 2], float(rank))
        dst = torch.empty(size, 3, 2)
        assert buffer.all_gather(x, dsts=dst).wait() is dst
        assert all((dst[each] == each).all() for each in range(size))
        inside = session.allocate((2, 2))
        assert inside.dtype == torch.float32 and inside.shape == (2, 2)
        inside[:] = 1
        assert torch.equal(buffer.all_reduce(inside).wait(), torch.full([4], float(size)))
        assert session.allocate([(2,), (1, 3)], torch.int64)[1].shape == (1, 3)


class Tests(unittest.TestCase):
    def test_operations(self):
        for ranks in (1, 2, 3, 4):
            run(ranks, everything)
        run(3, everything, hosts=2)

    @needs_torch
    def test_torch(self):
        run(2, torch_tensors)


if __name__ == "__main__":
    main(globals())

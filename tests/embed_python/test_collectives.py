# SPDX-License-Identifier: MIT
"""Tests of the collective operations of the Python module. Each runs a function of this file on
several processes: python3 test_collectives.py [TEST...]."""

import unittest

import numpy

import peerbus
from ranks import bf16, main, raises, run, torch_installed, widened

FOLD = {"sum": numpy.add, "prod": numpy.multiply, "min": numpy.minimum, "max": numpy.maximum}


def given(rank, shape, dtype):
    """Returns the array of a rank, whose sums and products all types have exactly."""
    values = (numpy.arange(numpy.prod(shape)).reshape(shape) + 3 * rank) % 5 + 1
    return numpy.asarray(bf16(values) if dtype == "uint16" else values.astype(dtype))


def reduced(size, shape, dtype, op):
    arrays = [given(rank, shape, dtype) for rank in range(size)]
    if dtype == "uint16":
        arrays = [widened(array) for array in arrays]
    result = FOLD[op].reduce(arrays)
    return numpy.asarray(bf16(result) if dtype == "uint16" else result.astype(dtype))


def same(result, expected):
    assert result.shape == expected.shape, f"shape {result.shape}, expected {expected.shape}"
    assert result.dtype == expected.dtype, f"{result.dtype}, expected {expected.dtype}"
    assert (result == expected).all()


def moves(comm):
    rank, size = comm.rank, comm.size
    for dtype in ("float32", "uint16", "uint8", "bool", "complex128"):
        for shape in ((3, 4), (0, 4), (), (2, 1, 2, 3, 2)):
            arrays = [given(each, shape, dtype) for each in range(size)]
            own = arrays[rank]
            everything = numpy.stack(arrays)
            to_each = [given(rank + each, shape, dtype) for each in range(size)]
            same(comm.all_gather(own), everything)
            out = numpy.zeros(everything.size, dtype)  # Another shape.
            assert comm.all_gather(own, out=out) is out
            same(out, everything.reshape(-1))
            x = numpy.stack(to_each)
            transposed = numpy.stack([given(each + rank, shape, dtype) for each in range(size)])
            same(comm.all_to_all(x), transposed)
            assert comm.all_to_all(x, out=x) is x
            same(x, transposed)
            for root in range(size):
                x = own.copy()
                assert comm.broadcast(x, root) is x
                same(x, arrays[root])
                result = comm.gather(own, root)
                assert result is None if rank != root else same(result, everything) is None
                out = numpy.zeros(shape, dtype)
                comm.scatter(everything if rank == root else None, root, out)
                same(out, own)
    same(comm.scatter(numpy.arange(size), root=0) if rank == 0 else
         comm.scatter(root=0, out=numpy.zeros([], int)), numpy.array(rank))
    # Parts of different sizes: rank r gives r rows to rank 0, r + 1 to rank 1 and so on.
    counts = list(range(size))
    x = numpy.full([rank, 3], rank)
    same(comm.all_gather_v(x, counts), numpy.repeat(counts, counts).repeat(3).reshape(-1, 3))
    sent = [rank + each for each in range(size)]
    x = numpy.repeat([10 * rank + each for each in range(size)], sent)
    came = numpy.repeat([10 * each + rank for each in range(size)], sent)
    same(comm.all_to_all_v(x, sent, sent), came)
    # An input with gaps is copied, and the buffer protocol does.
    wide = numpy.arange(12.0).reshape(3, 4) + rank
    same(comm.all_gather(wide[:, ::2])[size - 1], wide[:, ::2] - rank + size - 1)
    same(comm.all_gather(bytearray(b"ab")), numpy.frombuffer(b"ab" * size, numpy.uint8).reshape(-1, 2))
    data = bytearray([rank])
    comm.broadcast(data, size - 1)
    assert data[0] == size - 1


def reductions(comm):
    rank, size = comm.rank, comm.size
    for dtype in ("float32", "float64", "uint16", "int32", "int64", "uint8"):
        for op in peerbus.REDUCTIONS:
            for shape in ((3, 70), (0,)):
                own = given(rank, shape, dtype)
                expected = reduced(size, shape, dtype, op)
                same(comm.all_reduce(own, op), expected)
                same(own, given(rank, shape, dtype))
                result = comm.reduce(own, op, root=size - 1)
                assert result is None if rank != size - 1 else same(result, expected) is None
                assert comm.all_reduce(own, op, out=own) is own
                same(own, expected)
                rows = (size,) + shape
                same(comm.reduce_scatter(given(rank, rows, dtype), op),
                     numpy.asarray(reduced(size, rows, dtype, op)[rank]))
    # bfloat16 is added in float32 and rounded once: 256 + 1 would be 256.
    one = bf16([256.0 if rank == 0 else 1.0])
    expected = {1: 256.0, 2: 256.0, 3: 258.0}[size]
    assert widened(comm.all_reduce(one))[0] == expected
    # A team of its own, in many slices and in parts.
    with comm.team(scratch_bytes=8192, one_shot_bytes=64) as team:
        assert (team.rank, team.size) == (rank, size)
        same(team.all_reduce(given(rank, (9000,), "float32")),
             reduced(size, (9000,), "float32", "sum"))
        same(comm.all_reduce(numpy.ones(3)), numpy.full(3, float(size)))


def refusals(comm):
    """The last rank gives bad arguments; all ranks raise, and the next operation works."""
    rank, size = comm.rank, comm.size
    bad = rank == size - 1
    x = numpy.ones([size, 4], numpy.float32)
    read_only = x.copy()
    read_only.flags.writeable = False

    def all_raise(kind, fragment, call, *arguments, **options):
        if bad:
            raises(kind, fragment, call, *arguments, **options)
        else:
            good = {"out": numpy.zeros([4], numpy.float32)} if call.__name__ == "scatter" else {}
            sizes = {"all_gather_v": ([size] * size,), "all_to_all_v": ([1] * size,) * 2}
            raises(peerbus.Refused, f"rank {size - 1} was given", call, x,
                   *sizes.get(call.__name__, ()), **good)
        same(comm.all_reduce(numpy.ones(2)), numpy.full(2, float(size)))

    all_raise(TypeError, "expected an array", comm.all_reduce, [1.0])
    all_raise(TypeError, "expected one of", comm.all_gather,
              numpy.zeros(3, "datetime64[s]"))
    all_raise(TypeError, "byte order", comm.all_reduce, x.astype(">f4"))
    all_raise(peerbus.InvalidArgument, "op is 'mean', expected one of sum, prod, min, max",
              comm.all_reduce, x, "mean")
    all_raise(peerbus.InvalidArgument, f"expected a rank below {size}", comm.broadcast, x, size)
    all_raise(peerbus.InvalidArgument, "root -1", comm.gather, x, -1)
    all_raise(TypeError, "", comm.reduce, x, root="0")
    all_raise(peerbus.InvalidArgument, "out has 3 elements", comm.all_reduce, x,
              out=numpy.zeros(3, numpy.float32))
    all_raise(peerbus.InvalidArgument, "of float64, expected", comm.all_reduce, x,
              out=numpy.zeros(x.shape))
    all_raise(peerbus.InvalidArgument, "read-only", comm.all_reduce, x, out=read_only)
    all_raise(peerbus.InvalidArgument, "gaps", comm.broadcast, numpy.ones([4, 4])[:, ::2])
    all_raise(peerbus.InvalidArgument, "expected a row for each", comm.reduce_scatter,
              numpy.ones(size + 1, numpy.float32))
    all_raise(peerbus.InvalidArgument, "expected a row for each", comm.all_to_all, numpy.ones([]))
    all_raise(peerbus.InvalidArgument, "counts are", comm.all_gather_v, x, [1])
    all_raise(peerbus.InvalidArgument, "expected 1 rows", comm.all_gather_v, x[:0], [1] * size)
    all_raise(peerbus.InvalidArgument, "received are", comm.all_to_all_v, x, [1] * size, [-1] * size)
    all_raise(peerbus.InvalidArgument, "out is None", comm.scatter)
    # The library's own refusals.
    all_raise(peerbus.InvalidArgument, "of type f16, expected f32", comm.all_reduce,
              x.astype(numpy.float16))
    all_raise(peerbus.InvalidArgument, "overlap", comm.all_reduce, x.reshape(-1)[:-1],
              out=x.reshape(-1)[1:])
    for other in (x[:, :3], x.astype(numpy.int32)):
        raises(peerbus.Error, f"rank {size - 1} called all_reduce of", comm.all_reduce,
               numpy.ascontiguousarray(other) if bad else x)
    same(comm.all_reduce(numpy.ones(2)), numpy.full(2, float(size)))


def lifetimes(comm):
    comm.all_reduce(numpy.ones(1))
    team = comm.team()
    part = comm.subgroup([comm.rank])
    same(part.all_reduce(numpy.ones(1)), numpy.ones(1))
    part.destroy()
    comm.destroy()
    raises(peerbus.InvalidArgument, "communicator is NULL", comm.all_reduce, numpy.ones(1))
    same(team.all_reduce(numpy.ones(1)), numpy.array([float(team.size)]))
    team.destroy()
    raises(peerbus.InvalidArgument, "team is NULL", team.all_reduce, numpy.ones(1))


def everything():
    comm = peerbus.Communicator()
    moves(comm)
    reductions(comm)
    if comm.size > 1:
        refusals(comm)
    lifetimes(comm)


def torch_tensors():
    import torch
    comm = peerbus.Communicator()
    rank, size = comm.rank, comm.size
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float64):
        x = torch.full([2, 3], rank + 1).to(dtype)
        result = comm.all_reduce(x)
        assert result.dtype == dtype and (result == sum(range(1, size + 1))).all()
        result = comm.all_gather(x)
        assert result.dtype == dtype and result.shape == (size, 2, 3)
        assert all((result[each] == each + 1).all() for each in range(size))
        assert comm.broadcast(x, size - 1) is x and (x == size).all()
    x = torch.arange(12.0).reshape(3, 4).t()  # With gaps.
    assert torch.equal(comm.all_reduce(x), x * size)
    raises(peerbus.InvalidArgument, "of type f16", comm.all_reduce, torch.ones(2).half())


class Tests(unittest.TestCase):
    def test_operations(self):
        for ranks in (1, 2, 3):
            run(ranks, everything)

    def test_torch(self):
        """Tensors of torch, where that is installed."""
        if torch_installed():
            run(2, torch_tensors)


if __name__ == "__main__":
    main(globals())

# SPDX-License-Identifier: MIT
"""Tests of the collective operations of the Python module. Each runs a function of this file on
several processes: python3 test_collectives.py [TEST...]."""

import os
import unittest

import numpy

import peerbus
from ranks import bf16, main, needs_torch, raises, run, widened

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


def large_operands():
    """Peers read them in the memory of numpy, where the kernel lets them."""
    assert peerbus.permit_private_reads() in (True, False)
    comm = peerbus.Communicator()
    rows = [given(each, (20_000,), "float32") for each in range(comm.size)]
    same(comm.all_gather(rows[comm.rank]), numpy.stack(rows))
    x = numpy.stack([rows[comm.rank] + each for each in range(comm.size)])
    same(comm.all_to_all(x), numpy.stack([row + comm.rank for row in rows]))
    with comm.channels() as channels:
        came = numpy.zeros(200_000, "float32")
        sent = numpy.tile(rows[comm.rank], 10)
        other = comm.size - 1 - comm.rank
        channels.batch_send_recv([(sent, other)], [(came, other)])
        same(came, numpy.tile(rows[other], 10))


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
    everything = numpy.repeat(counts, counts).repeat(3).reshape(-1, 3)
    for root in range(size):
        is_root = rank == root
        x = numpy.full([rank, 3], rank)
        result = comm.gather_v(x, counts if is_root else None, root)
        assert result is None if not is_root else same(result, everything) is None
        out = numpy.zeros_like(x)
        result = comm.scatter_v(everything if is_root else None, counts if is_root else None, root,
                                None if is_root else out)
        same(result, x)
        assert is_root or result is out
    # In place: this rank's rows of an array of all.
    whole = everything.copy()
    own = whole[sum(counts[:rank]):sum(counts[:rank + 1])]
    assert comm.gather_v(own, counts, 0, whole if rank == 0 else None) is (
        whole if rank == 0 else None)
    same(whole, everything)
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
                counts = [2 * each + 1 for each in range(size)]
                rows = (sum(counts),) + shape
                first = sum(counts[:rank])
                expected = reduced(size, rows, dtype, op)[first:first + counts[rank]]
                same(comm.reduce_scatter_v(given(rank, rows, dtype), counts, op), expected)
        # The residual is what a rank more would give.
        own, residual = given(rank, (3, 70), dtype), given(size, (3, 70), dtype)
        expected = reduced(size + 1, (3, 70), dtype, "sum")
        same(comm.all_reduce_add(own, residual), expected)
        assert comm.all_reduce_add(own, residual, out=residual) is residual
        same(residual, expected)
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


def coded(comm):
    """Tokens that codecs express exactly. One element of each gives its scale."""
    rank, size = comm.rank, comm.size
    shape = (size, 2, 3, 128)
    integers = numpy.arange(numpy.prod(shape)).reshape(shape) % 128 - 1.0
    integers[..., 0] = 127  # The codes of int8, whose scale is then 1.
    # Up to 256: the scale of fp8_f32 then makes codes of 1.75 of them, up to 448.
    powers = 2.0 ** (numpy.arange(numpy.prod(shape)).reshape(shape) % 9)
    per_code = numpy.float32(256) * (numpy.float32(1) / numpy.float32(448))
    f32 = (1.75 * powers).astype(numpy.float32) * per_code
    for codec, values, decoded in (("bf16", integers, integers),
                                   ("int8_per_token", integers, integers),
                                   ("fp8_f32", powers, f32), ("fp8_rounded", powers, powers),
                                   ("fp8_ue8m0", powers, powers)):
        x = bf16(values)
        wide = numpy.zeros(shape, numpy.float32)
        assert comm.all_gather_coded(x[rank], codec, out=wide) is wide
        same(wide, decoded.astype(numpy.float32))
        if codec != "fp8_f32":  # Whose values bfloat16 rounds.
            same(comm.all_gather_coded(x[rank], codec), x)
        rows, scales = comm.all_gather_coded(x[rank], codec, encoded=True)
        if codec == "int8_per_token":
            same(rows, values.astype(numpy.int8))
            same(scales, numpy.ones(shape[:3] + (1,), numpy.float32))
        elif codec == "bf16":
            same(rows, x)
            assert scales is None
        elif codec == "fp8_ue8m0":
            same(scales[..., :1], numpy.full(shape[:3] + (1,), 127, numpy.uint8))  # 2 ** 0
            assert scales.shape == shape[:3] + (4,)
        else:
            same(scales, numpy.full(shape[:3] + (1,), per_code if codec == "fp8_f32" else 1,
                                    numpy.float32))
        if codec.startswith("fp8"):  # E4M3 has a bias of 7, and three bits of mantissa.
            exponents = numpy.log2(values).astype(int) + 7
            codes = (exponents << 3) + (6 if codec == "fp8_f32" else 0)
            same(rows, codes.astype(numpy.uint8))
    codes = given(rank, (2, 5), "uint8")
    everything = numpy.stack([given(each, (2, 5), "uint8") for each in range(size)])
    same(comm.all_gather_coded(codes, "fp8_as_given"), everything)
    x = bf16(integers)
    place = numpy.zeros_like(x)
    place[rank] = x[rank]
    same(comm.all_gather_coded(place[rank], "int8_per_token", out=place), x)


def messages(comm):
    rank, size = comm.rank, comm.size
    with comm.channels(scratch_bytes=16384) as channels:
        assert (channels.rank, channels.size) == (rank, size)
        for dtype in ("float32", "uint16", "bool", "complex128"):
            # Two messages from every rank to every rank, itself included, of several slices and of
            # none.
            for unit in (0, 1, 3000):
                shape = [(unit * (each % 3), 2) for each in range(2 * size)]
                peers = [each // 2 for each in range(2 * size)]
                sends = [(given(rank + peer, shape[rank + peer], dtype), peer) for peer in peers]
                recvs = [(numpy.zeros(shape[peer + rank], dtype), peer) for peer in peers]
                channels.batch_send_recv(sends, recvs)
                for out, peer in recvs:
                    same(out, given(peer + rank, shape[peer + rank], dtype))
        channels.batch_send_recv()
        after, before = (rank + 1) % size, (rank - 1) % size
        if size > 1:
            ring = numpy.array([0.0, 7.0])
            if rank != 0:
                assert channels.recv(ring, before) is ring
            ring += 1
            channels.send(numpy.repeat(ring, 2)[::2], after)  # With gaps.
            if rank == 0:
                channels.recv(ring, before)
                same(ring, numpy.array([0.0, 7.0]) + size)
        # Halves, beside ranks that call the whole operation.
        for elements in (0, 5, 9000):
            mine, came = given(rank, (elements,), "int32"), numpy.zeros(elements, "int32")
            if rank % 2 == 0:
                pending = channels.start_batch_send_recv([(mine, after)], [(came, before)])
                raises(peerbus.InvalidArgument, "is not finished", channels.batch_send_recv)
                raises(peerbus.InvalidArgument, "is not finished", channels.start_recv, came,
                       before)
                assert pending.finish() is None
            else:
                channels.batch_send_recv([(mine, after)], [(came, before)])
            same(came, given(before, (elements,), "int32"))
            if size > 1 and rank < 2:
                if rank == 0:
                    channels.start_send(mine[::-1], 1).finish()  # With gaps, so that it is copied.
                else:
                    assert channels.start_recv(came, 0).finish() is came
                    same(came, given(0, (elements,), "int32")[::-1])
        # Bad arguments, which no other rank sees.
        x, out = numpy.ones(4), numpy.zeros(4)
        raises(peerbus.InvalidArgument, "overlaps message", channels.start_batch_send_recv,
               [(out, after)], [(out, before)])
        read_only = numpy.zeros(4)
        read_only.flags.writeable = False
        raises(TypeError, "expected an array", channels.send, [1.0], after)
        raises(peerbus.InvalidArgument, f"peer {size}, expected a rank", channels.send, x, size)
        raises(peerbus.InvalidArgument, "peer -1", channels.recv, out, -1)
        raises(TypeError, "", channels.send, x, "0")
        raises(peerbus.InvalidArgument, "read-only", channels.recv, read_only, after)
        raises(peerbus.InvalidArgument, "gaps", channels.recv, numpy.zeros(8)[::2], after)
        raises(peerbus.InvalidArgument, "no other end in the batch", channels.send, x, rank)
        raises(peerbus.InvalidArgument, "overlaps message", channels.batch_send_recv,
               [(out, after)], [(out, before)])
        if size > 1:
            raises(peerbus.Error, "sends 4 x f64", channels.batch_send_recv, [(x, after)],
                   [(out[:3], before)])
            same(out, numpy.zeros(4))
            channels.batch_send_recv([(x, after)], [(out, before)])
            same(out, x)
    raises(peerbus.InvalidArgument, "the channels object was destroyed", channels.send, x, after)


def windows(comm):
    """Operands in a window, at a place that differs between ranks. Each is changed as soon as its
    operation has returned."""
    rank, size = comm.rank, comm.size
    for dtype in ("float32", "uint16"):
        item = numpy.dtype(dtype).itemsize
        # Staged by the second team, except where counts differ; read in the window by the first.
        for least, count in ((1, 700), (10**6, 700), (1, 0)):
            with comm.team(window_bytes=least) as team, \
                    comm.window(2 * size * count * item + 64 * size) as window:
                part = window.part(rank)[64 * rank:][:2 * size * count * item].view(dtype)
                x, out = part[:size * count].reshape(size, count), part[size * count:]
                out = out.reshape(size, count)
                arrays = [given(each, (count,), dtype) for each in range(size)]
                of_rank = [given(each, (size, count), dtype) for each in range(size)]
                total = reduced(size, (size, count), dtype, "sum")

                def check(call, where, values, expected, *arguments, result=None):
                    where[...] = values
                    result = call(where, *arguments, **({} if result is None else {"out": result}))
                    if expected is None:
                        assert result is None
                    else:
                        same(result.copy(), expected)
                    part[:] = 0

                with team.in_window(window) as inside:
                    assert (inside.rank, inside.size) == (rank, size)
                    check(inside.all_gather, x[0], arrays[rank], numpy.stack(arrays))
                    check(inside.all_gather, out[rank], arrays[rank], numpy.stack(arrays), result=out)
                    rows = numpy.stack([of_rank[each][rank] for each in range(size)])
                    check(inside.all_to_all, x, of_rank[rank], rows, result=out)
                    check(inside.all_reduce, x, of_rank[rank], total, "sum", result=x)
                    check(inside.all_reduce, x, of_rank[rank], total)
                    check(inside.reduce_scatter, x, of_rank[rank], total[rank], "sum",
                          result=x[rank])
                    last = size - 1
                    check(inside.broadcast, x, of_rank[rank], of_rank[last], last)
                    check(inside.reduce, x, of_rank[rank], total if rank == last else None, "sum",
                          last)
                    check(inside.gather, x[0], arrays[rank],
                          numpy.stack(arrays) if rank == last else None, last)
                    x[:] = of_rank[rank]
                    same(inside.scatter(x if rank == last else None, last,
                                        None if rank == last else out[0]), of_rank[last][rank])
                    rows = numpy.concatenate([given(each, (each + 1, 5), dtype)
                                              for each in range(size)])
                    own = part[:5 * rank + 5] if count else rows[:0]
                    if count:
                        check(inside.all_gather_v, own.reshape(-1, 5),
                              given(rank, (rank + 1, 5), dtype), rows,
                              [each + 1 for each in range(size)])
                        elsewhere = numpy.zeros(x.shape, dtype)
                        raises(peerbus.InvalidArgument, "outside the window", inside.all_reduce,
                               elsewhere)
                        raises(peerbus.InvalidArgument, "outside the window", inside.all_gather,
                               x[:, ::2])
                        handle = inside if rank == 0 else team
                        if len(comm.near_ranks) == size > 1:
                            raises(peerbus.Error, "in window ", handle.all_gather, x[0])
                            with comm.window(4 * x.nbytes) as other, team.in_window(other) as elsewhere:
                                part_of_other = other.part(rank)[:x[0].nbytes].view(dtype)
                                call = inside.all_gather if rank == 0 else elsewhere.all_gather
                                raises(peerbus.Error, "in window ", call,
                                       x[0] if rank == 0 else part_of_other)
                        one = numpy.ones(1, dtype)
                        inside.all_reduce_add(one, one)
                        # The team of the window outlives the handles of both.
                        window.destroy()
                        team.destroy()
                        check(inside.all_reduce, x, of_rank[rank], total, "sum", result=x)
    with comm.window(64) as window:
        part = comm.subgroup([rank])
        raises(peerbus.InvalidArgument, "of another communicator", part.in_window, window)
        part.destroy()
        same(comm.in_window(window).all_reduce(window.part(rank)), numpy.zeros(64, numpy.uint8))


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
            needs_out = call.__name__ in ("scatter", "scatter_v")
            good = {"out": numpy.zeros([4], numpy.float32)} if needs_out else {}
            sizes = {"all_gather_v": ([size] * size,), "all_to_all_v": ([1] * size,) * 2,
                     "gather_v": (None, size - 1), "scatter_v": (None, size - 1),
                     "reduce_scatter_v": ([1] * size,), "all_reduce_add": (x,),
                     "all_gather_coded": ("int8_per_token",)}
            operand = bf16(x) if call.__name__ == "all_gather_coded" else x
            raises(peerbus.Refused, f"rank {size - 1} was given", call, operand,
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
    # The last rank is the root, which alone needs counts.
    last = size - 1
    all_raise(peerbus.InvalidArgument, "counts is None", comm.gather_v, x, None, last)
    all_raise(peerbus.InvalidArgument, "counts are", comm.gather_v, x, [size] * (size + 1), last)
    all_raise(peerbus.InvalidArgument, "expected 1 rows", comm.gather_v, x, [1] * size, last)
    all_raise(peerbus.InvalidArgument, "out has 1 elements", comm.gather_v, x, [size] * size, last,
              numpy.zeros(1, numpy.float32))
    all_raise(peerbus.InvalidArgument, f"root {size}", comm.gather_v, x, [size] * size, size)
    all_raise(peerbus.InvalidArgument, "counts is None", comm.scatter_v, x, None, last)
    all_raise(peerbus.InvalidArgument, f"expected {size + 1} rows", comm.scatter_v, x,
              [1] * last + [2], last)
    all_raise(TypeError, "x is NoneType", comm.scatter_v, None, [1] * size, last)
    all_raise(peerbus.InvalidArgument, "out is None", comm.scatter_v, None, None, 0)
    all_raise(peerbus.InvalidArgument, "counts are", comm.reduce_scatter_v, x, [-1] * size)
    all_raise(peerbus.InvalidArgument, f"expected {2 * size} rows", comm.reduce_scatter_v, x,
              [2] * size)
    all_raise(peerbus.InvalidArgument, "op is 'mean'", comm.reduce_scatter_v, x, [1] * size, "mean")
    all_raise(peerbus.InvalidArgument, "residual has 1 elements of float32, expected",
              comm.all_reduce_add, x, x[:1, :1])
    all_raise(peerbus.InvalidArgument, "residual has", comm.all_reduce_add, x, x.astype(int))
    all_raise(TypeError, "residual is list", comm.all_reduce_add, x, [1.0])
    tokens = bf16(x)
    all_raise(peerbus.InvalidArgument, "codec is 'nothing', expected one of bf16, int8_per_token",
              comm.all_gather_coded, tokens, "nothing")
    all_raise(peerbus.InvalidArgument, "x has float32, expected uint16 or bfloat16",
              comm.all_gather_coded, x, "bf16")
    all_raise(peerbus.InvalidArgument, "x has uint16, expected uint8", comm.all_gather_coded, tokens,
              "fp8_as_given")
    all_raise(peerbus.InvalidArgument, "expected [tokens, hidden]", comm.all_gather_coded,
              tokens[:1, :1].reshape([]), "bf16")
    all_raise(peerbus.InvalidArgument, "out has 4 elements", comm.all_gather_coded, tokens, "bf16",
              numpy.zeros(4, numpy.float32))
    all_raise(peerbus.InvalidArgument, "out is given", comm.all_gather_coded, tokens,
              "int8_per_token", numpy.zeros(x.size * size, numpy.float32), encoded=True)
    # The library's own refusals.
    all_raise(peerbus.InvalidArgument, "hidden 4, expected a positive multiple of 128",
              comm.all_gather_coded, tokens, "fp8_f32", encoded=True)
    all_raise(peerbus.InvalidArgument, "an output of f64, expected f32, bf16 or i8",
              comm.all_gather_coded, tokens, "int8_per_token", numpy.zeros(x.size * size))
    all_raise(peerbus.InvalidArgument, "of type bool, expected f32", comm.reduce_scatter_v,
              x.astype(bool), [1] * size)
    all_raise(peerbus.InvalidArgument, "of type f16, expected f32", comm.all_reduce,
              x.astype(numpy.float16))
    all_raise(peerbus.InvalidArgument, "overlap", comm.all_reduce, x.reshape(-1)[:-1],
              out=x.reshape(-1)[1:])
    for other in (x[:, :3], x.astype(numpy.int32)):
        raises(peerbus.Error, f"rank {size - 1} called all_reduce of", comm.all_reduce,
               numpy.ascontiguousarray(other) if bad else x)
    # Counts that differ between ranks.
    raises(peerbus.Error, f"sends {size * 4} elements to rank {last}, which expects 4",
           comm.gather_v, x, [1] * last + [size], last)
    out = numpy.zeros([1, 4], numpy.float32)
    raises(peerbus.Error, "which expects 4", comm.scatter_v, x, [0] * last + [size], last,
           None if bad else out)
    assert not out.any()
    raises(peerbus.Error, "elements to rank", comm.reduce_scatter_v, x,
           [size] + [0] * last if bad else [0] * last + [size])
    same(comm.all_reduce(numpy.ones(2)), numpy.full(2, float(size)))


def halves(comm):
    """All operations in halves, beside ranks that call the whole ones."""
    rank, size = comm.rank, comm.size
    own = given(rank, (5, 8), "float32")
    rows = numpy.stack([given(rank + each, (5, 8), "float32") for each in range(size)])
    counts = [each % 3 for each in range(size)]
    some = given(rank, (sum(counts), 2), "int64")
    tokens = given(rank, (3, 128), "uint16")
    calls = [
        ("broadcast", lambda: (own.copy(),), {"root": size - 1}),
        ("gather", lambda: (own,), {"root": 0}),
        ("scatter", lambda: (rows,), {"root": 0}),
        ("gather_v", lambda: (some[:counts[rank]], counts), {"root": 0}),
        ("scatter_v", lambda: (some, counts), {"root": 0}),
        ("all_gather", lambda: (own,), {}),
        ("all_gather_v", lambda: (some[:counts[rank]], counts), {}),
        ("all_to_all", lambda: (rows,), {}),
        ("all_to_all_v", lambda: (given(rank, (2 * size, 3), "uint8"), [2] * size, [2] * size), {}),
        ("reduce", lambda: (own, "max"), {"root": 0}),
        ("all_reduce", lambda: (own,), {}),
        ("all_reduce_add", lambda: (own, given(0, (5, 8), "float32")), {}),
        ("all_gather_coded", lambda: (tokens, "int8_per_token"), {}),
        ("reduce_scatter", lambda: (rows, "prod"), {}),
        ("reduce_scatter_v", lambda: (some, counts), {}),
    ]
    for number, (name, arguments, options) in enumerate(calls):
        if name.startswith("scatter"):  # Ranks without an input give an output.
            shape = (5, 8) if name == "scatter" else (counts[rank], 2)
            options = dict(options, out=numpy.zeros(shape, "float32" if name == "scatter" else "int64"))
        expected = getattr(comm, name)(*arguments(), **options)
        expected = None if expected is None else expected.copy()
        if (rank + number) % 2 == 0:
            pending = getattr(comm, "start_" + name)(*arguments(), **options)
            raises(peerbus.InvalidArgument, "is not finished", comm.all_reduce, own)
            result = pending.finish()
            raises(peerbus.InvalidArgument, "finish was called before", pending.finish)
        else:
            result = getattr(comm, name)(*arguments(), **options)
        assert result is None if expected is None else same(result, expected) is None, name

    # Bad input in the first half, found here or by the other ranks, and then another call.
    if rank == 0:
        raises(peerbus.InvalidArgument, "op is 'most'", comm.start_all_reduce, own, "most")
    else:
        pending = comm.start_all_reduce(own)
        raises(peerbus.Refused, "its caller had found wrong", pending.finish)
    same(comm.start_all_reduce(own).finish(1), reduced(size, (5, 8), "float32", "sum"))

    # An operation that is given up poisons the communicator.
    del pending
    with comm.subgroup([rank]) as alone:
        pending = alone.start_all_reduce(own)
        del pending
        raises(peerbus.Poisoned, "was started and never finished", alone.all_reduce, own)


def algorithms(comm):
    x = given(comm.rank, (40,), "float32")
    expected = reduced(comm.size, (40,), "float32", "sum")
    for name in peerbus.ALGORITHMS:
        with comm.team(algorithm=name) as team:
            same(team.all_reduce(x), expected)
            if name in ("one_shot", "two_shots") and comm.size > 2:
                assert team.algorithm_of("all_reduce", 4096) == name
            for operation in ("all_gather", "reduce_scatter", "broadcast"):
                assert team.algorithm_of(operation, 4096) == "one_shot"
    raises(peerbus.InvalidArgument, "operation is 'gather'", comm.algorithm_of, "gather", 8)
    raises(peerbus.Error, "algorithm", comm.team, algorithm="fastest" if comm.rank == 0 else "ring")

    path = os.path.join(os.environ["TEST_FOLDER"], f"costs{comm.rank}")
    for bytes_ns, chosen in ((0, "one_shot"), (1000, "two_shots")):
        with open(path, "w", encoding="ascii") as file:
            file.write("peerbus costs 1\ncollective.loads.byte_ns %d\ncollective.loads.round_us 100\n"
                       "collective.loads.reduce_byte_ns 0\n" % bytes_ns)
        with comm.team(costs=path) as team:
            if comm.size > 2:
                assert team.algorithm_of("all_reduce", 1 << 20) == chosen
            same(team.all_reduce(x), expected)
    with open(path, "w", encoding="ascii") as file:
        file.write(f"peerbus costs 1\ncollective.loads.byte_ns {comm.rank}\n")
    raises(peerbus.Error, "hash of costs", comm.team, costs=path)
    raises(peerbus.Error, "nowhere", comm.team, costs="/nowhere/costs" if comm.rank == 0 else path)
    same(comm.all_reduce(x), expected)


def lifetimes(comm):
    comm.all_reduce(numpy.ones(1))
    team = comm.team()
    part = comm.subgroup([comm.rank])
    same(part.all_reduce(numpy.ones(1)), numpy.ones(1))
    part.destroy()
    comm.destroy()
    raises(peerbus.InvalidArgument, "communicator was destroyed", comm.all_reduce, numpy.ones(1))
    same(team.all_reduce(numpy.ones(1)), numpy.array([float(team.size)]))
    team.destroy()
    raises(peerbus.InvalidArgument, "team was destroyed", team.all_reduce, numpy.ones(1))


def everything():
    comm = peerbus.Communicator()
    moves(comm)
    reductions(comm)
    coded(comm)
    windows(comm)
    messages(comm)
    if comm.size > 1:
        halves(comm)
        if comm.transport == "unified_bus":  # Which leaves no choice.
            algorithms(comm)
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
    # 127 makes a scale of 1.
    x = torch.tensor([[127.0, rank, -rank, 1.0]]).bfloat16()
    everything = torch.tensor([[[127.0, each, -each, 1.0]] for each in range(size)])
    result = comm.all_gather_coded(x, "int8_per_token")
    assert result.dtype == torch.bfloat16 and torch.equal(result.float(), everything)
    rows, scales = comm.all_gather_coded(x, "int8_per_token", encoded=True)
    assert rows.dtype == torch.int8 and torch.equal(rows.float(), everything)
    assert torch.equal(scales, torch.ones(size, 1, 1))
    with comm.channels() as channels:
        came = torch.zeros(1, 4).bfloat16()
        channels.batch_send_recv([(x, size - 1 - rank)], [(came, size - 1 - rank)])
        assert torch.equal(came.float(), everything[size - 1 - rank])


class Tests(unittest.TestCase):
    def test_operations(self):
        for ranks in (1, 2, 3):
            run(ranks, everything)
        run(3, everything, hosts=2)

    def test_large_operands(self):
        run(2, large_operands)

    @needs_torch
    def test_torch(self):
        """Tensors of torch."""
        run(2, torch_tensors)


if __name__ == "__main__":
    main(globals())

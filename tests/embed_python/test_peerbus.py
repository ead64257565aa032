# SPDX-License-Identifier: MIT
"""Tests of the Python module. Each runs a function of this file on several processes:
python3 test_peerbus.py [TEST...]."""

import array
import ast
import ctypes
import functools
import gc
import inspect
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import weakref
from unittest import mock

import numpy

import peerbus
import peerbus.deep_ep as deep_ep
from peerbus import _library as c
from peerbus import _operands, _tensors
import ranks
from ranks import bf16, has_hosts, main, needs_torch, raises, widened

run = functools.partial(ranks.run, fresh=True)  # Tests look at what the end of an interpreter leaves.


def windows():
    comm = peerbus.Communicator()
    rank, size = comm.rank, comm.size
    window = comm.window(64, signals=2)
    window.put((rank + 1) % size, 8, numpy.array([rank + 10], numpy.int64), signal=1, value=1)
    window.wait(1, 1, awaited=(rank - 1) % size)
    assert window.part(rank)[8:16].view(numpy.int64)[0] == (rank - 1) % size + 10
    if comm.transport == "unified_bus":
        window.fetch_add(0, 16, 5)
        comm.barrier()
        assert window.get(0, 16, 8).view(numpy.int64)[0] == 5 * size
    else:  # libfabric's tcp has no atomics.
        raises(peerbus.Error, "unsupported", window.fetch_add, 0, 16, 5)
    raises(peerbus.InvalidArgument, "peer 9", window.put, 9, 0, b"x")
    raises(peerbus.InvalidArgument, "peer is -1", window.put, -1, 0, b"x")
    raises(peerbus.InvalidArgument, f"offset is {1 << 64}", window.put, 0, 1 << 64, b"x")
    raises(peerbus.InvalidArgument, "nbytes is -5", window.get, 0, 0, -5)
    raises(peerbus.InvalidArgument, "value is -1", window.signal, 0, 0, -1)
    raises(peerbus.InvalidArgument, "awaited is -2", window.wait, 0, 1, awaited=-2)
    raises(peerbus.InvalidArgument, "nbytes is -1", comm.window, -1)
    raises(TypeError, "float", comm.window, 1.5)
    raises(TypeError, "timeout is 'x', expected a number", window.wait, 0, 1, timeout="x")
    raises(TypeError, "timeout is nan, expected a number", window.wait, 0, 1, timeout=float("nan"))
    raises(peerbus.TimedOut, "at least 7", window.wait, 0, 7, timeout=float("-inf"))
    for seconds, limit in ((0.5, 500000000), (1e10, -1), (18446744073.8, -1), (float("inf"), -1),
                           (9.2e9, 9200000000000000000), (-1.0, 1), (None, 0)):
        assert c.nanoseconds(seconds) == limit
    # Numbers of more than the bits that the library has are refused, not cut off.
    raises(peerbus.InvalidArgument, "port is 4294967301, expected 0 to 4294967295",
           peerbus.Communicator, rank=0, size=1, port=2**32 + 5)
    raises(peerbus.InvalidArgument, f"max_tokens is {2**64 + 4}", comm.exchange, experts=4, hidden=64,
           top_k=1, max_tokens=2**64 + 4)
    raises(peerbus.InvalidArgument, "hidden is -16, expected 0 to", comm.exchange, experts=4,
           hidden=numpy.int64(-16), top_k=1, max_tokens=4)
    raises(peerbus.InvalidArgument, "scratch_bytes is -1", comm.channels, -1)
    raises(peerbus.InvalidArgument, "ranks is -1", comm.subgroup, [-1])
    raises(peerbus.InvalidArgument, "signal is -1", window.value, -1)
    buffer = deep_ep.Buffer(comm)
    raises(peerbus.InvalidArgument, "num_experts is -1", buffer.get_dispatch_layout,
           numpy.zeros([1, 1], numpy.int64), -1)
    raises(peerbus.InvalidArgument, "expected 1 to 16777216", buffer.get_dispatch_layout,
           numpy.zeros([1, 1], numpy.int64), 2**62)
    raises(peerbus.InvalidArgument, "num_max_dispatch_tokens_per_rank is -4",
           buffer.low_latency_dispatch, numpy.zeros([1, 128], numpy.uint16),
           numpy.zeros([1, 1], numpy.int64), -4, size)
    raises(peerbus.InvalidArgument, "hidden is -1", deep_ep.Buffer.get_low_latency_rdma_size_hint, 1,
           -1, 1, 1)
    raises(peerbus.InvalidArgument, "num_sms is -2", deep_ep.Config, -2)
    raises(TypeError, "expected both, or neither", peerbus.Communicator, rank=0)
    raises(TypeError, "group is str, expected a process group", deep_ep.Buffer, "world")
    raises(peerbus.TimedOut, "expected at least 7", window.wait, 0, 7, timeout=0.01)
    raises(IndexError, "rank 9", window.part, 9)
    raises(TypeError, "Python objects", window.put, 0, 0, numpy.array([None]))
    raises(TypeError, "value is None", window.put, 0, 0, b"x", signal=0)
    # Arrays outlive the objects that they come from.
    part = window.part(rank)
    del window
    gc.collect()
    assert part[8:16].view(numpy.int64)[0] == (rank - 1) % size + 10
    comm.barrier()
    comm.destroy()
    raises(peerbus.InvalidArgument, "the communicator was destroyed", comm.barrier)
    comm.destroy()


class Shifted:
    """An array that begins some bytes behind the address that its capsule gives."""

    def __init__(self, array, offset, device_type=1):
        self.array, self.offset, self.device_type = array, offset, device_type

    def __dlpack__(self):
        self.capsule = self.array.__dlpack__()
        tensor = c.Tensor.from_address(_tensors._capsule_pointer(self.capsule, b"dltensor"))
        tensor.data, tensor.byte_offset = tensor.data - self.offset, self.offset
        tensor.dtype_code, tensor.device_type = 4, self.device_type
        return self.capsule


def views():
    """The view that numpy makes of an array equals the one that is made by hand of a read-only one."""
    base = numpy.arange(2 * 3 * 8, dtype=numpy.uint16).reshape(2, 3, 8)
    for array in (base, base[:, 1], base[1:, :, ::2], base[:, :0], base[0, 0, 3:], base.T,
                  base.view(numpy.uint8), base.astype(numpy.int64), base.astype(numpy.float32)):
        fixed = array.view()
        fixed.flags.writeable = False
        ways = [_tensors.Given(array, "array"), _tensors.Given(fixed, "array")]
        assert hasattr(ways[0], "capsule") and not hasattr(ways[1], "capsule")
        quick, slow = (way.tensor for way in ways)
        for name in ("device_type", "ndim", "dtype_code", "dtype_bits", "dtype_lanes"):
            assert getattr(quick, name) == getattr(slow, name), name
        assert quick.shape[:quick.ndim] == slow.shape[:slow.ndim]
        if array.size > 0 and quick.strides:
            assert quick.strides[:quick.ndim] == slow.strides[:slow.ndim]
        assert _tensors.has_gaps(quick) == _tensors.has_gaps(slow)
        assert ways[0].address == ways[1].address == array.ctypes.data or array.size == 0
    flags = _tensors.Given(numpy.array([True, False]), "flags").tensor
    assert (flags.dtype_code, flags.dtype_bits) == (6, 8)


def kinds():
    """Objects with the buffer protocol are arrays. A field of a structure is copied or refused."""
    plain = numpy.arange(4, dtype=numpy.float32)
    for given in (plain.view(numpy.matrix), plain.view(numpy.recarray), array.array("f", plain),
                  memoryview(plain), bytes(plain), bytearray(plain)):
        view = _tensors.contiguous(given, "given")
        nbytes = view.tensor.shape[view.tensor.ndim - 1] * view.tensor.dtype_bits // 8
        assert ctypes.string_at(view.address, nbytes) == plain.tobytes()
    records = numpy.zeros(4, [("value", "f4"), ("other", "u2")])
    records["value"] = plain
    view = _tensors.contiguous(records["value"], "field")
    assert ctypes.string_at(view.address, 16) == plain.tobytes()
    raises(peerbus.InvalidArgument, "strides of [6] bytes, expected multiples of 4", _tensors.Given,
           records["value"], "field")
    raises(TypeError, "without a mask", _tensors.Given, numpy.ma.array(plain, mask=plain > 1), "x")
    raises(TypeError, "is list, expected an array", _tensors.Given, [1.0], "x")
    away = Shifted(bf16(numpy.ones([2, 4])), 0, device_type=2)
    for kind in (_tensors.Given, _operands.Operand):
        raises(TypeError, "x is on DLPack's device type 2, expected 1, the CPU", kind, away, "x")
    raises(peerbus.InvalidArgument, "out is read-only", _tensors.given_to_write, bytes(plain), "out")


def exchanges():
    comm = peerbus.Communicator()
    rank, size = comm.rank, comm.size
    count, hidden, top_k, experts = rank * 4, 64, 2, 6  # Rank 0 has no tokens.
    draw = numpy.random.default_rng(rank)
    tokens = bf16(draw.integers(-8, 8, [count, hidden]))
    ids = numpy.array([[(t + rank) % experts, -1 if t == 1 else (t + 3 + rank) % experts]
                       for t in range(count)], numpy.int64).reshape(count, top_k)
    weights = numpy.full([count, top_k], 0.5, numpy.float32)
    for layout in peerbus.LAYOUTS:
        with comm.exchange(experts=experts, hidden=hidden, top_k=top_k, max_tokens=4 * size,
                           layout=layout, attachments=[4], relay="automatic") as moe:
            extra = numpy.arange(count, dtype=numpy.uint32).view(numpy.uint8).reshape(count, 4)
            for given in (tokens, Shifted(tokens, 64), tokens):
                received = moe.dispatch(given, ids, weights, attachments=[extra])
                assert received.rows == received.counts.sum()
                for block in range(received.counts.shape[0]):
                    for source in range(size):
                        first = received.first_rows[block, source]
                        for row in range(first, first + received.counts[block, source]):
                            origin = received.origins[row]
                            assert origin["rank"] == source
                            assert received.attachments[0][row].view(numpy.uint32)[0] == \
                                origin["token"]
                            factor = -1.0
                            if received.by_rank:
                                factor = -received.slot_weights[row].sum()
                            received.outputs[row] = bf16(
                                widened(received.row_data[row]) * numpy.float32(factor))
                sums = moe.combine(received, count)
                share = (ids >= 0).sum(axis=1, keepdims=True) * 0.5
                assert (widened(sums) == -widened(tokens) * share).all()
            bad = weights[:, :1] if rank == size - 1 else weights
            raises(peerbus.InvalidArgument if rank == size - 1 else peerbus.Refused,
                   "weights are" if rank == size - 1 else "rank", moe.dispatch, tokens, ids, bad,
                   attachments=[extra])
            raises(TypeError if rank == 0 else peerbus.Refused, "float64" if rank == 0 else "rank",
                   moe.dispatch, tokens.astype(float) if rank == 0 else tokens, ids, weights,
                   attachments=[extra])
            received = moe.dispatch(tokens, ids, weights, attachments=[extra])
            raises(peerbus.InvalidArgument if rank == 0 else peerbus.Refused,
                   "out is [" if rank == 0 else "rank", moe.combine, received, count,
                   numpy.zeros(3, numpy.uint16) if rank == 0 else None)
            moe.combine(received, count)
    raises(ValueError, "codec is 'none', expected one of bf16", comm.exchange, experts=1, hidden=64,
           top_k=1, max_tokens=1, codec="none")
    raises(ValueError, "relay is 'yes', expected one of never, always, automatic", comm.exchange,
           experts=1, hidden=64, top_k=1, max_tokens=1, relay="yes")
    raises(peerbus.Error, "relay is always, but ", comm.exchange, experts=1, hidden=64, top_k=1, max_tokens=1,
           relay="always", same_bits=True)
    # One rank gives them, and all refuse.
    for name, bad, fragment in (("relay", "no", "relay is 'no', expected one of never"),
                                ("relay_sums", "f16", "relay_sums is 'f16', expected one of bf16, f32"),
                                ("between", -1, "between is -1, expected 0 or more")):
        raises(peerbus.InvalidArgument, fragment if rank == 0 else "rank 0", comm.exchange, experts=4,
               hidden=64, top_k=1, max_tokens=1, **({name: bad} if rank == 0 else {}))
    deep_ep.Buffer(comm, relay="automatic").destroy()
    raises(ValueError, "relay is 'yes'", deep_ep.Buffer, comm, relay="yes")
    raises(peerbus.InvalidArgument, "between is -1", deep_ep.Buffer, comm, between=-1)
    for make in deep_ep.EPBuffer, deep_ep.ElasticBuffer:
        raises(ValueError, "relay is 'yes'", make, comm, relay="yes", num_bytes=1 << 20)
        raises(peerbus.InvalidArgument, "between is -1", make, comm, between=-1, num_bytes=1 << 20)
        if len(comm.near_ranks) < size:
            continue  # Two levels can be made.
        refused = make(comm, relay="always", num_bytes=1 << 20)
        for expands in False, True:
            raises(peerbus.Error, "relay is always, but ", refused.dispatch,
                   numpy.zeros((1, 128), numpy.uint16), numpy.zeros((1, 1), numpy.int64),
                   numpy.ones((1, 1), numpy.float32), num_experts=2, num_max_tokens_per_rank=1,
                   expert_alignment=1, do_expand=expands)
        refused.destroy()


def halves():
    """Two batches under way, in halves; what is wrong in a first half is refused on all ranks."""
    comm = peerbus.Communicator()
    rank, count, hidden, top_k, experts = comm.rank, comm.rank * 2, 64, 2, 6
    tokens = bf16(1 + numpy.arange(count)[:, None] % 3 + 0 * numpy.arange(hidden))
    ids = numpy.tile(numpy.arange(top_k, dtype=numpy.int32), (count, 1)) + rank
    weights = numpy.full([count, top_k], 0.5, numpy.float32)
    refused = (peerbus.InvalidArgument, "expected") if rank == 1 else (peerbus.Refused, "rank 1")
    for layout in peerbus.LAYOUTS:
        with comm.exchange(experts=experts, hidden=hidden, top_k=top_k, max_tokens=2 * comm.size,
                           layout=layout, in_flight=2) as moe:
            begun = [moe.start_dispatch(tokens, ids, weights) for _ in range(2)]
            homeward = []
            for pending, factor in zip(begun, (1, 2)):
                received = pending.finish()
                raises(peerbus.InvalidArgument, "after each start_dispatch", pending.finish)
                values = widened(received.row_data[:received.end]) * numpy.float32(factor)
                if received.by_rank:
                    values *= received.slot_weights[:received.end].sum(1, keepdims=True)
                received.outputs[:received.end] = bf16(numpy.nan_to_num(values))
                out = numpy.empty([count, hidden], numpy.uint16)
                homeward.append((moe.start_combine(received, count, out), out, factor))
            for pending, out, factor in homeward:
                raises(TypeError, "timeout", pending.finish, timeout="soon")  # Gives nothing up.
                assert pending.finish() is out and (widened(out) == factor * widened(tokens)).all()
            # The first half raises where the argument is bad, the second on the other ranks.
            raises(*refused, lambda: moe.start_dispatch(
                tokens[:, :32] if rank == 1 else tokens, ids, weights).finish())
            if rank == 1:
                moe.refuse_dispatch()
            else:
                raises(peerbus.Refused, "rank 1", moe.dispatch, tokens, ids, weights)
            received = moe.dispatch(tokens, ids, weights)
            received.outputs[:received.end] = received.row_data[:received.end]
            raises(*refused, lambda: moe.start_combine(
                received, count, numpy.empty([1, 2], "u2") if rank == 1 else None).finish())
            raises(*refused, moe.combine, received, count + (rank == 1))
            odd = numpy.frombuffer(bytearray(2 * count * hidden + 1), "u2", count * hidden, 1)
            raises(*refused, lambda: moe.start_combine(
                received, count, odd.reshape(count, hidden) if rank == 1 else None).finish())
            if rank == 1:
                pending = moe.refuse_combine(received, ArithmeticError("no outputs"))
                raises(ArithmeticError, "no outputs", pending.finish)
            else:
                raises(peerbus.Refused, "rank 1", moe.combine, received, count)
            if received.by_rank:
                raises(*refused, moe.combine, received, count, weights=weights if rank == 1 else None)
                moe.combine(received, count)
            else:  # Other weights at home.
                raises(*refused, moe.combine, received, count,
                       weights=weights[:, :1] if rank == 1 else weights)
                sums = moe.combine(received, count, weights=2 * weights)
                assert (widened(sums) == 2 * widened(tokens)).all()
            # The library reads what was sent even if nobody finishes the batch.
            given = tokens.copy()
            alive = weakref.ref(given)
            moe.start_dispatch(given, ids, weights)
            del given
            assert alive() is not None
            comm.barrier()


def refused_arrays():
    """Arrays that a dispatch or a combine would read or write wrongly are refused on all ranks."""
    comm = peerbus.Communicator()
    options = dict(experts=4, hidden=64, top_k=1, max_tokens=4, attachments=(4, 8))
    moe, other = comm.exchange(**options), comm.exchange(**options)
    tokens, ids = bf16(numpy.ones([4, 64])), numpy.arange(4).reshape(4, 1)
    weights, word, pair = (numpy.ones([4, n], numpy.float32) for n in (1, 1, 2))
    double = numpy.ones(4)  # A word pair of any type will do.

    def refused(fragment, call, *arguments, **options):
        good = options.pop("good")
        if comm.rank == 0:
            raises(peerbus.InvalidArgument, fragment, call, *arguments, **options)
        else:
            raises(peerbus.Refused, "rank 0", call, *good)

    good = tokens, ids, weights, (word, double)
    for extras, fragment in (((word, pair[:1]), "attachment 1 has 8 bytes, expected tokens x"),
                             ((word, pair, word), "attachment 2 has 16 bytes"),
                             ((word, pair, word, word, word), "5 attachments")):
        refused(fragment, moe.dispatch, tokens, ids, weights, extras, good=good)
    refused("tokens are [] of 16 bits", moe.dispatch, tokens[0, 0].reshape([]), *good[1:], good=good)
    if comm.rank == 0:
        raises(TypeError, "", moe.dispatch, *good, timeout="soon")
    else:
        raises(peerbus.Refused, "rank 0", moe.dispatch, *good)
    received = moe.dispatch(*good)
    fixed = numpy.zeros([4, 64], numpy.uint16)
    fixed.flags.writeable = False
    refused("out is read-only", moe.combine, received, 4, fixed, good=(received, 4))
    assert not fixed.any()
    for _ in range(received.ticket):
        same_ticket = other.dispatch(*good)
    assert same_ticket.ticket == received.ticket
    raises(peerbus.InvalidArgument, "rows of another exchange", moe.combine, same_ticket, 4)
    received.outputs[:received.end] = received.row_data[:received.end]
    assert (moe.combine(received, 4) == tokens).all()
    raises(peerbus.InvalidArgument, "attachments has 5 entries", comm.exchange,
           **dict(options, attachments=(4,) * 5))


def deep_ep_low_latency():
    buffer = deep_ep.Buffer()
    rank, size = buffer.rank, buffer.group_size
    hidden, top_k, experts, most = 128, 2, 4 * size, 16
    draw = numpy.random.default_rng(rank)
    count = most - rank
    x = bf16(draw.integers(-8, 8, [count, hidden]))
    topk_idx = numpy.stack([draw.permutation(experts)[:top_k] for _ in range(count)])
    topk_idx[0, 1] = -1
    topk_weights = numpy.full([count, top_k], 0.5, numpy.float32)
    for use_fp8 in (False, True):
        for hooks in (False, True):
            for zero_copy in (False, True):
                stats = numpy.zeros(4, numpy.int32)
                recv, counts, handle, event, hook = buffer.low_latency_dispatch(
                    x, topk_idx, most, experts, use_fp8=use_fp8, return_recv_hook=hooks,
                    async_finish=not hooks, cumulative_local_expert_recv_stats=stats)
                hook() if hooks else event.current_stream_wait()
                assert (stats == counts).all()
                rows, scales = recv if use_fp8 else (recv, None)
                assert rows.shape == (4, size * most, hidden)
                assert rows.dtype == (numpy.uint8 if use_fp8 else numpy.uint16)
                y = buffer.get_next_low_latency_combine_buffer(handle) if zero_copy else \
                    numpy.zeros(rows.shape, numpy.uint16)
                for e in range(4):
                    part = rows[e, :counts[e]]
                    begin, number = handle[1][e] >> 32, handle[1][e] & 0xffffffff
                    assert (number.sum() == counts[e]) and (begin[0] == 0 or number[0] == 0)
                    y[e, :counts[e]] = bf16(scales[e, :counts[e]].repeat(128, 1)) if use_fp8 \
                        else part ^ 0x8000
                combined, event, hook = buffer.low_latency_combine(
                    y, topk_idx, topk_weights, handle, zero_copy=zero_copy, return_recv_hook=hooks)
                if hooks:
                    hook()
                    raises(peerbus.InvalidArgument, "hook", hook)
                if not use_fp8:
                    share = (topk_idx >= 0).sum(axis=1, keepdims=True) * 0.5
                    assert (widened(combined) == -widened(x) * share).all()
    small = bf16(draw.integers(-8, 8, [count, hidden]) / 64)  # LogFMT codes magnitudes below 1.
    recv, counts, handle, _, _ = buffer.low_latency_dispatch(small, topk_idx, most, experts,
                                                             use_fp8=False)
    combined, _, _ = buffer.low_latency_combine(recv.copy(), topk_idx, topk_weights, handle,
                                                use_logfmt=True)
    expected = widened(small) * (topk_idx >= 0).sum(axis=1, keepdims=True) * 0.5
    assert (abs(widened(combined) - expected) <= 0.03 * abs(expected)).all()  # Half a step of 32 octaves.
    assert (combined != bf16(expected)).any()
    raises(TypeError, "x has float64, expected bfloat16 (uint16 of numpy) or float8_e4m3fn (uint8",
           buffer.low_latency_dispatch, x.astype(float), topk_idx, most, experts)
    raises(TypeError, "topk_idx has uint64, expected int64 or int32", buffer.low_latency_dispatch, x,
           topk_idx.astype(numpy.uint64), most, experts)
    raises(TypeError, "topk_weights has float64, expected float32", buffer.low_latency_combine, y,
           topk_idx, topk_weights.astype(float), handle)
    raises(TypeError, "expected an array", buffer.low_latency_dispatch, [[1.0]], topk_idx, most,
           experts)
    fixed = numpy.zeros([count, hidden], numpy.uint16)
    fixed.flags.writeable = False
    raises(peerbus.InvalidArgument, "out is read-only", buffer.low_latency_combine, y, topk_idx,
           topk_weights, handle, out=fixed)
    raises(peerbus.InvalidArgument, "use_logfmt and zero_copy are both true",
           buffer.low_latency_combine, y, topk_idx, topk_weights, handle, use_logfmt=True,
           zero_copy=True)
    raises(TypeError, "handle", buffer.low_latency_combine, y, topk_idx, topk_weights, None)
    strict = deep_ep.Buffer(buffer.comm, target="ascend_a3")
    raises(peerbus.InvalidArgument, "ascend_a3 refuses", strict.low_latency_dispatch, x, topk_idx,
           most, experts)
    raises(ValueError, "target", deep_ep.Buffer, buffer.comm, target="a4")
    assert deep_ep.Buffer.get_low_latency_rdma_size_hint(128, 7168, 8, 288) > 0


def deep_ep_normal():
    buffer = deep_ep.Buffer(num_max_tokens_per_rank=32)
    rank, size = buffer.rank, buffer.group_size
    hidden, top_k, experts, count = 64, 3, 2 * size, 5 * rank
    draw = numpy.random.default_rng(rank)
    x = bf16(draw.integers(-8, 8, [count, hidden]))
    topk_idx = numpy.array([draw.permutation(experts)[:top_k] if experts >= top_k else [0, 1, -1]
                            for _ in range(count)], numpy.int64).reshape(count, top_k)
    topk_weights = numpy.ones([count, top_k], numpy.float32)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
    assert in_rank.dtype == bool and (in_rank.sum(0) == per_rank).all()
    recv_x, recv_idx, recv_weights, counts, handle, _ = buffer.dispatch(
        x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
        topk_idx=topk_idx, topk_weights=topk_weights)
    assert [(recv_idx == e).sum() for e in range(2)] == counts
    kept = recv_x.copy()
    again, *_ = buffer.dispatch(x ^ 0x8000, handle=handle)
    assert (recv_x == kept).all() and (again == recv_x ^ 0x8000).all()  # Copies, not views.
    combined, weights, event = buffer.combine(recv_x, handle, topk_weights=recv_weights)
    event.current_stream_wait()
    assert (widened(combined) == widened(x) * in_rank.sum(1, keepdims=True)).all()
    assert (weights == (topk_idx >= 0)).all()
    raises(TypeError, "expected a Config", buffer.combine, recv_x, handle, config=object())


def destroyed():
    """Calls of an object after its `destroy` say that, all of them."""
    comm = peerbus.Communicator()
    x, ids = numpy.zeros([2, 128], numpy.uint16), numpy.zeros([2, 1], numpy.int64)
    weights, counter = numpy.ones([2, 1], numpy.float32), numpy.zeros(comm.size, numpy.int32)
    buffer, ep_buffer = deep_ep.Buffer(comm), deep_ep.EPBuffer(comm, num_max_tokens_per_rank=4)
    recv, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=False)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, 2)
    rows, _, _, _, normal, _ = buffer.dispatch(
        x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
        topk_idx=ids, topk_weights=weights)
    ep_rows, _, _, ep_handle, _ = ep_buffer.dispatch(x, ids, weights, num_experts=2)
    window, team, channels = comm.window(64, 1), comm.team(), comm.channels()
    moe = comm.exchange(experts=2, hidden=128, top_k=1, max_tokens=4)
    received = moe.dispatch(x, ids, weights)
    for each in (buffer, ep_buffer, window, team, channels, moe):
        each.destroy()
    for call in (lambda: buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=False),
                 lambda: buffer.low_latency_combine(recv, ids, weights, handle),
                 lambda: buffer.get_next_low_latency_combine_buffer(handle),
                 lambda: buffer.clean_low_latency_buffer(4, 128, 2),
                 lambda: buffer.low_latency_update_mask_buffer(0, True),
                 lambda: buffer.low_latency_query_mask_buffer(counter),
                 lambda: buffer.low_latency_clean_mask_buffer(),
                 lambda: buffer.get_dispatch_layout(ids, 2),
                 lambda: buffer.dispatch(x, handle=normal), lambda: buffer.combine(rows, normal)):
        raises(peerbus.InvalidArgument, "the buffer was destroyed", call)
    for call in (lambda: ep_buffer.dispatch(x, ids, weights, num_experts=2),
                 lambda: ep_buffer.combine(ep_rows, ep_handle), lambda: ep_buffer.barrier(),
                 lambda: ep_buffer.lb_prefetch_weights(x, x, ids),
                 lambda: window.put(0, 0, weights), lambda: window.get(0, 0, 4),
                 lambda: window.wait(0, 1), lambda: window.value(0), lambda: window.part(0),
                 lambda: team.all_reduce(weights), lambda: channels.send(weights, 0),
                 lambda: moe.dispatch(x, ids, weights), lambda: moe.combine(received, 2),
                 lambda: moe.nbytes):
        raises(peerbus.InvalidArgument, " was destroyed", call)
    comm.destroy()
    for call in (comm.barrier, lambda: comm.rank, lambda: comm.size, lambda: comm.window(64),
                 lambda: comm.all_reduce(weights), lambda: comm.subgroup([0]),
                 lambda: deep_ep.Buffer(comm)):
        raises(peerbus.InvalidArgument, " was destroyed", call)
    raises(TypeError, "None", peerbus.Window, None, 8)


def logged():
    """PEERBUS_LOG tells on stderr what was chosen when objects were made, and nothing of calls."""
    kept, rank = os.dup(2), os.environ["RANK"]
    said = os.open(os.path.join(os.environ["TEST_FOLDER"], "said" + rank), os.O_RDWR | os.O_CREAT)

    def lines(call):
        os.ftruncate(said, 0)
        os.dup2(said, 2)
        os.lseek(said, 0, os.SEEK_SET)
        try:
            call()
        finally:
            os.dup2(kept, 2)
        return os.pread(said, 1 << 16, 0).decode().splitlines()

    def logged_under(value, *kinds):
        os.environ["PEERBUS_LOG"] = value
        made = []
        begun = lines(lambda: made.append(peerbus.Communicator()))
        begun += lines(lambda: made.append(made[0].exchange(experts=4, hidden=128, top_k=1, max_tokens=4)))
        for line in begun:
            assert line.startswith(f"peerbus[{rank}] "), line
        words = [line.split()[1:3] for line in begun]
        assert words == [kind.split() for kind in kinds], begun
        x, ids = bf16(numpy.ones([4, 128])), numpy.zeros([4, 1], numpy.int64)
        assert not lines(lambda: made[1].dispatch(x, ids, numpy.ones([4, 1], numpy.float32)))
        made[0].barrier()
        if value == "info":
            said_by_others(made[0], x, ids)
        return begun

    def said_by_others(comm, x, ids):
        """Teams and the exchanges of DeepEP's buffers say the same, the latter when a shape is first used."""
        teams = lines(comm.team)
        operations = ["all_reduce:", "all_gather:", "reduce_scatter:", "broadcast:"]
        assert [line.split()[2] for line in teams] == operations, teams
        buffer = deep_ep.Buffer(comm)
        dispatch = lambda: buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False)
        first = lines(dispatch)
        assert "exchange: of low_latency_dispatch for up to 4 tokens of 128 channels, top_k 1" in first[0], first
        assert [line.split()[2] for line in first[1:]] == ["protocol:", "stores:", "relay:"], first
        assert not lines(dispatch)
        # With so much between two operations nothing stays in a cache.
        weights = numpy.ones([4, 1], numpy.float32)
        made = [lines(lambda: comm.exchange(experts=4, hidden=128, top_k=1, max_tokens=4, between=size))
                for size in (0, 1 << 50)]
        for kind in deep_ep.Buffer, deep_ep.EPBuffer, deep_ep.ElasticBuffer:
            for size in 0, 1 << 50:
                options = {} if kind is deep_ep.Buffer else dict(num_max_tokens_per_rank=4,
                                                                 allow_multiple_reduction=False)
                buffer = kind(comm, between=size, **options)
                if kind is deep_ep.Buffer:
                    made.append(lines(lambda: buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False)))
                    layout = buffer.get_dispatch_layout(ids, 4)
                    made.append(lines(lambda: buffer.dispatch(
                        x, num_tokens_per_rank=layout[0], is_token_in_rank=layout[3],
                        num_tokens_per_expert=layout[2], topk_idx=ids, topk_weights=weights)))
                else:
                    for expands in False, True:
                        made.append(lines(lambda: buffer.dispatch(
                            x, ids, weights, num_experts=4, expert_alignment=1, do_expand=expands)))
        past = [any("stores: past the caches for batches of 0 bytes" in line for line in said)
                for said in made]
        assert past == [False, True] + 3 * [False, False, True, True], made

    info = ["transport:", "device:", "reach:", "huge", "protocol:", "stores:", "relay:"]
    on_hosts = "PEERBUS_HOST" in os.environ
    if not on_hosts:
        info.remove("device:")
    info = ["info: " + topic for topic in info]
    begun = logged_under("info", *info)
    name = "planes" if on_hosts else "unified_bus"
    assert f"transport: {name}, as {1 if on_hosts else 2} of 2 ranks share memory" in begun[0], begun
    assert not on_hosts or "device: tcp" in begun[1], begun
    assert "counts_first, which is that of layout compact" in begun[-3], begun
    logged_under("debug", *info[:-3], "debug: waits:", *info[-3:], "debug: memory:", "debug: rows:")
    assert not logged_under("")
    os.environ["PEERBUS_LOG"] = "INFO" if rank == "1" else ""
    raises(peerbus.InvalidArgument, "PEERBUS_LOG is 'INFO', expected info or debug", peerbus.Communicator)


def read_metrics(path):
    """Returns the samples of a file of Prometheus: {(metric, {label: value} as a frozenset): number}."""
    samples, types = {}, {}
    with open(path) as file:
        for line in file.read().splitlines():
            if line.startswith("# TYPE "):
                _, _, name, types[name] = line.split()
                continue
            if not line.startswith("#"):
                name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} ([0-9.]+)", line).groups()
                assert name in types and (types[name] == "counter") == name.endswith("_total"), line
                key = name, frozenset(re.findall(r'(\w+)="(\w*)"', labels))
                assert key not in samples, line
                samples[key] = float(value)
    return samples


def measured():
    """PEERBUS_METRICS counts operations, bytes, refusals and waits, also of subgroups."""
    folder, rank = os.environ["TEST_FOLDER"], int(os.environ["RANK"])
    path = os.path.join(folder, f"rank{rank}.prom")
    for wrong, why in (("/nowhere/{rank}", "cannot write '/nowhere/"), ("one", "expected {rank} in it")):
        os.environ["PEERBUS_METRICS"] = wrong if rank else ""
        raises(peerbus.InvalidArgument, why, peerbus.Communicator)
    os.environ["PEERBUS_METRICS"] = os.path.join(folder, "rank{rank}.prom")
    comm = peerbus.Communicator()

    def number(name, **labels):
        return read_metrics(path).get(
            (f"peerbus_{name}", frozenset(dict(labels, rank=str(rank)).items())), 0)

    assert (number("ranks"), number("view"), number("operations_total", operation="dispatch")) == (2, 0, 0)
    moe = comm.exchange(experts=4, hidden=128, top_k=1, max_tokens=4)
    x, weights = bf16(numpy.ones([4, 128])), numpy.ones([4, 1], numpy.float32)
    ids = numpy.arange(4).reshape(4, 1)  # Two of the four tokens go to the other rank.
    for _ in range(3):
        received = moe.dispatch(x, ids, weights)
        received.outputs[:] = 0
        moe.combine(received, 4)
    raises(peerbus.InvalidArgument if rank else peerbus.Refused, "expert", moe.dispatch, x,
           ids + 4 * rank, weights)
    comm.all_reduce(weights)
    pair = comm.subgroup([1, 0])
    pair.all_reduce(numpy.ones(100, numpy.float32))
    if rank:
        time.sleep(1.1)
    comm.barrier()  # Rank 0 waits for rank 1.
    moe.dispatch(x, ids, weights)  # Begins with a new file, at most once a second.
    assert number("operations_total", operation="dispatch") >= (3 if rank else 0)
    comm.destroy()
    moe.destroy()
    pair.destroy()
    assert os.listdir(folder).count(f"rank{rank}.prom.new") == 0
    assert number("operations_total", operation="dispatch") == 4
    assert number("operations_total", operation="combine") == 3
    assert number("operations_total", operation="all_reduce") == 2
    assert number("failures_total", operation="dispatch") == 0
    assert number("refusals_total", operation="dispatch", by="this") == rank
    assert number("refusals_total", operation="dispatch", by="peer") == 1 - rank
    assert number("bytes_total", operation="dispatch") == 4 * 2 * 256
    assert number("bytes_total", operation="all_reduce") == 4 * 4 + 100 * 4
    assert 0 < number("operation_seconds_total", operation="dispatch") < 60
    if rank == 0:
        assert number("waits_total", peer="1") > 0
        assert number("waits_total", peer="0") == 0
        assert number("wait_seconds_total", peer="1") > 0.9


def distrusted():
    """A rank that distrusts its peers finds a wrong number, and the other learns it."""
    comm = peerbus.Communicator()
    config = dict(experts=4, hidden=128, top_k=1, max_tokens=4, layout="expert_slots")
    raises(peerbus.Error, "distrust_peers is 0 on rank 0 but 1 on rank 1", comm.exchange, **config,
           distrust_peers=comm.rank == 1)
    moe = comm.exchange(**config, distrust_peers=True)
    x, ids = bf16(numpy.ones([4, 128])), numpy.arange(4).reshape(4, 1)
    weights = numpy.ones([4, 1], numpy.float32)
    received = moe.dispatch(x, ids, weights)
    received.outputs[:] = 0
    moe.combine(received, 4)
    batch = moe.start_dispatch(x, ids, weights)  # In the same memory. With slots its rows leave at once.
    comm.barrier()
    if comm.rank == 0:
        origins = received.origins["token"]
        origins.setflags(write=True)
        origins[received.first_rows[0, 1]] = 4711
        raises(peerbus.Error, "rank 1 sent", batch.finish)
        return

    def others():
        rows = batch.finish()
        rows.outputs[:] = 0
        moe.combine(rows, 4)
    raises(peerbus.Refused, "4711", others)


def kept_in_flight():
    """A call that is not complete keeps its arguments alive, and a complete one does not."""
    buffer = deep_ep.Buffer()
    shape, ids = [4, 64], numpy.zeros([4, 1], numpy.int64)
    weights, out = numpy.ones([4, 1], numpy.float32), numpy.empty(shape, numpy.uint16)
    for hooks in (True, False):
        given = bf16(numpy.full(shape, 3))
        seen = weakref.ref(given)
        recv, _, handle, event, hook = buffer.low_latency_dispatch(
            given, ids, 4, buffer.group_size, use_fp8=False, return_recv_hook=hooks,
            async_finish=not hooks)
        del given
        gc.collect()
        assert seen() is not None
        hook() if hooks else event.current_stream_wait()
        assert seen() is None
        given = recv.copy()
        seen = weakref.ref(given)
        combined, event, hook = buffer.low_latency_combine(
            given, ids, weights, handle, out=out, return_recv_hook=hooks, async_finish=not hooks)
        del given
        gc.collect()
        assert seen() is not None
        hook() if hooks else event.current_stream_wait()
        assert seen() is None and (widened(out) == 3).all() and combined is out


def two_groups():
    """Two groups of one process have calls at the same time, each in a thread."""
    comm = peerbus.Communicator()
    everybody = list(range(comm.size))
    groups = [comm.subgroup(everybody), comm.subgroup(everybody[::-1])]
    problems = []

    def calls(group, factor):
        try:
            buffer = deep_ep.Buffer(group)
            x = bf16(numpy.full([4, 64], factor * (buffer.rank + 1)))
            ids, weights = numpy.arange(4)[:, None] % group.size, numpy.ones([4, 1], numpy.float32)
            for _ in range(50):
                recv, counts, handle, _, _ = buffer.low_latency_dispatch(x, ids, 4, group.size,
                                                                         use_fp8=False)
                combined, _, _ = buffer.low_latency_combine(recv, ids, weights, handle)
                assert counts[0] == (ids == buffer.rank).sum() * group.size
                assert (combined == x).all()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=calls, args=(group, 2 * i + 1))
               for i, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems


def left_behind():
    """A child by fork keeps nothing open: the death of its parent is seen while the child lives."""
    job, fifo = f"{os.environ['PEERBUS_JOB']}-pair", os.path.join(os.environ["TEST_FOLDER"], "fifo")
    os.mkfifo(fifo)
    parent = os.fork()
    if parent == 0:
        comm = peerbus.Communicator(rank=1, size=2, job=job)
        window = comm.window(8, signals=1)
        buffer = deep_ep.Buffer(comm)
        if os.fork() == 0:
            said = ""
            try:
                raises(peerbus.InvalidArgument, "fork", buffer.low_latency_dispatch,
                       bf16(numpy.ones([4, 64])), numpy.zeros([4, 1], numpy.int64), 4, 2)
                raises(peerbus.InvalidArgument, "fork", window.put, 0, 0, b"x")
            except BaseException as problem:
                said = str(problem)
            with open(fifo, "w") as file:
                file.write(said)
            open(fifo).close()  # It lives until it is told.
            os._exit(0)
        comm.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    comm = peerbus.Communicator(rank=0, size=2, job=job)
    window = comm.window(8, signals=1)
    with open(fifo) as file:
        assert file.read() == ""
    comm.barrier()
    raises(peerbus.PeerDead, "rank 1", window.wait, 0, 1, timeout=60)
    os.waitpid(parent, 0)
    open(fifo, "w").close()


def leaks():
    """10 000 calls do not keep memory or references."""
    buffer = deep_ep.Buffer()
    x = bf16(numpy.ones([4, 64]))
    ids, weights = numpy.zeros([4, 1], numpy.int64), numpy.ones([4, 1], numpy.float32)
    page = 4096

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * page

    def calls(number):
        for _ in range(number):
            recv, _, handle, _, hook = buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=False,
                                                                   return_recv_hook=True)
            hook()
            buffer.low_latency_combine(recv, ids, weights, handle)

    calls(500)
    references, memory = sys.getrefcount(x), resident()
    calls(5000)
    gc.collect()
    assert sys.getrefcount(x) == references
    if "asan" not in os.environ.get("LD_PRELOAD", ""):  # AddressSanitizer keeps what was freed.
        assert resident() - memory < 1 << 20, f"{resident() - memory} bytes more"


def documented():
    page = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "python.md")
    with open(page) as file:
        program = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
    names = {}
    exec(program, names)  # The text is ours.
    share = (names["experts"] >= 0).sum(axis=1, keepdims=True) * 0.5
    assert (widened(names["sums"]) == widened(names["tokens"]) * share).all()


def deep_ep_torch():
    """Tensors of torch, and ranks of a process group."""
    import torch
    import torch.distributed as dist
    store = f"file://{os.environ['TEST_FOLDER']}/store"
    dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    group = dist.group.WORLD
    buffer = deep_ep.Buffer(group, num_rdma_bytes=1 << 20, low_latency_mode=True)
    torch.manual_seed(buffer.rank)
    x = torch.randn(7, 128).to(torch.bfloat16)
    topk_idx = torch.randn(7, 4).topk(2).indices
    assert topk_idx.dtype == deep_ep.topk_idx_t
    weights = torch.full([7, 2], 0.5)
    for use_fp8 in (False, True):
        recv, counts, handle, _, hook = buffer.low_latency_dispatch(
            x, topk_idx, 8, 4, use_fp8=use_fp8, return_recv_hook=True)
        hook()
        rows = recv[0] if use_fp8 else recv
        fp8 = getattr(torch, "float8_e4m3fn", torch.uint8)
        assert rows.dtype == (fp8 if use_fp8 else torch.bfloat16)
        y = torch.zeros(rows.shape, dtype=torch.bfloat16) if use_fp8 else rows
        combined, _, _ = buffer.low_latency_combine(y, topk_idx, weights, handle)
        assert torch.equal(combined, torch.zeros_like(x) if use_fp8 else x)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, 4)
    assert in_rank.dtype == torch.bool
    recv_x, _, _, counts, handle, _ = buffer.dispatch(
        x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
        topk_idx=topk_idx, topk_weights=weights)
    combined, _, _ = buffer.combine(recv_x, handle)
    expected = (x.float() * in_rank.sum(1, keepdim=True)).to(torch.bfloat16)
    assert torch.equal(combined, expected)
    raises(TypeError, "float64", buffer.low_latency_dispatch, x.double(), topk_idx, 8, 4)
    raises(TypeError, "x is on meta, expected the CPU", buffer.low_latency_dispatch,
           torch.empty(7, 128, device="meta"), topk_idx, 8, 4)
    transposed = x.t().contiguous().t()  # Has gaps between the elements of a row.
    raises(peerbus.InvalidArgument, "x ", buffer.low_latency_dispatch, transposed, topk_idx, 8, 4)
    assert buffer.comm.transport == ("planes" if "PEERBUS_HOST" in os.environ else "unified_bus")
    with torch.inference_mode():
        assert peerbus.Communicator(group=group).size == buffer.group_size
    raises(TypeError, "rank was given, expected nothing with a group", peerbus.Communicator, 0, 2,
           group=group)
    raises(TypeError, "group is int, expected a process group of torch.distributed, a "
           "peerbus.Communicator, or None", deep_ep.Buffer, 3)
    dist.destroy_process_group()


def bf16_in_numpy():
    """Rounding to nearest even, against the definition: the nearer neighbour, or the even one."""
    every = numpy.arange(1 << 16, dtype=numpy.uint16)
    exact = peerbus.from_bf16(every)
    nan = numpy.isnan(exact)
    assert nan.sum() == 2 * 127 and exact[0x3f80] == 1 and exact[0xc000] == -2
    assert (peerbus.to_bf16(exact)[~nan] == every[~nan]).all()
    cut = numpy.array([0, 1, 0x7fff, 0x8000, 0x8001, 0xffff], numpy.uint32)
    low = every[~nan & (every & 0x7fff != 0x7f80)]  # The finite ones.
    between = ((low.astype(numpy.uint32) << 16)[:, None] | cut).view(numpy.float32)
    up = numpy.array([0, 0, 0, 2, 1, 1], numpy.uint16)
    expected = low[:, None] + numpy.where(up == 2, low[:, None] & 1, up)
    assert (peerbus.to_bf16(between) == expected).all()  # The largest become infinity, 0x7f80.
    for bits in (0x7f800001, 0x7fffffff, 0xff800001, 0xffffffff, 0x7fc00000):
        one = numpy.array([bits], numpy.uint32).view(numpy.float32)
        assert numpy.isnan(peerbus.from_bf16(peerbus.to_bf16(one))).all(), hex(bits)
        assert peerbus.to_bf16(one)[0] >> 15 == bits >> 31
    column = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)[:, 1]  # With gaps.
    assert peerbus.from_bf16(peerbus.to_bf16(column)).tolist() == [1, 5, 9]
    assert peerbus.to_bf16(1.0).shape == () and peerbus.to_bf16([[1, 2.5]]).shape == (1, 2)
    raises(TypeError, "bits has float32, expected uint16", peerbus.from_bf16, column)


def subgroup_limits():
    """A subgroup has the time limit of its parent, or its own. Rank 1 waits for the signal that rank 0
    gives afterwards, for less than the usual limit."""
    comm = peerbus.Communicator(timeout=0.2)
    window = comm.window(8, signals=1, timeout=30)
    parts = [comm.subgroup([0, 1]), peerbus.Communicator.subgroup(comm, [0, 1], timeout=0.1)]
    if comm.rank == 0:
        for part in parts:
            raises(peerbus.TimedOut, "rank 1", part.barrier)
        window.signal(1, 0, 1)
    else:
        window.wait(0, 1, timeout=20)


def released():
    """A call that has ended keeps none of its arguments."""
    buffer = deep_ep.Buffer()
    ids, weights = numpy.zeros([4, 1], numpy.int64), numpy.ones([4, 1], numpy.float32)
    for hooks in (False, True):
        x = numpy.zeros([4, 128], numpy.uint16)
        recv, _, handle, event, hook = buffer.low_latency_dispatch(
            x, ids, 4, 4, use_fp8=False, return_recv_hook=hooks)
        if hooks:
            hook()
        y = numpy.zeros(recv.shape, numpy.uint16)
        sums, _, combine_hook = buffer.low_latency_combine(y, ids, weights, handle,
                                                           return_recv_hook=hooks)
        if hooks:
            combine_hook()
        seen = [weakref.ref(x), weakref.ref(y)]
        del x, y
        gc.collect()
        assert [reference() for reference in seen] == [None, None]


LATE = 1


def traced():
    """A dispatch and a combine of which one rank is late, and a dispatch that is refused."""
    trace = os.environ.get("TRACE_FILE")
    with peerbus.Communicator(trace=trace) as comm:
        with comm.exchange(experts=comm.size, hidden=64, top_k=1, max_tokens=4) as moe:
            tokens = bf16(numpy.ones([4, 64]))
            ids = numpy.full([4, 1], (comm.rank + 1) % comm.size)
            weights = numpy.ones([4, 1], numpy.float32)
            comm.barrier()
            if comm.rank == LATE:
                time.sleep(0.2)
            moe.combine(moe.dispatch(tokens, ids, weights), 4)
            is_bad = comm.rank == LATE
            raises(peerbus.InvalidArgument if is_bad else peerbus.Refused, "99", moe.dispatch, tokens,
                   numpy.full([4, 1], 99) if is_bad else ids, weights)
        comm.all_reduce(numpy.ones(25, numpy.float32))
        if trace is not None:
            raises(peerbus.InvalidArgument, "records its events already", c.check,
                   c.lib.peerbus_comm_start_trace(comm, 0, 0))


def traced_by_some():
    """A trace that one rank alone wants is refused on all ranks at once."""
    if os.environ["RANK"] == "1":
        os.environ["PEERBUS_TRACE"] = os.environ["TEST_FOLDER"]
    raises(peerbus.Error, "PEERBUS_TRACE", peerbus.Communicator, meet_timeout=60)
    os.environ["PEERBUS_TRACE"] = "/nowhere"
    raises(peerbus.InvalidArgument, "PEERBUS_TRACE is '/nowhere'", peerbus.Communicator, meet_timeout=60)


def traced_and_failed():
    """A rank that leaves by an exception does not wait for the trace of the others."""
    begin = time.monotonic()
    folder = os.environ["TEST_FOLDER"]
    try:
        with peerbus.Communicator(trace=os.path.join(folder, "job.json"), timeout=60) as comm:
            comm.barrier()
            if comm.rank == 1:
                raise KeyError("of this rank")
            raises(peerbus.PeerDead, "rank 1", comm.barrier)
    except KeyError:
        pass
    except peerbus.Error:
        assert os.environ["RANK"] == "0"  # Its trace lacks rank 1.
    assert time.monotonic() - begin < 30
    assert os.path.exists(os.path.join(folder, f"job.json.rank{os.environ['RANK']}"))


def check_trace(path, size):
    """The file of `traced` is what Perfetto reads, and says who was late and who refused."""
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    assert set(trace) == {"displayTimeUnit", "traceEvents"}
    named, whole, starts = {}, [], {}
    for event in trace["traceEvents"]:
        assert event["ph"] in "MXbe" and event["pid"] < size, event
        if event["ph"] == "M":
            named[event["name"], event["pid"], event["tid"]] = event["args"]
        elif event["ph"] == "X":
            assert event["dur"] >= 0 and event["cat"] in ("coll", "p2p", "step"), event
            whole.append(event)
            # Events may touch, and sums of microseconds are rounded.
            rounding = 1e-4
            # Those of a thread begin in order, outer ones first, as parts must lie within them.
            line = starts.setdefault((event["pid"], event["tid"]), [])
            while line and line[-1] <= event["ts"] + rounding:
                line.pop()
            end = event["ts"] + event["dur"]
            assert not line or end <= line[-1] + rounding, event
            line.append(end)
    for rank in range(size):
        assert named["process_name", rank, 0]["name"].startswith(f"rank {rank} (")
        assert named["process_labels", rank, 0]["labels"] == \
            "lost events: 0; clock offset: 0.000 us +- 0.000 us"
        assert named["thread_name", rank, 0]["name"] == "lane 0"
        own = [event for event in whole if event["pid"] == rank]
        calls = [event for event in own if event["name"].startswith("dispatch_")
                 and event["args"]["seqNumber"] == 1]
        assert {event["name"] for event in calls} == {"dispatch_send", "dispatch_recv"}
        longest = max(calls, key=lambda event: event["dur"])
        if rank != LATE:
            assert longest["dur"] > 1e5 and longest["args"]["waited_for"] == LATE, longest
        else:
            assert longest["dur"] < 1e5, longest
        rows, = [event for event in own if event["name"] == "send rows"]
        assert rows["args"] == {"seqNumber": 1, "of": "dispatch", "bytes": 4 * 64 * 2}, rows
        faults = [event["args"] for event in own if "fault" in event["args"]]
        assert [fault["seqNumber"] for fault in faults] == [2] and faults[0]["peer"] == LATE, faults
        assert faults[0]["fault"] == ("invalid argument" if rank == LATE else
                                      "refused by a peer"), faults
        reduced, = [event for event in own if event["name"] == "all_reduce"]
        assert reduced["cat"] == "coll" and reduced["args"]["bytes"] == 100, reduced


def hosts_of_ranks():
    """Ranks 0 and 1 share a host, and rank 2 has its own."""
    with peerbus.Communicator() as comm:
        assert comm.transport == "planes"
        assert comm.near_ranks == ([2] if comm.rank == 2 else [0, 1])
        window = comm.window(64)
        far = 0 if comm.rank == 2 else 2
        raises(peerbus.InvalidArgument, f"the part of rank {far} is on another host", window.part, far)
        assert window.part(comm.near_ranks[0]).size == 64
        raises(peerbus.Error, "relay is always, but same_bits is set", comm.exchange, experts=3, hidden=64, top_k=2,
               max_tokens=1, relay="always", same_bits=True)
        for layout in peerbus.LAYOUTS:
            with comm.exchange(experts=12, hidden=64, top_k=2, max_tokens=4, in_flight=2,
                               layout=layout, relay="always") as moe:
                tokens = bf16(numpy.full([3, 64], comm.rank + 1))
                ids = numpy.array([[0, 11], [4, 8], [1, 2]])
                got = moe.dispatch(tokens, ids, numpy.full([3, 2], 0.5, numpy.float32))
                assert got.counts.shape[1] == len(comm.near_ranks)
                got.outputs[:got.end] = got.row_data[:got.end]
                if got.by_rank:
                    used = (got.slot_weights * (got.slot_experts >= 0))[:got.end].sum(axis=1)
                    got.outputs[:got.end] = bf16(widened(got.row_data[:got.end]) * used[:, None])
                raises(peerbus.InvalidArgument, "with relay, weights_at_combine=True", moe.combine, got, 3,
                       weights=numpy.ones([3, 2], numpy.float32))
                assert (moe.combine(got, 3) == tokens).all()
        relayed(comm)
        comm.barrier()
        # Rank 0 waits for something else, and serves the others' gets meanwhile.
        done = [os.path.join(os.environ["TEST_FOLDER"], f"done {rank}") for rank in (1, 2)]
        if comm.rank == 0:
            begin = time.monotonic()
            while not all(map(os.path.exists, done)):
                comm.progress()
                assert time.monotonic() - begin < 20
        else:
            window.get(0, 0, 64)
            open(done[comm.rank - 1], "w").close()
        comm.barrier()


def relayed(comm):
    """Weights that combines give, and the types of the sums that cross between hosts."""
    draw = numpy.random.default_rng(comm.rank)
    tokens = bf16(draw.integers(-8, 8, [3, 64]))
    # Each token has experts on both hosts. Its sum of a host has more bits than bf16.
    ids = numpy.array([[0, 11], [4, 8], [1, 10]])
    late = numpy.float32(1) + draw.integers(1, 512, [3, 2]).astype(numpy.float32) / 1024
    zeros = numpy.zeros([3, 2], numpy.float32)

    def sums(layout, early, given, in_halves=False, **options):
        with comm.exchange(experts=12, hidden=64, top_k=2, max_tokens=4, in_flight=2, layout=layout,
                           relay="always", **options) as moe:
            got = moe.dispatch(tokens, ids, early)
            got.outputs[:got.end] = got.row_data[:got.end]
            if got.by_rank:
                raises(peerbus.InvalidArgument, "a layout by rank", moe.combine, got, 3, weights=late)
                used = (got.slot_weights * (got.slot_experts >= 0))[:got.end].sum(axis=1)
                got.outputs[:got.end] = bf16(widened(got.row_data[:got.end]) * used[:, None])
            if in_halves:
                return moe.start_combine(got, 3, weights=given).finish()
            return moe.combine(got, 3, weights=given)

    for layout in peerbus.LAYOUTS:
        by_rank = layout in ("rank_major", "slots")
        found = {}
        for kind in peerbus.RELAY_SUMS:
            found[kind] = sums(layout, late, None, relay_sums=kind)
            if by_rank:
                raises(peerbus.InvalidArgument, f"weights_at_combine with layout {layout}", sums, layout, late,
                       None, weights_at_combine=True)
                continue
            for in_halves in False, True:
                again = sums(layout, zeros, late, in_halves, relay_sums=kind, weights_at_combine=True)
                assert (again == found[kind]).all(), (layout, kind)
        if not by_rank:
            parts = widened(tokens)[:, None] * late[:, :, None]  # Exact in f32, as is their sum.
            rounded = peerbus.from_bf16(peerbus.to_bf16(parts))
            assert (found["f32"] == peerbus.to_bf16(parts.sum(axis=1))).all(), layout
            assert (found["bf16"] == peerbus.to_bf16(rounded.sum(axis=1))).all(), layout
            assert (found["bf16"] != found["f32"]).any(), layout


def absent_from_group():
    """Rank 2 does not come, or has died: the others say so within the time limit."""
    import torch.distributed as dist
    rank, folder = int(os.environ["RANK"]), os.environ["TEST_FOLDER"]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=3)
    done = [os.path.join(folder, f"done {i}") for i in range(2)]
    if rank == 2:
        while not all(map(os.path.exists, done)):
            time.sleep(0.01)
    else:
        begin = time.monotonic()
        raises(peerbus.TimedOut, "within 2 s", peerbus.Communicator, group=dist.group.WORLD,
               meet_timeout=2)
        assert time.monotonic() - begin < 20
        open(done[rank], "w").close()
    os._exit(0)  # The group is out of step, and its destructor would wait.


def met_by_all_gather():
    """Ranks that a function connects, and one whose function fails."""
    by = peerbus.Communicator()
    rank, size = by.rank, by.size

    def all_gather(own):
        parts = by.all_gather(numpy.frombuffer(own, numpy.uint8))
        return [part.tobytes() for part in parts]

    with peerbus.Communicator(rank, size, all_gather=all_gather, host=f"host {rank // 2}",
                              address="127.0.0.1") as comm:
        assert (comm.rank, comm.size, comm.transport) == (rank, size, "planes")
        comm.barrier()
    with peerbus.Communicator(rank, size, all_gather=all_gather) as comm:
        assert comm.transport == "unified_bus"
        comm.barrier()

    def broken(own):
        raise OSError("the store died")

    raises(OSError, "the store died", peerbus.Communicator, rank, size, all_gather=broken)
    raises(peerbus.InvalidArgument, "all_gather returned 1 objects", peerbus.Communicator, rank, size,
           all_gather=lambda own: [own])
    raises(TypeError, "port was given, expected nothing with all_gather", peerbus.Communicator, rank,
           size, port=5, all_gather=all_gather)
    raises(TypeError, "secret was given, expected nothing with all_gather", peerbus.Communicator, rank,
           size, all_gather=all_gather, secret="x" * 16)
    raises(TypeError, "address was given, expected nothing without a rank", peerbus.Communicator,
           address="127.0.0.1")
    raises(ValueError, "transport is 'ib', expected one of automatic, unified_bus, planes",
           peerbus.Communicator, transport="ib")


def without_fabric():
    """Rank 1 lacks the library of libfabric."""
    raises(peerbus.Error, "cannot load libpeerbus_fabric.so", peerbus.Communicator)


def without_tcp():
    raises(peerbus.Error, "cannot load libpeerbus_tcp.so", peerbus.Communicator)


class Tests(unittest.TestCase):
    def test_bf16(self):
        bf16_in_numpy()

    def test_views(self):
        views()
        kinds()

    def test_windows(self):
        for ranks in (1, 2, 3):
            run(ranks, windows)

    def test_log(self):
        run(2, logged)
        run(2, logged, hosts=2)

    def test_metrics(self):
        run(2, measured)
        run(2, measured, hosts=2)

    def test_distrust(self):
        run(2, distrusted)

    def test_exchanges(self):
        for ranks in (1, 3):
            run(ranks, exchanges)
        run(3, refused_arrays)

    def test_halves(self):
        run(3, halves)

    def test_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "asked.json")
            run(3, traced, TRACE_FILE=path)
            check_trace(path, 3)
            os.remove(path)
            run(2, traced, PEERBUS_TRACE=folder)
            name, = os.listdir(folder)
            self.assertRegex(name, r"^peerbus-.+-\d+-1\.json$")
            check_trace(os.path.join(folder, name), 2)
        run(2, traced_by_some)
        run(2, traced_and_failed)

    def test_hosts(self):
        """Everything works among pretended hosts."""
        for function in (windows, exchanges, refused_arrays, deep_ep_low_latency, deep_ep_normal):
            run(4, function, hosts=2)
        run(3, hosts_of_ranks, hosts=2)
        if has_hosts:
            run(3, met_by_all_gather)

    @unittest.skipUnless(has_hosts, "libpeerbus is built without networks")
    def test_missing_parts(self):
        """A library that one rank cannot load is named on all ranks."""
        library = os.path.realpath(os.environ["PEERBUS_LIBRARY"])
        name = f"libpeerbus.so.{os.path.basename(library).split('.so.', 1)[1].rsplit('.', 1)[0]}"
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(f"{folder}/1/tcp")
            os.symlink(os.path.dirname(library), f"{folder}/0")
            for part, place in ((library, name), (library.replace("peerbus.so", "peerbus_tcp.so"),
                                                  name.replace("peerbus.so", "peerbus_tcp.so"))):
                shutil.copy(part, f"{folder}/1/{place}")
            run(2, without_fabric, hosts=2, PEERBUS_LIBRARY=folder + "/{rank}/" + name)
            os.remove(f"{folder}/1/{name.replace('peerbus.so', 'peerbus_tcp.so')}")
            run(1, without_tcp, PEERBUS_HOST="a host", PEERBUS_LIBRARY=f"{folder}/1/{name}")

    def test_deep_ep(self):
        for ranks in (1, 2, 4):
            run(ranks, deep_ep_low_latency)
        for ranks in (2, 3):
            run(ranks, deep_ep_normal)

    def test_subgroup_limits(self):
        run(2, subgroup_limits)

    def test_released(self):
        run(1, released)

    def test_destroyed(self):
        run(1, destroyed)

    def test_lifetimes(self):
        run(2, kept_in_flight)
        run(1, left_behind)

    def test_two_groups(self):
        run(2, two_groups)

    def test_leaks(self):
        run(1, leaks)

    def test_missing_library(self):
        ended = subprocess.run([sys.executable, "-c", "import peerbus"], capture_output=True,
                               text=True, env=dict(os.environ, PEERBUS_LIBRARY="/nowhere/lib.so"))
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("PEERBUS_LIBRARY", ended.stderr)

    def test_errors(self):
        """Exceptions reach other processes, and ranks of several hosts need a secret."""
        for kind in (peerbus.PeerDead, peerbus.InvalidArgument):
            sent = pickle.loads(pickle.dumps(kind(6, "a text")))
            self.assertEqual((type(sent), sent.code, str(sent)), (kind, 6, "a text"))
            self.assertEqual(f"{kind.__module__}.{kind.__name__}", f"peerbus.{kind.__name__}")
        with mock.patch.dict(os.environ, RANK="0", WORLD_SIZE="4", LOCAL_WORLD_SIZE="2"):
            raises(peerbus.InvalidArgument, "MASTER_ADDR is not set although LOCAL_WORLD_SIZE is 2 but "
                   "WORLD_SIZE is 4", peerbus.Communicator)
        with mock.patch.dict(os.environ, RANK="0", WORLD_SIZE="4", LOCAL_WORLD_SIZE="2",
                             MASTER_ADDR="192.0.2.1"):
            raises(peerbus.InvalidArgument, "there is no secret", peerbus.Communicator)

    def test_documentation(self):
        """The program of docs/python.md runs."""
        run(1, documented)
        run(2, documented)

    @needs_torch
    def test_torch(self):
        """The same with torch."""
        run(2, deep_ep_torch)
        run(2, deep_ep_torch, hosts=2)
        run(3, absent_from_group)

    def test_stubs(self):
        """The stubs for editors have the methods, arguments and defaults of the module."""
        compared, stated_methods = 0, {}
        for module in (peerbus, deep_ep):
            with open(os.path.join(os.path.dirname(module.__file__), "__init__.pyi")) as file:
                classes = [node for node in ast.parse(file.read()).body
                           if isinstance(node, ast.ClassDef)]
            for stated in classes:
                kind = getattr(module, stated.name)
                methods = {node.name: node.args for node in stated.body
                           if isinstance(node, ast.FunctionDef)}
                stated_methods[stated.name] = set(methods).union(*(
                    stated_methods.get(base.id, ()) for base in stated.bases
                    if isinstance(base, ast.Name)))
                missing = {name for name, value in vars(kind).items() if callable(value)
                           and not name.startswith("_")} - stated_methods[stated.name]
                self.assertEqual(missing, set(), stated.name)
                for name, arguments in methods.items():
                    function = getattr(kind, name)
                    if isinstance(function, property) or stated.name in ("Error", "EPHandle"):
                        continue
                    given = inspect.signature(getattr(function, "__func__", function)).parameters.values()
                    plain = [each for each in given
                             if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
                    self.assertEqual([each.arg for each in arguments.args + arguments.kwonlyargs],
                                     [each.name for each in plain])
                    self.assertEqual(
                        [ast.literal_eval(each) for each in
                         arguments.defaults + arguments.kw_defaults if each is not None],
                        [each.default for each in plain if each.default is not each.empty])
                    compared += 1
        self.assertGreater(compared, 50)

    def test_structures(self):
        """The structures of Python are as long as those of C, which abi_0_1.c states."""
        stated = os.path.join(os.path.dirname(__file__), "..", "embed_c", "abi_0_1.c")
        with open(stated) as file:
            sizes = re.findall(r"LEAST\(peerbus_(\w+), (\d+)\)", file.read())
        compared = 0
        for name, nbytes in sizes:
            structure = getattr(peerbus._library, name.title().replace("_", ""), None)
            if structure is not None:
                compared += 1
                self.assertEqual((name, ctypes.sizeof(structure)), (name, int(nbytes)))
        self.assertGreaterEqual(compared, 17)


if __name__ == "__main__":
    main(globals())

# SPDX-License-Identifier: MIT
"""The checks of DeepEP's own tests of V1, test_low_latency.py and test_intranode.py, written anew
from their inputs, oracles and tolerances (versions 1.2.1 and 2.1.0), for small sizes. They run on
numpy arrays, and on torch tensors where torch is installed: TENSORS=torch."""

import ast
import functools
import importlib.util
import inspect
import itertools
import os
import subprocess
import sys
import unittest

import numpy

import peerbus
import peerbus.deep_ep as deep_ep
from peerbus.deep_ep.calls import has_dropped
from ranks import bf16, main, needs_torch, raises, run, widened

HIDDEN, TOP_K = 256, 4


class Kind:
    """Arrays of one kind, for programs that treat both kinds alike."""

    def __init__(self):
        self.torch = None
        if os.environ.get("TENSORS") == "torch":
            import torch
            self.torch = torch

    def given(self, array, bfloat=False):
        """Returns a numpy array as an argument. `bfloat`: it has the bits of bfloat16."""
        if self.torch is None:
            return array
        if bfloat:
            return self.torch.from_numpy(array.view(numpy.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(numpy.ascontiguousarray(array))

    def got(self, array):
        """Returns a result as a numpy array, bfloat16 and E4M3 as their bits."""
        if self.torch is None or array is None:
            return array
        if array.dtype == self.torch.bfloat16:
            return array.view(self.torch.int16).numpy().view(numpy.uint16)
        if array.element_size() == 1 and array.dtype != self.torch.bool:
            return array.view(self.torch.uint8).numpy()
        return array.numpy()


def diff(x, y):
    """Returns DeepEP's distance of two arrays: 0 if they are equal."""
    x, y = x.astype(float) + 1, y.astype(float) + 1
    return 1 - 2 * (x * y).sum() / (x * x + y * y).sum()


def codes():
    """Returns the value of each E4M3 code."""
    code = numpy.arange(256)
    exponent, fraction = code >> 3 & 15, (code & 7) / 8
    size = numpy.where(exponent == 0, fraction * 2.0**-6, (1 + fraction) * 2.0 ** (exponent - 7.0))
    return numpy.where(code >= 128, -size, size)


def rounded(values):
    """Returns values as bfloat16 has them, ties to even."""
    words = numpy.asarray(values, numpy.float32).view(numpy.uint32)
    return (words + 0x7fff + (words >> 16 & 1) >> 16).astype(numpy.uint16)


def decoded(rows, scales):
    """Returns the values of E4M3 rows and their scales, rounded to bfloat16."""
    if scales.dtype == numpy.int32:
        scales = (numpy.ascontiguousarray(scales).view(numpy.uint8).astype(numpy.uint32) << 23).view(
            numpy.float32)
    groups = codes()[rows].reshape(*rows.shape[:-1], -1, 128)
    wide = groups * scales[..., :groups.shape[-2], None]
    return widened(rounded(wide.reshape(rows.shape)))


def routes(rank, count, experts, top_k):
    draw = numpy.random.default_rng(1 + rank)
    return numpy.stack([draw.permutation(experts)[:top_k] for _ in range(count)]).astype(numpy.int64)


def low_latency():
    """Rows are their sender's number - 128 except for the last 128 columns, which are the token's."""
    kind = Kind()
    buffer = deep_ep.Buffer(low_latency_mode=True)
    rank, size = buffer.rank, buffer.group_size
    experts, most = 3 * size + 3 * (size == 1), 16
    local, top_k = experts // size, min(TOP_K, experts)
    x = numpy.full([most, HIDDEN], rank - 128, numpy.float32)
    x[:, -128:] = numpy.arange(most)[:, None]
    noise = widened(rounded(numpy.random.default_rng(rank).standard_normal([most, HIDDEN]) * 0.1))
    ids = routes(rank, most, experts, top_k)
    draw = numpy.random.default_rng(77 + rank)
    for _ in range(10):
        ids[draw.integers(most), draw.integers(top_k)] = -1
    weights = numpy.abs(draw.standard_normal([most, top_k])).astype(numpy.float32)
    all_ids = gathered(buffer.comm, ids)
    formats = [(False, False, False), (True, False, False), (True, True, False), (True, True, True)]
    for values, hooks, (fp8, power, ue8m0), zero_copy in itertools.product(
            (x, noise), (False, True), formats, (False, True)):
        for _ in range(2):
            stats = kind.given(numpy.zeros(local, numpy.int32))
            recv, count, handle, event, hook = buffer.low_latency_dispatch(
                kind.given(bf16(values), True), kind.given(ids), most, experts, use_fp8=fp8,
                round_scale=power, use_ue8m0=ue8m0, cumulative_local_expert_recv_stats=stats,
                async_finish=not hooks, return_recv_hook=hooks)
            hook() if hooks else event.current_stream_wait()
        rows = decoded(kind.got(recv[0]), kind.got(recv[1])) if fp8 else widened(kind.got(recv))
        counts, sources, ranges = map(kind.got, (count, *handle[:2]))
        for e in range(local):
            number = counts[e]
            begins, numbers = ranges[e] >> 32, ranges[e] & 0xffffffff
            assert number == numbers.sum() == kind.got(stats)[e]
            assert number == (all_ids == rank * local + e).sum()
            if values is noise:
                continue
            here = rows[e, :number]
            assert (here[:, :-128].min(1) == here[:, :-128].max(1)).all()
            if power:
                assert diff(here[:, -1], sources[e, :number] % most) < 0.007
            else:
                assert (here[:, -128:] == (sources[e, :number] % most)[:, None]).all()
            for source in range(size):
                expected = (all_ids[source] == rank * local + e).sum()
                assert numbers[source] == expected
                if not power:
                    begin = begins[source]
                    assert (here[begin:begin + expected, :-128] == source - 128).all()
                    assert (here[:, 0] == source - 128).sum() == expected
        outputs = kind.given(bf16(rows), True)
        if zero_copy:
            buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = outputs
        out = kind.given(numpy.zeros([most, HIDDEN], numpy.uint16), True)
        combined, event, hook = buffer.low_latency_combine(
            # DeepEP's test gives the tensor that it has copied from.
            buffer.get_next_low_latency_combine_buffer(handle) if zero_copy and fp8 else outputs,
            kind.given(ids), kind.given(weights), handle, zero_copy=zero_copy,
            async_finish=not hooks, return_recv_hook=hooks, out=out)
        hook() if hooks else event.current_stream_wait()
        sums = widened(kind.got(combined))
        assert not numpy.isnan(sums).any() and combined is out
        if not power:
            share = numpy.where(ids >= 0, weights, 0).sum(1, keepdims=True)
            assert diff(values * share, sums) < (9e-4 if fp8 else 1e-5)
    received = kind.got(recv[0] if fp8 else recv)
    before = received.copy()
    buffer.clean_low_latency_buffer(2 * most, HIDDEN, experts)  # Frees nothing of any shape.
    buffer.destroy()
    assert (received == before).all()


def weighted():
    """Each row of a low-latency dispatch brings the weight of its slot and its sender's rank."""
    kind = Kind()
    buffer = deep_ep.Buffer(low_latency_mode=True)
    rank, size = buffer.rank, buffer.group_size
    experts, most, top_k = 2 * size, 8, min(3, 2 * size)
    all_tokens = [most, 0, most - 2][:size]
    tokens = all_tokens[rank]
    draw = numpy.random.default_rng(5)
    for turn, (hooks, fp8) in enumerate(itertools.product((False, True), repeat=2)):
        ids = draw.random([size, most, experts]).argsort(axis=2)[:, :, :top_k]
        ids[draw.random(ids.shape) < 0.2] = -1
        weights = draw.standard_normal([size, most, top_k]).astype(numpy.float32)
        x = kind.given(bf16(numpy.ones([tokens, 512])), True)
        mine = (x, kind.given(ids[rank, :tokens].copy()), most, experts)
        plain = buffer.low_latency_dispatch(*mine, use_fp8=fp8)
        assert len(plain) == 5
        made = buffer.low_latency_dispatch(
            *mine, use_fp8=fp8, async_finish=not hooks, return_recv_hook=hooks,
            topk_weights=kind.given(weights[rank, :tokens].copy()))
        _, count, handle, event, hook, recv_weights, ranks = made
        hook() if hooks else event.current_stream_wait()
        count, info, recv_weights, ranks = map(kind.got, (count, handle[0], recv_weights, ranks))
        assert recv_weights.shape == ranks.shape == (2, size * most)
        assert recv_weights.dtype == numpy.float32 and ranks.dtype == numpy.int32
        assert (kind.got(plain[1]) == count).all()
        for e in range(2):
            got = sorted(zip(ranks[e, :count[e]], info[e, :count[e]], recv_weights[e, :count[e]]))
            assert got == sorted((r, t, weights[r, t, k])
                                 for r in range(size) for t in range(all_tokens[r])
                                 for k in range(top_k) if ids[r, t, k] == 2 * rank + e), turn
    buffer.comm.barrier()
    buffer.destroy()


def gathered(comm, array):
    """Returns the arrays of all ranks, which have equal shapes."""
    window = comm.window(array.nbytes * comm.size)
    for peer in range(comm.size):
        window.put(peer, array.nbytes * comm.rank, array)
    comm.barrier()
    return window.part(comm.rank).view(array.dtype).reshape(comm.size, *array.shape).copy()


def intranode():
    """Rows are their sender's number, or random."""
    kind = Kind()
    count, experts = 16, 24
    buffer = deep_ep.Buffer(None, int(2e9), num_max_tokens_per_rank=count)
    rank, size = buffer.rank, buffer.group_size
    local = experts // size
    config = deep_ep.Config(24, 8, 256)
    ids = routes(rank, count, experts, TOP_K)
    in_rank = numpy.stack([(ids // local == r).any(1) for r in range(size)], axis=1)
    all_ids = gathered(buffer.comm, ids)
    given_ids = kind.given(ids)
    per_rank, rdma, per_expert, is_in, _ = buffer.get_dispatch_layout(given_ids, experts)
    assert rdma is None
    assert (kind.got(per_rank) == in_rank.sum(0)).all() and (kind.got(is_in) == in_rank).all()
    assert (kind.got(per_expert) == [(ids == e).sum() for e in range(experts)]).all()
    layout = dict(num_tokens_per_rank=per_rank, is_token_in_rank=is_in,
                  num_tokens_per_expert=per_expert)
    expected = sum((all_ids[r] // local == rank).any(1).sum() for r in range(size))
    constant = bf16(numpy.full([count, HIDDEN], rank))
    noise = rounded(numpy.random.default_rng(rank).standard_normal([count, HIDDEN]))
    fp8 = numpy.random.default_rng(rank).integers(0, 120, [count, HIDDEN]).astype(numpy.uint8)
    scales = numpy.random.default_rng(rank).random([HIDDEN // 128, count]).astype(numpy.float32).T
    for previous, asynchronous, values, with_ids in itertools.product(
            (False, True), (False, True), (noise, constant, fp8), (False, True)):
        weights = numpy.full([count, TOP_K], rank, numpy.float32) if values is constant else \
            numpy.random.default_rng(rank).random([count, TOP_K]).astype(numpy.float32)
        if values is fp8:
            given_x = (kind.given(fp8), kind.given(scales) if kind.torch is None
                       else kind.torch.from_numpy(scales))  # Column by column.
        else:
            given_x = kind.given(values, True)
        arguments = dict(layout, config=config, async_finish=asynchronous)
        if with_ids:
            arguments.update(topk_idx=given_ids, topk_weights=kind.given(weights))
        if previous:
            arguments.update(previous_event=buffer.capture(), allocate_on_comm_stream=asynchronous)
        recv, idx, recv_weights, counts, handle, event = buffer.dispatch(given_x, **arguments)
        event.current_stream_wait()
        plain = decoded(kind.got(recv[0]), kind.got(recv[1])) if values is fp8 else \
            widened(kind.got(recv))
        prefix = kind.got(handle[0])[:, rank]
        assert len(plain) == expected == prefix[-1]
        if values is constant:
            check_blocks(plain, prefix)
        if with_ids:
            assert (kind.got(idx).max() < local) and counts == \
                [(all_ids == rank * local + e).sum() for e in range(local)]
            assert [(kind.got(idx) == e).sum() for e in range(local)] == counts
            got = kind.got(recv_weights)
            assert (got[kind.got(idx) < 0] == 0).all()
            if values is constant:
                check_blocks(numpy.where(kind.got(idx) < 0, got.max(1, keepdims=True), got), prefix)
            worst = dict(arguments, num_worst_tokens=count * size)
            longer, longer_idx, longer_weights, none, _, _ = buffer.dispatch(given_x, **worst)
            first, also = (longer[0], recv[0]) if values is fp8 else (longer, recv)
            assert len(first) == count * size and none == []
            assert (kind.got(first)[:expected] == kind.got(also)).all()
            assert (kind.got(longer_idx)[:expected] == kind.got(idx)).all()
            assert (kind.got(longer_weights)[:expected] == got).all()
            assert (kind.got(longer_idx)[expected:] == -1).all()
            check_worst_tokens(buffer, kind, given_x, arguments, handle)
        # Beside a handle these have no effect.
        cached, *rest = buffer.dispatch(given_x, handle=handle, config=config, expert_alignment=128,
                                        num_worst_tokens=7, is_token_in_rank=is_in)
        assert rest[:4] == [None, None, None, None]
        cached, original = (cached[0], recv[0]) if values is fp8 else (cached, recv)
        assert (kind.got(cached) == kind.got(original)).all()
        outputs = kind.given(rounded(plain), True)
        combined, combined_weights, event = buffer.combine(
            outputs, handle, topk_weights=recv_weights, config=config, async_finish=asynchronous)
        event.current_stream_wait()
        reference = decoded(fp8, scales) if values is fp8 else widened(values)
        share = in_rank.sum(1, keepdims=True)
        assert diff(widened(kind.got(combined)) / share, reference) < 5e-6
        if with_ids:
            assert diff(kind.got(combined_weights), weights) < 1e-9
            assert (kind.got(combined_weights) == weights).all()
        bias = widened(noise)
        biased, _, _ = buffer.combine(outputs, handle, bias=kind.given(noise, True))
        assert diff(widened(kind.got(biased)), reference * share + bias) < 5e-6
    # What normal mode returned is not overwritten by later calls.
    assert (kind.got(recv[0] if values is fp8 else recv) == kind.got(original)).all()


def check_worst_tokens(buffer, kind, x, arguments, handle):
    """Any number of rows that is enough goes through all calls, as in test_intranode.py, and beyond
    what the buffer can receive."""
    enough = gathered(buffer.comm, numpy.array([len(kind.got(handle[3]))])).max()
    first = None
    for worst in (enough, buffer.group_size * 16, buffer.group_size * 16 + 1):
        recv, idx, weights, none, longer, _ = buffer.dispatch(
            x, **dict(arguments, num_worst_tokens=int(worst)))
        cached, *_ = buffer.dispatch(x, handle=longer)
        recv, cached = (recv[0], cached[0]) if isinstance(x, tuple) else (recv, cached)
        assert none == [] and {len(a) for a in (recv, idx, weights, longer[3], cached)} == {worst}
        outputs = numpy.full([worst, HIDDEN], 0x7fc0, numpy.uint16)
        outputs[:len(kind.got(handle[3]))] = 0x3f80
        weights = kind.got(weights).copy()
        weights[len(kind.got(handle[3])):] = numpy.nan
        combined, sums, _ = buffer.combine(kind.given(outputs, True), longer, kind.given(weights))
        combined = widened(kind.got(combined))
        assert not numpy.isnan(combined).any() and not numpy.isnan(kind.got(sums)).any()
        first = combined if first is None else first
        assert (combined == first).all()
    if enough > 1:
        raises(peerbus.InvalidArgument, f"expected at least the {enough} rows", buffer.dispatch, x,
               **dict(arguments, num_worst_tokens=int(enough) - 1))


def check_blocks(rows, prefix):
    """Requires that the rows of each source rank have its number in all columns."""
    assert (rows.min(1) == rows.max(1)).all()
    begin = 0
    for source, end in enumerate(prefix):
        assert (rows[begin:end] == source).all()
        begin = end


def attributes():
    """What programs ask a buffer and its handles for: constructor arguments, and the members of
    DeepEP's tuples. A group of 16 has two nodes."""
    kind = Kind()
    buffer = deep_ep.Buffer(None, 1 << 20, 1 << 21, low_latency_mode=True, explicitly_destroy=True,
                            enable_shrink=True)
    rank, size = buffer.rank, buffer.group_size
    nodes = max(1, size // 8)
    assert (buffer.num_nvl_bytes, buffer.num_rdma_bytes) == (1 << 20, 1 << 21)
    assert buffer.low_latency_mode and buffer.explicitly_destroy and buffer.enable_shrink
    assert buffer.group is None and buffer.nvshmem_qp_depth == 1024
    assert buffer.runtime.is_available() and buffer.runtime.get_num_rdma_ranks() == nodes
    assert buffer.runtime.get_rdma_rank() == (rank // 8 if nodes > 1 else 0)
    assert deep_ep.Buffer._unpack_bias(None) == (None, None)
    assert deep_ep.Buffer._unpack_bias((1, 2)) == (1, 2) and buffer._unpack_bias(1) == (1, None)
    raises(peerbus.InvalidArgument, "bias has 3 tensors", deep_ep.Buffer._unpack_bias, (1, 2, 3))
    ids = routes(rank, 4, 2 * size, 2).astype(numpy.int32)
    x, weights = bf16(numpy.full([4, HIDDEN], rank)), numpy.ones([4, 2], numpy.float32)
    given = [kind.given(x, True), kind.given(ids), kind.given(weights)]
    recv, _, handle, _, _ = buffer.low_latency_dispatch(*given[:2], 4, 2 * size, use_fp8=False)
    src_info, layout_range, most, hidden, experts = handle
    assert (most, hidden, experts) == (4, HIDDEN, 2 * size)
    assert src_info.shape == (2, 4 * size) and layout_range.shape == (2, size)
    raises(TypeError, "handle is tuple", buffer.low_latency_combine, recv, *given[1:], tuple(handle))
    buffer.low_latency_combine(recv, *given[1:], handle)
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(given[1], 2 * size)
    expected_nodes = (ids // 2 // 8)[:, :, None] == numpy.arange(nodes)
    assert per_node is None if nodes == 1 else \
        (kind.got(per_node) == expected_nodes.any(1).sum(0)).all()
    layout = dict(num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
                  num_tokens_per_expert=per_expert, is_token_in_rank=in_rank)
    config = deep_ep.Buffer.get_dispatch_config(size)
    recv, recv_idx, recv_weights, _, handle, _ = buffer.dispatch(
        given[0], topk_idx=given[1], topk_weights=given[2], **layout)
    assert recv_idx.dtype == given[1].dtype and len(handle) == (6 if nodes == 1 else 10)
    prefix = handle[0][:, rank] if nodes == 1 else handle[-4]
    assert len(recv) == prefix[-1] == len(handle[3 if nodes == 1 else 7])
    check_blocks(widened(kind.got(recv)), kind.got(prefix))
    again, idx, *_ = buffer.internode_dispatch(given[0], topk_idx=given[1], topk_weights=given[2],
                                               config=config, **layout)
    assert (kind.got(again) == kind.got(recv)).all() and (kind.got(idx) == kind.got(recv_idx)).all()
    sums, sums_of_weights, _ = buffer.internode_combine(again, handle, recv_weights, config=config)
    share = kind.got(in_rank).sum(1, keepdims=True)
    assert (widened(kind.got(sums)) == rank * share).all()
    assert (kind.got(sums_of_weights) == weights).all()
    if nodes > 1:
        wrong = dict(layout, num_tokens_per_rdma_rank=per_node + 1)
        raises(peerbus.InvalidArgument, "num_tokens_per_rdma_rank is [", buffer.dispatch, given[0],
               **wrong)
    buffer.destroy()
    assert buffer.runtime is None


def scales():
    """Scales of any strides and of one byte arrive with their type, in all three forms of dispatch."""
    kind = Kind()
    buffer, ep = deep_ep.Buffer(), deep_ep.EPBuffer(None, num_max_tokens_per_rank=4)
    rank, size = buffer.rank, buffer.group_size
    x = kind.given(numpy.full([4, HIDDEN], rank, numpy.uint8))
    ids = numpy.stack([numpy.arange(4) + rank, numpy.arange(4) + rank + 1], 1) % (2 * size)
    given = dict(topk_idx=kind.given(ids), topk_weights=kind.given(numpy.ones([4, 2], numpy.float32)))
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(given["topk_idx"], 2 * size)
    layout = dict(num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
                  num_tokens_per_expert=per_expert)
    values = rank * 10 + numpy.arange(4)[:, None] + numpy.arange(8) % 3 * 4
    columns = numpy.asfortranarray(values[:, :2].astype(numpy.float32))
    padded = numpy.full([4, 12], 255, numpy.uint8)
    padded[:, :7] = values[:, :7]
    for array in (columns, padded[:, :7]):
        if kind.torch is None:
            tensor = array
        elif array is columns:
            tensor = kind.torch.from_numpy(numpy.ascontiguousarray(array.T)).T
        else:
            tensor = kind.torch.from_numpy(padded)[:, :7]
        flat, _, _, _, handle, _ = buffer.dispatch((x, tensor), **given, **layout)
        cached, *_ = buffer.dispatch((x, tensor), handle=handle)
        by_rank, _, _, plain, _ = ep.dispatch((x, tensor), **given, num_experts=2 * size)
        expanded, _, _, by_expert, _ = ep.dispatch((x, tensor), **given, num_experts=2 * size,
                                                   do_expand=True)
        sources = [kind.got(each.recv_src_metadata) for each in (plain, by_expert)]
        slots = numpy.zeros(len(expanded[0]), numpy.int64)
        for row in sources[1]:
            for slot in row[2:][row[2:] >= 0]:
                slots[slot] = row[0]
        for got, origin in ((flat, sources[0][:, 0]), (cached, sources[0][:, 0]),
                            (by_rank, sources[0][:, 0]), (expanded, slots)):
            assert got[1].dtype == tensor.dtype
            expected = origin[:, None] // 4 * 10 + origin[:, None] % 4 + \
                numpy.arange(array.shape[1]) % 3 * 4
            assert (kind.got(got[1]) == expected).all()
            assert (kind.got(got[0]) == origin[:, None] // 4).all()


def facts():
    """Returns the lines of deep_ep_names.txt: (name, kind, rest)."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "deep_ep_names.txt")) as file:
        lines = [line.strip() for line in file if line.strip() and line[0] != "#"]
    for line in lines:
        kind = next(mark for mark in "(:=" if mark in line)
        name, _, rest = line.partition(kind)
        yield name.strip(), kind, rest.strip()


def found(name, start=deep_ep):
    return functools.reduce(getattr, name.split("."), start)


def compare_parameters(name, stated):
    """Requires the parameters that a line states, in their order and with their defaults."""
    function = found(name)
    ours = list(inspect.signature(function).parameters.values())
    if "." in name and inspect.isclass(found(name.rpartition(".")[0])) and ours[:1] and \
            ours[0].name == "self":
        ours = ours[1:]
    wanted = ast.parse(f"def f({stated.replace('...', 'Ellipsis')}: pass").body[0].args
    assert not wanted.vararg or any(each.kind is each.VAR_POSITIONAL for each in ours), name
    defaults = [None] * (len(wanted.args) - len(wanted.defaults)) + wanted.defaults
    for i, (argument, default) in enumerate(zip(wanted.args, defaults)):
        assert i < len(ours) and ours[i].name == argument.arg, f"{name}: {argument.arg} is missing"
        if default is None or getattr(default, "id", "") == "Ellipsis":
            continue
        given = ours[i].default
        assert type(given) is type(ast.literal_eval(default)) and \
            given == ast.literal_eval(default), f"{name}: {argument.arg} is {given} by default"
    for each in ours[len(wanted.args):]:
        assert each.default is not each.empty or each.kind in (
            each.VAR_POSITIONAL, each.VAR_KEYWORD), f"{name}: {each.name} is needed"


def names():
    """Every line of deep_ep_names.txt holds."""
    buffer = deep_ep.EPBuffer(None, num_max_tokens_per_rank=4)
    x, ids = bf16(numpy.ones([4, 128])), numpy.zeros([4, 1], numpy.int64)
    storage = deep_ep.BucketBuffer(None, 4096)
    instances = {"Buffer": deep_ep.Buffer(), "EPBuffer": buffer, "BucketBuffer": storage,
                 "EPHandle": buffer.dispatch(x, ids, num_experts=1)[3],
                 "EventOverlap": deep_ep.EventOverlap(), "BucketSession": storage.session(),
                 "BufferAllocator": deep_ep.BufferAllocator()}
    for module in (deep_ep.comm, deep_ep.utils.comm):
        raises(peerbus.Error, "no communicators of NCCL", module.get_nccl_comm_handle, None)
    for name, kind, rest in facts():
        if kind == "(":
            compare_parameters(name, rest)
        elif kind == "=":
            assert rest == "..." or found(name) == ast.literal_eval(rest), name
            found(name)
        else:
            if name not in instances:
                instances[name] = getattr(deep_ep, name)(None, 1 << 20)
            for attribute in rest.split():
                found(attribute, instances[name])


def refusals():
    """What one rank alone gets wrong is refused on all, before the library saw it and after."""
    for strict in (False, True):
        buffer = deep_ep.Buffer(strict=strict)
        wrong = buffer.rank == 1
        x = bf16(numpy.ones((4, 128)))
        ids = numpy.array([[0, 1]] * 4, numpy.int64)
        weights = numpy.ones((4, 2), numpy.float32)

        def refused(text, call, good, bad):
            kind = (TypeError, ValueError) if wrong else peerbus.Refused
            raises(kind, text, call, *(bad if wrong else good))

        def low_latency(*args):
            return buffer.low_latency_dispatch(*args, use_fp8=False)

        good = (x, ids, 4, 4)
        for _ in range(2):
            refused("x has float64", low_latency, good, (x.astype(float), ids, 4, 4))
            refused("topk_idx is list", low_latency, good, (x, ids.tolist(), 4, 4))
            refused("x is float32 [4, 128]", low_latency, good, (x.astype(numpy.float32), ids, 4, 4))
            raises(peerbus.Error, "num_topk is 2 on rank 0 but 1 on rank 1", low_latency,
                   *((x[:0], ids[:0, :1], 4, 4) if wrong else good))
            raises(peerbus.Error, "num_max_dispatch_tokens_per_rank is 4 on rank 0 but 8 on rank 1",
                   low_latency, *((x, ids, 8, 4) if wrong else good))
            rows, _, handle, _, _ = low_latency(*good)
            home = (rows, ids, weights, handle)
            refused("x has float16", buffer.low_latency_combine, home,
                    (rows.astype(numpy.float16), ids, weights, handle))
            refused("handle", buffer.low_latency_combine, home, (rows, ids, weights, ()))
            later_rows, _, later, _, _ = low_latency(*good)
            raises(peerbus.Error, "handle is of call", buffer.low_latency_combine,
                   *((later_rows, ids, weights, later) if wrong else home))
            assert (widened(buffer.low_latency_combine(*home)[0]) == 2).all()
            del rows, handle, home, later_rows, later

        layout = buffer.get_dispatch_layout(ids, 4)

        def normal(x, **more):
            return buffer.dispatch(x, num_tokens_per_rank=layout[0], is_token_in_rank=layout[3],
                                   num_tokens_per_expert=layout[2], topk_idx=ids,
                                   topk_weights=weights, **more)

        refused("", normal, (x,), (x.astype(object),))
        rows, _, _, _, handle, _ = normal(x)
        refused("x has int16", buffer.combine, (rows, handle),
                (rows.astype(numpy.int16), handle))
        assert buffer.combine(rows, handle)[0].shape == (4, 128)
        later = normal(x)[4]
        raises(peerbus.Error, "handle is of call", buffer.combine, rows,
               later if wrong else handle)
        assert buffer.combine(rows, later)[0].shape == (4, 128)
        buffer.destroy()


def outside():
    """Ids outside 0 to experts - 1 are skipped in normal mode, by all calls; `EPBuffer` and
    low-latency calls refuse those above, on all ranks."""
    buffer = deep_ep.Buffer()
    rank, last = buffer.rank, buffer.rank == buffer.group_size - 1
    count = 0 if rank == 0 and not last else 3
    x = bf16(numpy.full((count, 128), rank + 1))
    weights = numpy.arange(6, dtype=numpy.float32).reshape(3, 2)[:count]

    def round_trip(ids):
        ids = numpy.array(ids)[:count]
        layout = buffer.get_dispatch_layout(ids, 4)
        rows, idx, recv_weights, counts, handle, _ = buffer.dispatch(
            x, num_tokens_per_rank=layout[0], is_token_in_rank=layout[3],
            num_tokens_per_expert=layout[2], topk_idx=ids, topk_weights=weights)
        combined, combined_weights, _ = buffer.combine(rows, handle, recv_weights)
        return (layout[0], *layout[2:4], rows, idx, recv_weights, counts, combined, combined_weights)

    good, bad = [[0, -1], [-1, 3], [-1, -1]], [[0, 4], [2**40, 3], [-9, 5]]
    for one, other in zip(round_trip(good), round_trip(bad)):
        assert numpy.array_equal(one, other), (one, other)

    ids = numpy.array(bad if last else good)[:count]
    raises(peerbus.InvalidArgument if last else peerbus.Refused, "expert id 4 at token 0",
           buffer.low_latency_dispatch, x, ids, 4, 4)
    raises(peerbus.InvalidArgument if last else peerbus.Refused, "expert id 4 at token 0",
           deep_ep.EPBuffer(buffer.comm, num_max_tokens_per_rank=4).dispatch, x, ids, weights,
           num_experts=4)
    ascend = deep_ep.Buffer(buffer.comm, target="ascend_a3")
    raises(peerbus.InvalidArgument, "topk_idx has 4 for token 0", ascend.get_dispatch_layout,
           numpy.array(bad), 4)


def types():
    """Rows of any type go through a dispatch, also with a handle; a rank may have none. Sums are of
    bfloat16 only."""
    buffer = deep_ep.Buffer()
    rank, size = buffer.rank, buffer.group_size
    count = 0 if rank == 1 else 2
    in_rank = numpy.ones((count, size), bool)
    layout = dict(num_tokens_per_rank=numpy.full(size, count, "i4"), is_token_in_rank=in_rank,
                  num_tokens_per_expert=numpy.full(size, count, "i4"))

    def rows_of(source, kind):
        return (numpy.arange(64 * (source != 1)).reshape(-1, 32) + source).astype(kind)

    def check(kind, given, same):
        x = given(rows_of(rank, kind))
        expected = given(numpy.concatenate([rows_of(r, kind) for r in range(size)]))
        rows, _, _, _, handle, _ = buffer.dispatch(x, **layout)
        cached, *_ = buffer.dispatch(x, handle=handle)
        assert rows.dtype == cached.dtype == x.dtype and same(rows, expected) and \
            same(cached, expected)
        return rows, handle

    for name in ("f2", "f4", "f8", "i8", "i2", "u4", "?", "i1", "u1", "u2"):
        rows, handle = check(numpy.dtype(name), lambda array: array, numpy.array_equal)
    halves = rows.view(numpy.float16)
    wrong = rank == size - 1
    raises(TypeError if wrong else peerbus.Refused, "x has float16", buffer.combine,
           halves if wrong else rows, handle)
    raises(TypeError if wrong else peerbus.Refused, "x has float16", buffer.low_latency_dispatch,
           halves[:2] if wrong else rows[:2], numpy.zeros((2, 1), int), 4, size, use_fp8=False)
    if importlib.util.find_spec("torch") is None:
        return
    import torch
    for kind in (torch.float16, torch.float32, torch.int64, torch.uint8, torch.bfloat16):
        check("i4", lambda array: torch.from_numpy(array).to(kind), torch.equal)
    raises(TypeError, "x has float16", buffer.combine, torch.zeros(2 * size, 32).half(), handle)


def grown():
    """A normal dispatch in which one rank alone has more tokens than there is memory for takes more, on
    all ranks, in that call; earlier handles and events stay good."""
    buffer = deep_ep.Buffer()
    rank, size = buffer.rank, buffer.group_size
    last, experts = size - 1, 2 * size

    def inputs(count):
        ids = numpy.arange(2 * count).reshape(count, 2) % experts
        x = bf16(numpy.repeat(numpy.arange(count) % 64 + rank, 128).reshape(count, 128))
        return x, ids, numpy.ones((count, 2), numpy.float32)

    def dispatched(count, by_ids=True, **more):
        x, ids, weights = inputs(count)
        layout = buffer.get_dispatch_layout(ids, experts)
        routes = dict(topk_idx=ids, topk_weights=weights) if by_ids else {}
        rows, _, _, _, handle, _ = buffer.dispatch(
            x, num_tokens_per_rank=layout[0], is_token_in_rank=layout[3],
            num_tokens_per_expert=layout[2], **routes, **more)
        return rows, handle, layout[3].sum(axis=1)

    def home(rows, handle, copies, count, **more):
        combined, _, event = buffer.combine(rows, handle, **more)
        return event, combined, widened(inputs(count)[0]) * copies[:, None]

    def check(event, combined, expected):
        event.current_stream_wait()
        assert numpy.array_equal(widened(combined), expected)

    few = 2 if rank else 0
    small = dispatched(few)
    pending = home(*small, few, async_finish=True)
    for wanted in (5000, 9000, 3):
        count = wanted if rank == last else few
        for by_ids in (True, False):
            big = dispatched(count, by_ids)
            check(*home(*big, count))
            cached, *_ = buffer.dispatch(inputs(count)[0], handle=big[1])
            assert numpy.array_equal(cached, big[0])
    check(*pending)
    check(*home(*small, few))  # Its memory is another batch's now.
    worst = size * 20000
    many = dispatched(few, num_worst_tokens=worst)
    assert len(many[0]) == worst
    check(*home(*many, few))


def strict():
    """All ranks refuse what would overwrite a result of one."""
    buffer = deep_ep.Buffer(strict=True)
    x = bf16(numpy.ones([4, 128]))
    ids, weights = numpy.zeros([4, 1], numpy.int64), numpy.ones([4, 1], numpy.float32)

    def call():
        return buffer.low_latency_dispatch(x, ids, 4, buffer.group_size, use_fp8=False)

    for _ in range(5):
        recv, _, handle, _, _ = call()
        combined, _, _ = buffer.low_latency_combine(recv, ids, weights, handle)
    kept = recv if buffer.rank == 0 else None
    del recv, handle, combined, _
    call()
    raises(peerbus.Refused, "on rank 0", call)
    call_again = [kept]  # Garbage is not in use: it is collected before the decision.
    call_again.append(call_again)
    del call_again, kept
    for _ in range(4):
        call()


def streams():
    """Streams and their events complete what asynchronous calls have left, as events of calls do."""
    buffer = deep_ep.Buffer(num_max_tokens_per_rank=4)
    x, ids = bf16(numpy.full([4, 128], 3.0)), numpy.arange(4).reshape(4, 1)
    weights = numpy.ones([4, 1], numpy.float32)
    stream, other = buffer.get_comm_stream(), deep_ep.event.Stream()

    def combined(wait):
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, 4)
        recv, *_, handle, _ = buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights)
        result, _, event = buffer.combine(recv, handle, async_finish=True)
        result[:] = 0
        wait()
        return (result == x).all()

    def recorded():
        before = deep_ep.event.ClockEvent()
        before.record(stream)
        return before

    assert combined(stream.synchronize) and combined(stream.query)
    assert combined(lambda: other.wait_stream(stream))
    assert combined(lambda: recorded().synchronize()) and combined(lambda: recorded().query())
    assert combined(lambda: other.wait_event(stream.record_event()))
    assert combined(lambda: recorded().wait(other)) and combined(deep_ep.event.complete)
    # Another stream holds nothing, and neither does what was recorded before.
    early = recorded()
    assert not combined(other.synchronize) and not combined(early.synchronize)
    stream.synchronize()
    # The event may be dropped, the wait comes once, and later calls are completed after earlier ones.
    out = [bf16(numpy.zeros([4, 128])) for _ in range(2)]
    for place in out:
        recv, count, handle, event, _ = buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False,
                                                                    async_finish=True)
        stream.wait_stream(stream)
        buffer.low_latency_combine(recv, ids, weights, handle, async_finish=True, out=place)
        stream.synchronize()
        event.current_stream_wait()
        assert count.sum() * buffer.group_size == 4 * buffer.group_size and (place == x).all()
    buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False, async_finish=True)
    buffer.destroy()
    assert stream.left() == [] and stream.query()


class Tests(unittest.TestCase):
    def test_names(self):
        """What DeepEP's module has is there after the plain import."""
        ended = subprocess.run([sys.executable, "-c", "import peerbus.deep_ep as deep_ep\n"
                                "deep_ep.utils.calc_diff, deep_ep.utils.envs.init_dist"],
                               capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertFalse(hasattr(deep_ep, "Elastic"))

    def test_low_latency(self):
        for ranks in (1, 8):
            run(ranks, low_latency)

    def test_intranode(self):
        for ranks in (2, 8):
            run(ranks, intranode)

    def test_facts(self):
        run(1, names)
        self.assertGreater(len(list(facts())), 80)
        for name, stated in (("Buffer.lost", ")"), ("Buffer.destroy", "now)"),
                             ("Config", "num_sms=24)"), ("Buffer.combine", "x)")):
            with self.assertRaises((AssertionError, AttributeError)):
                compare_parameters(name, stated)

    def test_weighted(self):
        for ranks in (1, 3):
            run(ranks, weighted)

    def test_scales(self):
        run(3, scales)

    def test_streams(self):
        for ranks in (1, 2):
            run(ranks, streams)

    def test_attributes(self):
        for ranks in (2, 16):
            run(ranks, attributes)

    def test_refusals(self):
        run(3, refusals)

    def test_types(self):
        run(3, types)

    def test_grown(self):
        for ranks in (1, 4):
            run(ranks, grown)

    def test_outside(self):
        for ranks in (1, 2, 4):
            run(ranks, outside)

    def test_dropped(self):
        """Any negative id counts as one without an expert, as -1 does."""
        for ids, experts, expected in (([[0, 1]], None, False), ([[0, -1]], None, True),
                                       ([[-7, 0]], None, True), ([[0, 4]], None, False),
                                       ([[0, 4]], 4, True), ([[0, 3]], 4, False)):
            self.assertEqual(has_dropped(numpy.array(ids), experts), expected)
        self.assertFalse(has_dropped(None))

    def test_strict(self):
        for ranks in (1, 3):
            run(ranks, strict)

    @needs_torch
    def test_torch(self):
        for ranks in (1, 8):
            run(ranks, low_latency, TENSORS="torch")
        run(8, intranode, TENSORS="torch")
        run(3, attributes, TENSORS="torch")
        run(3, scales, TENSORS="torch")
        run(3, weighted, TENSORS="torch")


if __name__ == "__main__":
    main(globals())

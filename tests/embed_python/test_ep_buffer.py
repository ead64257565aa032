# SPDX-License-Identifier: MIT
"""The checks of DeepEP 2.5's tests/ep/test_ep.py, written anew from their inputs and oracles: uneven
ranks, all comparisons bit by bit, on numpy arrays."""

import importlib.util
import itertools
import unittest

import numpy

import peerbus
import peerbus.deep_ep as deep_ep
from ranks import bf16, main, needs_torch, raises, run, widened
from test_deep_ep import gathered, rounded

HIDDEN, TOP_K, MOST = 64, 3, 8


def inputs(rank, experts):
    draw = numpy.random.default_rng(rank)
    count = max(1, MOST - rank)
    x = rounded(draw.standard_normal([count, HIDDEN]))
    ids = numpy.stack([draw.permutation(experts)[:TOP_K] for _ in range(count)]).astype(numpy.int64)
    ids[draw.random([count, TOP_K]) < 0.2] = -1
    return x, ids, draw.random([count, TOP_K]).astype(numpy.float32)


def dispatched(size, rank, experts):
    """Returns the (source, token, slot, expert) of the rows for a rank's experts, in their order."""
    local = experts // size
    return [(source, t, k, e) for e in range(local) for source in range(size)
            for t, row in enumerate(inputs(source, experts)[1])
            for k in range(TOP_K) if row[k] == rank * local + e]


def summed(terms):
    """Returns the sum of float32 rows in their order, rounded once to bfloat16."""
    total = terms[0].copy()
    for term in terms[1:]:
        total += term
    return rounded(total)


def home_sum(start, terms, ids, local):
    """Returns what an expanded combine gives a token that starts with `start` and gets `terms` from
    its slots, if each rank of `local` experts sends home one rounded sum."""
    owners = [-1 if e < 0 else e // local for e in ids]
    parts = [numpy.zeros_like(start)] * len(ids)
    for owner in set(owners) - {-1}:
        mine = [k for k, each in enumerate(owners) if each == owner]
        parts[mine[-1]] = widened(summed([terms[k] for k in mine]))
    return summed([start, *parts])


def options_differ():
    """Ranks that made a buffer with different options are told in the first dispatch."""
    comm = peerbus.Communicator()
    buffer = deep_ep.EPBuffer(comm, allow_multiple_reduction=comm.rank != 1)
    x, ids, _ = inputs(comm.rank, 4)
    for do_expand in (True, False):
        raises(peerbus.Error, "the values of allow_multiple_reduction on rank 1 differ from those of "
               "rank 0", buffer.dispatch, bf16(x), ids, num_experts=4, do_expand=do_expand)
    expanded()


def expanded():
    buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST)
    once = deep_ep.EPBuffer(buffer.comm, num_max_tokens_per_rank=MOST,
                            allow_multiple_reduction=False)
    rank, size = buffer.rank_idx, buffer.num_ranks
    experts, local = 4 * size, 4
    x, ids, weights = inputs(rank, experts)
    expected = dispatched(size, rank, experts)
    everybody = [inputs(source, experts) for source in range(size)]
    fp8 = (x.view(numpy.uint8)[:, :HIDDEN].copy(), weights.copy())
    for alignment, quantised, biases, asynchronous, synchronised in itertools.product(
            (8, 1), (False, True), (0, 1, 2), (False, True), (None, False)):
        stats = numpy.zeros(local, numpy.int32)
        event = buffer.dispatch(
            fp8 if quantised else x, ids, weights, stats, experts, expert_alignment=alignment,
            previous_event=buffer.capture() if asynchronous else None,
            async_with_compute_stream=True, allocate_on_comm_stream=asynchronous,
            do_cpu_sync=synchronised, do_expand=True, do_zero_padding=True, defer_epilogue=True)
        recv, idx, recv_weights, handle = event.wait()
        recv, scales = recv if quantised else (recv, None)
        assert idx is None
        begin, rows = 0, {}
        for e in range(local):
            here = [where for where in expected if where[3] == e]
            for i, (source, t, k, _) in enumerate(here):
                rows[source, t, k] = begin + i
                sent = everybody[source][0][t]
                assert (recv[begin + i] == (
                    sent.view(numpy.uint8)[:HIDDEN] if quantised else sent)).all()
                assert recv_weights[begin + i] == everybody[source][2][t, k]
                if quantised:
                    assert (scales[begin + i] == everybody[source][2][t]).all()
            end = begin + len(here)
            assert handle.psum_num_recv_tokens_per_expert[e] == end
            assert handle.num_unaligned_recv_tokens_per_expert[e] == len(here) == stats[e]
            begin = -(-end // alignment) * alignment
            assert (recv[end:begin] == 0).all()
        if synchronised is False:
            assert len(recv) == -(-(size * MOST * 3 + (alignment - 1) * local) // alignment) * alignment
        else:
            assert len(recv) == begin == handle.num_expanded_tokens
            assert sum(handle.num_recv_tokens_per_expert_list) == begin
        tokens = sorted({where[:2] for where in expected})
        if synchronised is False:
            assert handle.num_expanded_tokens == len(recv)
            assert handle.num_recv_tokens == len(handle.recv_src_metadata) == size * MOST
            assert (handle.recv_src_metadata[len(tokens):] == -1).all()
            assert handle.num_recv_tokens_per_expert_list == []
        else:
            assert handle.num_recv_tokens == len(handle.recv_src_metadata) == len(tokens)
        for entry, (source, t) in zip(handle.recv_src_metadata, tokens):
            slots = [rows.get((source, t, k), -1) for k in range(TOP_K)]
            first = next(k for k in range(TOP_K) if slots[k] >= 0)
            assert (entry == [source * MOST + t, source * TOP_K + first, *slots]).all()
        seeds = numpy.zeros(len(recv), int)
        for (source, t, k), row in rows.items():
            seeds[row] = (source * MOST + t) * TOP_K + k
        y = outputs(seeds)
        bias = [rounded(numpy.full([len(x), HIDDEN], 0.3 * i)) for i in range(1, 1 + biases)]
        combined, combined_weights, event = buffer.combine(
            y, handle, recv_weights, None if biases == 0 else bias[0] if biases == 1 else tuple(bias),
            async_with_compute_stream=asynchronous)
        event.current_stream_wait()
        mine = outputs((rank * MOST + numpy.arange(len(x)))[:, None] * TOP_K + numpy.arange(TOP_K))
        for t in range(len(x)):
            start = sum((widened(b[t]) for b in bias), numpy.zeros(HIDDEN, numpy.float32))
            assert (combined[t] == home_sum(start, widened(mine[t]), ids[t], local)).all()
        assert (combined_weights == numpy.where(ids >= 0, weights, 0)).all()
        again, none, no_weights, same, _ = buffer.dispatch(x, handle=handle, do_zero_padding=True)
        assert same is handle and none is None and no_weights is None and len(again) == len(recv)
        if not quantised:
            assert (again[:begin] == recv[:begin]).all()
        _, _, again, *_ = buffer.dispatch(x, None, weights, handle=handle, do_zero_padding=True)
        assert (again[:begin] == recv_weights[:begin]).all()
    mine = outputs((rank * MOST + numpy.arange(len(x)))[:, None] * TOP_K + numpy.arange(TOP_K))
    recv, _, _, other, _ = once.dispatch(x, ids, num_experts=experts, do_expand=True)
    seeds = numpy.zeros(len(recv), int)
    for entry in other.recv_src_metadata:
        for k, row in enumerate(entry[2:]):
            if row >= 0:
                seeds[row] = entry[0] * TOP_K + k
    combined, _, _ = once.combine(outputs(seeds), other)
    for t in range(len(x)):
        terms = [numpy.zeros(HIDDEN, numpy.float32)]
        terms += [widened(mine[t, k]) for k in range(TOP_K) if ids[t, k] >= 0]
        assert (combined[t] == summed(terms)).all()
    ids[0, 0] = (ids[0, 0] + 1) % experts
    raises(peerbus.InvalidArgument, "was changed", buffer.dispatch, x, handle=handle)


def outputs(seeds):
    """Returns DeepEP's bfloat16 outputs of experts: each row has values of its own."""
    part = (seeds * 131071 % 65521 + 1) / 65521
    return rounded(numpy.sin(part[..., None] * numpy.arange(1, HIDDEN + 1) + numpy.sin(7.0)))


def by_rank():
    """The form without do_expand, with deferred results."""
    buffer = deep_ep.EPBuffer(num_bytes=deep_ep.EPBuffer.get_buffer_size_hint(8, MOST, HIDDEN))
    rank, size = buffer.rank_idx, buffer.num_ranks
    experts, local = 4 * size, 4
    x, ids, weights = inputs(rank, experts)
    ids = ids.astype(numpy.int32)
    received = sorted({where[:2] for where in dispatched(size, rank, experts)})
    stats = numpy.zeros(local, numpy.int32)
    # do_cpu_sync is a truth value: programs give it as a number.
    for synchronised in (None, False, 1, 0, numpy.bool_(False)):
        recv, idx, recv_weights, handle, _ = buffer.dispatch(
            x, ids, weights, stats, experts, MOST, 8, num_sms=24, do_cpu_sync=synchronised)
        is_exact = synchronised is None or bool(synchronised)
        rows = len(received)
        assert (handle.recv_src_metadata[:rows, 0] == [s * MOST + t for s, t in received]).all()
        for row, (source, t) in enumerate(received):
            sent, sent_ids, sent_weights = inputs(source, experts)
            here = sent_ids[t] // local == rank
            assert (recv[row] == sent[t]).all()
            assert (idx[row] == numpy.where(here, sent_ids[t] - rank * local, -1)).all()
            assert (recv_weights[row] == numpy.where(here, sent_weights[t], 0)).all()
        assert (idx[rows:] == -1).all() and idx.dtype == ids.dtype
        assert len(idx) == handle.num_recv_tokens == (rows if is_exact else size * MOST)
        listed = handle.num_recv_tokens_per_expert_list
        counts = -(-handle.num_unaligned_recv_tokens_per_expert // 8) * 8
        assert listed == (counts.tolist() if is_exact else [])
        assert handle.num_expanded_tokens == (sum(listed) if is_exact else -(-(
            size * MOST * min(TOP_K, local) + 7 * local) // 8) * 8)
        again, cached_idx, no_weights, same, _ = buffer.dispatch(x, handle=handle)
        assert same is handle and no_weights is None
        assert (again[:rows] == recv[:rows]).all() and (cached_idx == idx).all()
        assert len(again) == len(recv)
        event = buffer.combine(recv, handle, recv_weights, async_with_compute_stream=True,
                               defer_epilogue=True)
        combined, combined_weights = event.current_stream_wait()
        copies = [len({e // local for e in row if e >= 0}) for row in ids]
        for t, number in enumerate(copies):
            assert (combined[t] == summed([widened(x[t])] * number if number else
                                          [numpy.zeros(HIDDEN, numpy.float32)])).all()
        assert (combined_weights == numpy.where(ids >= 0, weights, 0)).all()
    assert (stats == 5 * handle.num_unaligned_recv_tokens_per_expert).all()
    fp8 = x.view(numpy.uint8)[:, :HIDDEN].copy(), weights.copy()
    (_, by_column), *_ = buffer.dispatch(fp8, ids, None, None, experts, MOST,
                                         use_tma_aligned_col_major_sf=True)
    (_, by_row), *_ = buffer.dispatch(fp8, ids, None, None, experts, MOST)
    assert (by_column == by_row).all() and by_column.strides[0] == 4
    for do_expand in (False, True):  # Before the exchange, whose rows nobody would send home.
        for wrong in (numpy.zeros(local + 1, numpy.int32), numpy.zeros(local, numpy.float32)):
            raises((peerbus.InvalidArgument, TypeError), "cumulative_local_expert_recv_stats",
                   buffer.dispatch, x, ids, None, wrong, experts, MOST, do_expand=do_expand)
    raises(peerbus.InvalidArgument, "num_experts is -1, expected 0 or more", buffer.dispatch, x, ids,
           None, None, -1)
    raises(peerbus.InvalidArgument, "expected 1 to 16777216", buffer.dispatch, x, ids, None, None, 2**28)
    raises(peerbus.InvalidArgument, "num_topk is -8", buffer.get_buffer_size_hint, None, 4, 128, -8)
    raises(peerbus.InvalidArgument, "topk_idx and num_experts", buffer.dispatch, x)
    raises(peerbus.InvalidArgument, "beside a handle", buffer.dispatch, x, ids, handle=handle)
    target = deep_ep.EPBuffer(buffer.comm, num_max_tokens_per_rank=MOST, target="ascend_950")
    raises(peerbus.InvalidArgument, "set do_expand", target.dispatch, x, ids, weights, None, experts)


def arguments():
    """What is refused before anything is sent, and strided scales."""
    buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST)
    rank, experts = buffer.rank_idx, 4 * buffer.num_ranks
    x, ids, weights = inputs(rank, experts)
    bad = peerbus.InvalidArgument

    def dispatch(**given):
        return buffer.dispatch(x, **dict(dict(topk_idx=ids, num_experts=experts), **given))

    recv, _, _, handle, _ = dispatch()
    cached = dict(topk_idx=None, num_experts=None, handle=handle)
    raises(bad, "topk_idx and num_experts", buffer.dispatch, x)
    raises(bad, "beside a handle", dispatch, handle=handle)
    for name, value in (("num_experts", 4), ("expert_alignment", 2), ("num_max_tokens_per_rank", 9)):
        raises(bad, f"{name} is {value} beside a handle", dispatch, **dict(cached, **{name: value}))
    raises(bad, "do_cpu_sync is true beside", dispatch, **dict(cached, do_cpu_sync=1))
    raises(bad, "do_expand is true", dispatch, **dict(cached, do_expand=True))
    raises(TypeError, "handle is tuple", buffer.combine, recv, ())
    raises(bad, "expected async_with", dispatch, defer_epilogue=True)
    raises(bad, "expected async_with", buffer.combine, recv, handle, defer_epilogue=True)
    for counters in (numpy.zeros(5, numpy.int32), numpy.zeros(4, numpy.float32)):
        for do_expand in (False, True):
            raises(bad, "cumulative_local_expert_recv_stats", dispatch, do_expand=do_expand,
                   cumulative_local_expert_recv_stats=counters)
    # Memory of the stream that computes cannot wait for an event; nothing else is asked.
    for event, asynchronous, allocate in itertools.product((None, buffer.capture()), (False, True),
                                                           (False, True)):
        options = dict(previous_event=event, async_with_compute_stream=asynchronous,
                       allocate_on_comm_stream=allocate)
        if event is not None and not allocate:
            raises(bad, "expected allocate_on_comm_stream", dispatch, **options)
            raises(bad, "expected allocate_on_comm_stream", buffer.combine, recv, handle, **options)
        else:
            buffer.combine(dispatch(**options)[0], handle, **options)[2].current_stream_wait()
    for do_expand in (False, True):
        results = []
        for scales in (weights, numpy.asfortranarray(weights)):
            fp8 = x.view(numpy.uint8)[:, :HIDDEN].copy(), scales
            received, *_, expanded_handle, _ = buffer.dispatch(
                fp8, ids, num_experts=experts, do_expand=do_expand, do_zero_padding=do_expand)
            results.append(received[1])
        assert (results[0] == results[1]).all() and len(results[0])
    rows, _, row_weights, by_expert, _ = dispatch(topk_weights=weights, do_expand=True)
    for wrong in (rows[:-1], rows.astype(numpy.int16), rows[0]):
        raises(bad, "x is", buffer.combine, wrong, by_expert)
    for wrong in (row_weights[:-1], row_weights[:, None], row_weights.astype(float)):
        raises(bad, "topk_weights are", buffer.combine, rows, by_expert, wrong)
    buffer.combine(rows, by_expert, row_weights)
    # A copied table of ids may change, and the handle lasts.
    own = ids.copy()
    first = dispatch(topk_idx=own, do_handle_copy=True)
    own[:] = 0
    again = buffer.dispatch(x, handle=first[3])
    assert (again[0] == first[0]).all() and (first[3].topk_idx == ids).all()
    places = first[3].dst_buffer_slot_idx
    for t, row in enumerate(ids):
        owners = [-1 if e < 0 else e // 4 for e in row]
        for k, owner in enumerate(owners):
            before = sum(owner in [-1 if e < 0 else e // 4 for e in other] for other in ids[:t])
            assert places[t, k] == (-1 if owner < 0 or owner in owners[:k] else before)
    buffer.destroy()
    buffer.destroy()
    for call in (buffer.barrier, dispatch, lambda: buffer.combine(recv, handle),
                 lambda: buffer.lb_prefetch_weights(x, x, ids)):
        raises(bad, "EPBuffer was destroyed", call)


def types():
    """Rows of any type arrive as they were sent; rank 1 sends none."""
    buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST)
    rank, size = buffer.rank_idx, buffer.num_ranks
    ids = numpy.arange(size)[None].repeat(2, 0)[:0 if rank == 1 else 2]
    sent = [0 if source == 1 else 2 for source in range(size)]

    def rows_of(source, kind):
        return (numpy.arange(sent[source] * 32).reshape(-1, 32) + source).astype(kind)

    kinds = [numpy.dtype(name) for name in ("f2", "f4", "i8", "u4", "?", "i1", "u1", "u2")]
    for kind in kinds:
        for do_expand in (False, True):
            recv, *_ = buffer.dispatch(rows_of(rank, kind), ids, num_experts=size,
                                       do_expand=do_expand)
            assert recv.dtype == kind
            assert (recv == numpy.concatenate([rows_of(r, kind) for r in range(size)])).all()
    if importlib.util.find_spec("torch") is None:
        return
    import torch
    for kind in (torch.float16, torch.float32, torch.int64, torch.uint8, torch.bfloat16):
        for do_expand in (False, True):
            x = torch.from_numpy(rows_of(rank, "i4")).to(kind)
            recv, *_ = buffer.dispatch(x, torch.from_numpy(ids), num_experts=size,
                                       do_expand=do_expand)
            whole = numpy.concatenate([rows_of(r, "i4") for r in range(size)])
            assert torch.equal(recv, torch.from_numpy(whole).to(kind))


def one_rank_wrong():
    """What one rank gives wrongly is refused on all ranks, which may then call again."""
    for multiple in (True, False):
        buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST, allow_multiple_reduction=multiple)
        rank, experts = buffer.rank_idx, 4 * buffer.num_ranks
        x, ids, weights = inputs(rank, experts)
        for do_expand in (False, True):
            good = dict(topk_idx=ids, topk_weights=weights, num_experts=experts, do_expand=do_expand)

            def dispatch(x=x, **given):
                return buffer.dispatch(x, **dict(good, **given))

            recv, _, _, handle, _ = dispatch()
            cached = dict(topk_idx=None, handle=handle)
            for wrong, text in (
                    (dict(cumulative_local_expert_recv_stats=numpy.zeros(9, "i4")), "recv_stats is"),
                    (dict(previous_event=buffer.capture()), "previous_event is given"),
                    (dict(cached, do_cpu_sync=True), "do_cpu_sync is true"),
                    (dict(num_experts=None), "topk_idx and num_experts"),
                    (dict(x=x.astype(object)), "")):
                if rank == 1:
                    raises((TypeError, ValueError), text, dispatch, **wrong)
                else:
                    raises(peerbus.Refused, "rank 1 was given bad", dispatch)
            if rank == 1:
                raises(ValueError, "previous_event is given", buffer.combine, recv, handle,
                       previous_event=buffer.capture())
            else:
                raises(peerbus.Refused, "rank 1 was given bad", buffer.combine, recv, handle)
            recv, _, _, handle, _ = dispatch()
            combined, _, _ = buffer.combine(recv, handle)
            assert combined.shape == x.shape


def forms_differ():
    """One rank calls with do_expand, or with a handle of such a dispatch, and the others without: all
    are told, in the first call too, and may call again in either form."""
    comm = peerbus.Communicator()
    differs = comm.rank == comm.size - 1
    x, ids, _ = inputs(comm.rank, comm.size)
    for first in (False, True):
        buffer = deep_ep.EPBuffer(comm, num_max_tokens_per_rank=MOST, allow_multiple_reduction=False)

        def dispatch(do_expand):
            recv, _, _, handle, _ = buffer.dispatch(bf16(x), ids, num_experts=comm.size,
                                                    do_expand=do_expand)
            return recv, handle

        says = f"do_expand is {str(not first).lower()} on rank 0 but {str(first).lower()} on rank "
        for round_ in range(3):
            raises(peerbus.Error, says, dispatch, first == differs)
            made = [dispatch(form) for form in ((first, not first), (not first, first))[round_ % 2]]
            raises(peerbus.Error, "do_expand is ", buffer.combine, *made[differs])
            if differs:  # Before it turns to the other form, and without a form.
                raises(ValueError, "previous_event", buffer.combine, *made[0],
                       previous_event=buffer.capture())
                raises(TypeError, "handle is str", buffer.combine, made[0][0], "handle")
            else:
                raises(peerbus.Refused, "previous_event is given", buffer.combine, *made[0])
                raises(peerbus.Refused, "handle is str", buffer.combine, *made[1])
            sums = [buffer.combine(*each)[0] for each in made]
            assert [each.shape for each in sums] == 2 * [x.shape]


def capacity():
    """A call with more tokens of one rank than there is memory for takes more, on all ranks; with a
    num_max_tokens_per_rank it is refused, as one that differs between ranks is. Earlier handles stay
    good."""
    for multiple, do_expand in ((True, False), (True, True), (False, True)):
        buffer = deep_ep.EPBuffer(allow_multiple_reduction=multiple)
        rank, size = buffer.rank_idx, buffer.num_ranks
        last = rank == size - 1

        def dispatch(count, most=None):
            ids = numpy.repeat(numpy.arange(count) % size, 1).reshape(count, 1)
            x = bf16(numpy.repeat(numpy.arange(count) % 64 + rank, 128).reshape(count, 128))
            recv, _, _, handle, _ = buffer.dispatch(x, ids, num_experts=size, do_expand=do_expand,
                                                    num_max_tokens_per_rank=most)
            again(x, recv, handle)
            made.append((x, recv, handle))
            return handle

        def again(x, recv, handle):
            combined, _, _ = buffer.combine(recv, handle)
            assert numpy.array_equal(combined, x)
            cached, _, _, same, _ = buffer.dispatch(x, handle=handle)
            assert same is handle and numpy.array_equal(cached, recv)

        made = []
        few = 3 if rank else 0
        limits = []
        for count, most in ((few, None), (5000, None), (few, None), (few, 8), (5000, 10000), (few, 8)):
            handle = dispatch(count if last or count == few else few, most)
            limits.append(handle.num_max_tokens_per_rank)
            numbers = handle.recv_src_metadata[:, 0]
            assert (numbers % limits[-1] % size == rank).all() and \
                (numbers // limits[-1] < size).all() and (numpy.diff(numbers) > 0).all()
        assert limits == [4096, 8192, 8192, 8, 10000, 8], limits
        for _ in range(2):
            for one in made:
                again(*one)
        assert [handle.num_max_tokens_per_rank for _, _, handle in made] == limits

        for most in (8, 20000):
            raises(peerbus.InvalidArgument if last else peerbus.Refused,
                   f"x has {most + 1} tokens, expected at most num_max_tokens_per_rank, {most}",
                   dispatch, most + 1 if last else few, most)
            if size > 1:
                raises(peerbus.Error, f"num_max_tokens_per_rank is {most} on rank 0 but {most + 1} on "
                                      f"rank {size - 1}", dispatch, few, most + 1 if last else most)
        raises(peerbus.InvalidArgument if last else peerbus.Refused, "-1", dispatch, few,
               -1 if last else None)
        assert dispatch(few).num_max_tokens_per_rank in (8192, 16384)
        limited = deep_ep.EPBuffer(buffer.comm, num_max_tokens_per_rank=2)
        raises(peerbus.InvalidArgument if last else peerbus.Refused, "x has 3 tokens", limited.dispatch,
               numpy.zeros([3 if last else 0, 128], numpy.uint16),
               numpy.zeros([3 if last else 0, 1], int), num_experts=size)


def few_experts():
    """A rank without experts takes part, and all ranks refuse the bad id of one."""
    buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST)
    rank = buffer.rank_idx
    x = bf16(numpy.full([2, HIDDEN], 1 + rank))
    ids = numpy.array([[0, 1], [1, -1]])
    for do_expand in (False, True):
        recv, _, _, handle, _ = buffer.dispatch(x, ids, None, None, 2, do_expand=do_expand)
        listed = gathered(buffer.comm, numpy.array([len(handle.num_recv_tokens_per_expert_list)]))
        assert sorted(listed.flat) == [0, 1, 1]
        combined, _, _ = buffer.combine(recv, handle)
        assert (widened(combined) == (1 + rank) * numpy.array([[2], [1]])).all()
        bad = ids.copy()
        if rank == 1:
            bad[1, 0] = 2
        raises(peerbus.InvalidArgument if rank == 1 else peerbus.Refused, "" if rank == 1 else "rank 1",
               buffer.dispatch, x, bad, None, None, 2, do_expand=do_expand)


def inference():
    """Tensors of torch's inference mode count no versions."""
    import torch
    buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST)
    plain = torch.zeros([2, 1], dtype=torch.int64)
    with torch.inference_mode():
        for ids in (torch.zeros([2, 1], dtype=torch.int64), plain):
            x = torch.ones([2, HIDDEN], dtype=torch.bfloat16)
            recv, _, _, handle, _ = buffer.dispatch(x, ids, None, None, 1)
            combined, _, _ = buffer.combine(recv, handle)
            assert torch.equal(combined, x)
            ids[0, 0] = -1
            raises(peerbus.InvalidArgument, "was changed", buffer.combine, recv, handle)


def events():
    """The members of EventOverlap: hooks, and waits that let go of what the event keeps."""
    buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST)
    x, ids, _ = inputs(0, 4)
    recv, _, _, handle, event = buffer.dispatch(x, ids, num_experts=4,
                                                async_with_compute_stream=True)
    seen = []
    event.register_hook_after_wait(lambda: seen.append(len(recv)))
    raises(peerbus.InvalidArgument, "a hook is registered", event.register_hook_after_wait, list)
    with event(release_handle=True) as entered:
        assert entered is event and seen == []
    assert seen == [len(recv)] and event.event is None and event.hook_after_wait is None
    combined, _, event = buffer.combine(recv, handle, async_with_compute_stream=True)
    assert event.event is not None
    event.current_stream_wait()
    before = combined.copy()
    combined[:] = 0
    assert event.event is not None
    with event:
        pass  # Completes nothing twice.
    assert (combined == 0).all() and before.any()
    event.current_stream_wait(release_handle=True)
    assert event.event is None


def prefetched():
    """Weights of experts in spare slots of other ranks."""
    buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST)
    rank, size, local, spare = buffer.rank_idx, buffer.num_ranks, 2, 3
    own = numpy.stack([numpy.full([4, 8], rank * local + e, numpy.float32) for e in range(local)])
    slots = numpy.full([spare, 4, 8], -7, numpy.float32)
    mapping = numpy.full([size, spare], -1, numpy.int32)
    for r in range(size):
        mapping[r, 0] = (r + 1) % size * local + 1
        mapping[r, 2] = (r + size - 1) % size * local
    for _ in range(3):
        slots[:] = -7
        buffer.lb_prefetch_weights(slots, own, mapping).current_stream_wait()
        for slot, expert in enumerate(mapping[rank]):
            assert (slots[slot] == (-7 if expert < 0 else expert)).all()
    # Weights and scales by one call, and types whose bytes only move.
    for kinds in (("float16", "uint32"), ("int16", "complex64"), ("float64", "uint8")):
        sources = [(own.reshape(local, 32) + i).astype(kind) for i, kind in enumerate(kinds)]
        targets = [numpy.zeros([spare, 32], kind) for kind in kinds]
        buffer.lb_prefetch_weights(targets, tuple(sources), mapping)
        for i, target in enumerate(targets):
            for slot, expert in enumerate(mapping[rank]):
                assert (target[slot] == (0 if expert < 0 else expert + i)).all()
    expert = numpy.zeros([local, deep_ep.get_num_tma_alignment()], numpy.int8)
    buffer.lb_prefetch_weights(numpy.ones_like(expert), expert, numpy.full([size, local], -1, "i4"))
    other = mapping.copy()
    if rank == 1:
        other[0, 1] = mapping[0, 0]
    raises(peerbus.Error, "rank 1 differ", buffer.lb_prefetch_weights, slots, own, other)
    more = numpy.concatenate([own, own[:1]]) if rank == 2 else own
    none = numpy.full_like(mapping, -1)  # Fits any number of experts.
    raises(peerbus.Error, "rank 2 differ", buffer.lb_prefetch_weights, slots, more, none)
    for bad, text in ((lambda: (slots[0, 0, 0], own), "has no dimensions"),
                      (lambda: ([slots], [own, own]), "1 tensors and expert_weights 2"),
                      (lambda: ([], own), "is empty"),
                      (lambda: (slots[:, :2], own), "has gaps"),
                      (lambda: ([slots, slots[:1]], [own, own]), "tensor 1 has 1 slots")):
        raises(peerbus.InvalidArgument if rank == 1 else peerbus.Refused,
               text if rank == 1 else "rank 1 refused",
               buffer.lb_prefetch_weights, *(bad() if rank == 1 else (slots, own)), mapping)
    if rank == 0:
        other[0, 1] = 0  # Its own expert.
    raises(peerbus.InvalidArgument if rank == 0 else peerbus.Refused,
           "an expert of another rank" if rank == 0 else "rank 0 refused",
           buffer.lb_prefetch_weights, slots, own, other)
    flat = numpy.zeros([], numpy.float32) if rank == 0 else slots
    raises(peerbus.InvalidArgument if rank == 0 else peerbus.Refused,
           "no dimensions" if rank == 0 else "rank 0 refused",
           buffer.lb_prefetch_weights, flat, own, mapping)
    buffer.lb_prefetch_weights(slots, own, mapping)


def reduced():
    """Gradients of spare slots, added to those of their experts at home."""
    buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST)
    rank, size, local, spare, width = buffer.rank_idx, buffer.num_ranks, 2, 3, 24
    mapping = numpy.full([size, spare], -1, numpy.int32)
    for r in range(size):
        mapping[r, 0] = (r + 1) % size * local + 1
        mapping[r, 2] = (r + 2) % size * local + 1

    def drawn(r):
        return numpy.random.default_rng(r).standard_normal([spare, width]).astype(numpy.float32)

    for _ in range(3):
        grads, own = drawn(rank), numpy.full([local, width], rank, numpy.float32)
        buffer.lb_reduce_grads(grads, own, mapping, previous_event=buffer.capture()).wait()
        expected = numpy.full([local, width], rank, numpy.float32)
        for r in range(size):
            for slot in range(spare):
                if mapping[r, slot] // local == rank:
                    expected[mapping[r, slot] % local] += drawn(r)[slot]
        assert (own == expected).all() and (grads == drawn(rank)).all() and (own[0] == rank).all()
    wrong = mapping.copy()
    wrong[1, 1] = local  # Rank 1's own expert.
    for bad, text in (((grads, own, wrong), "an expert of another rank"),
                      ((grads.astype(float), own, mapping), "expected float32"),
                      ((grads[0], own, mapping), "expected float32 [any, any]"),
                      ((grads[:, :23].copy(), own[:, :23].copy(), mapping), "multiples of 32")):
        raises(peerbus.InvalidArgument if rank == 1 else peerbus.Refused,
               text if rank == 1 else "rank 1 refused", buffer.lb_reduce_grads,
               *(bad if rank == 1 else (grads, own, mapping)))
    raises(peerbus.Error, "rank 2 differ", buffer.lb_reduce_grads, grads, own,
           numpy.full_like(mapping, -1) if rank == 2 else mapping)
    assert (own == expected).all()
    target = deep_ep.EPBuffer(buffer.comm, target="ascend_950")
    raises(peerbus.Error, "ascend_950 refuses", target.lb_reduce_grads, grads, own, mapping)


def planned():
    """The tensors of a plan lie in the buffer's memory."""
    import torch
    plan = deep_ep.BufferAllocator()
    slots, scales = plan.allocate([2, 32], torch.bfloat16), plan.allocate([2, 8], torch.float32)
    slots.fill_(7)
    buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST, lb_allocation_plan_or_num_bytes=plan)
    assert plan.materialized and buffer.num_lb_bytes == plan.num_bytes > 0
    assert not slots.any() and not scales.any()
    rank, size = buffer.rank_idx, buffer.num_ranks
    own = [torch.full([2, 32], 1.0 + rank, dtype=torch.bfloat16), torch.full([2, 8], 5.0 + rank)]
    mapping = torch.tensor([[(r + 1) % size * 2, -1] for r in range(size)], dtype=torch.int32)
    buffer.lb_prefetch_weights([slots, scales], own, mapping)
    assert (slots[0] == 1 + (rank + 1) % size).all() and (scales[0] == 5 + (rank + 1) % size).all()
    assert not slots[1].any()
    raises(peerbus.InvalidArgument, "has been used", deep_ep.EPBuffer, buffer.comm,
           lb_allocation_plan_or_num_bytes=plan)
    assert deep_ep.EPBuffer(buffer.comm, lb_allocation_plan_or_num_bytes=4096).num_lb_bytes == 4096


class Tests(unittest.TestCase):
    def test_expanded(self):
        for ranks in (1, 5):
            run(ranks, expanded)
        run(4, expanded, hosts=2)

    def test_by_rank(self):
        for ranks in (1, 8):
            run(ranks, by_rank)
        run(4, by_rank, hosts=2)

    def test_arguments(self):
        run(2, arguments)

    def test_options_differ(self):
        run(3, options_differ)

    def test_types(self):
        run(3, types)

    def test_one_rank_wrong(self):
        run(3, one_rank_wrong)

    def test_forms_differ(self):
        run(3, forms_differ)

    def test_capacity(self):
        for ranks in (1, 2, 4):
            run(ranks, capacity)

    def test_few_experts(self):
        run(3, few_experts)

    @needs_torch
    def test_inference(self):
        run(1, inference)

    def test_events(self):
        run(1, events)

    def test_prefetched(self):
        run(3, prefetched)

    def test_reduced(self):
        run(3, reduced)

    @needs_torch
    def test_planned(self):
        run(2, planned)
        run(2, planned, hosts=2)


if __name__ == "__main__":
    main(globals())

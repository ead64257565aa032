# SPDX-License-Identifier: MIT
"""The checks of DeepEP 2.5's tests/ep/test_ep.py, written anew from their inputs and oracles: uneven
ranks, all comparisons bit by bit, on numpy arrays."""

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


def expanded():
    buffer = deep_ep.EPBuffer(num_max_tokens_per_rank=MOST)
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
            async_with_compute_stream=asynchronous, allocate_on_comm_stream=asynchronous,
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
        assert handle.num_recv_tokens == len(tokens)
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
            terms = [start] + [widened(mine[t, k]) for k in range(TOP_K) if ids[t, k] >= 0]
            assert (combined[t] == summed(terms)).all()
        assert (combined_weights == numpy.where(ids >= 0, weights, 0)).all()
        again, none, _, second, _ = buffer.dispatch(x, handle=handle, do_zero_padding=True)
        assert second.do_expand and none is None
        if not quantised and synchronised is None:
            assert (again == recv).all()
    ids[0, 0] = (ids[0, 0] + 1) % experts
    raises(peerbus.InvalidArgument, "was changed", buffer.dispatch, x, handle=second)


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
    received = sorted({where[:2] for where in dispatched(size, rank, experts)})
    stats = numpy.zeros(local, numpy.int32)
    for synchronised in (None, False):
        recv, idx, recv_weights, handle, _ = buffer.dispatch(
            x, ids, weights, stats, experts, MOST, 8, num_sms=24, do_cpu_sync=synchronised)
        rows = len(received)
        assert (handle.recv_src_metadata[:, 0] == [s * MOST + t for s, t in received]).all()
        for row, (source, t) in enumerate(received):
            sent, sent_ids, sent_weights = inputs(source, experts)
            here = sent_ids[t] // local == rank
            assert (recv[row] == sent[t]).all()
            assert (idx[row] == numpy.where(here, sent_ids[t] - rank * local, -1)).all()
            assert (recv_weights[row] == numpy.where(here, sent_weights[t], 0)).all()
        assert (idx[rows:] == -1).all() and len(idx) == (
            rows if synchronised is None else size * MOST)
        event = buffer.combine(recv, handle, recv_weights, defer_epilogue=True)
        combined, combined_weights = event.current_stream_wait()
        copies = [len({e // local for e in row if e >= 0}) for row in ids]
        for t, number in enumerate(copies):
            assert (combined[t] == summed([widened(x[t])] * number if number else
                                          [numpy.zeros(HIDDEN, numpy.float32)])).all()
        assert (combined_weights == numpy.where(ids >= 0, weights, 0)).all()
    assert (stats == 2 * handle.num_unaligned_recv_tokens_per_expert).all()
    fp8 = x.view(numpy.uint8)[:, :HIDDEN].copy(), weights.copy()
    (_, by_column), *_ = buffer.dispatch(fp8, ids, None, None, experts, MOST,
                                         use_tma_aligned_col_major_sf=True)
    (_, by_row), *_ = buffer.dispatch(fp8, ids, None, None, experts, MOST)
    assert (by_column == by_row).all() and by_column.strides[0] == 4
    raises(peerbus.InvalidArgument, "topk_idx and num_experts", buffer.dispatch, x)
    raises(peerbus.InvalidArgument, "beside a handle", buffer.dispatch, x, ids, handle=handle)
    target = deep_ep.EPBuffer(buffer.comm, num_max_tokens_per_rank=MOST, target="ascend_950")
    raises(peerbus.InvalidArgument, "set do_expand", target.dispatch, x, ids, weights, None, experts)


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
    other = mapping.copy()
    if rank == 1:
        other[0, 1] = mapping[0, 0]
    raises(peerbus.Error, "rank 1 differ", buffer.lb_prefetch_weights, slots, own, other)
    more = numpy.concatenate([own, own[:1]]) if rank == 2 else own
    none = numpy.full_like(mapping, -1)  # Fits any number of experts.
    raises(peerbus.Error, "rank 2 differ", buffer.lb_prefetch_weights, slots, more, none)
    whole = (slots.view(numpy.int32), own.view(numpy.int32)) if rank == 1 else (slots, own)
    raises(peerbus.Error, "rank 1 differ", buffer.lb_prefetch_weights, *whole, mapping)
    raises(peerbus.InvalidArgument, "different types", buffer.lb_prefetch_weights, slots,
           own.view(numpy.int32), mapping)
    if rank == 0:
        other[0, 1] = 0  # Its own expert.
    raises(peerbus.InvalidArgument if rank == 0 else peerbus.Refused,
           "an expert of another rank" if rank == 0 else "rank 0 refused",
           buffer.lb_prefetch_weights, slots, own, other)
    buffer.lb_prefetch_weights(slots, own, mapping)


class Tests(unittest.TestCase):
    def test_expanded(self):
        for ranks in (1, 5):
            run(ranks, expanded)

    def test_by_rank(self):
        for ranks in (1, 8):
            run(ranks, by_rank)

    def test_few_experts(self):
        run(3, few_experts)

    @needs_torch
    def test_inference(self):
        run(1, inference)

    def test_events(self):
        run(1, events)

    def test_prefetched(self):
        run(3, prefetched)


if __name__ == "__main__":
    main(globals())

# SPDX-License-Identifier: MIT
"""One token among others that differ, through what takes same_bits: the bits of its output may not depend
on the ranks, the tokens around it, the layout, the placement or the transport. The first run, of one rank,
keeps them in the file BITS, and the others compare."""

import collections
import os
import tempfile
import unittest

import numpy

import peerbus
import peerbus.deep_ep as deep_ep
from peerbus.engines import dealt, sglang, vllm
from ranks import main, raises, run, widened
from test_deep_ep import codes, rounded

EXPERTS, HIDDEN, TOP_K, MOST = 35, 256, 4, 5
TopK = collections.namedtuple("TopK", "topk_weights topk_ids")
Quant = collections.namedtuple("Quant", "quant_dtype block_shape per_act_token_quant")


class Token:
    """The token at a place of its own in this rank's batch, if this rank is its home."""

    def __init__(self, rank, size, seed):
        shared, draw = numpy.random.default_rng(seed), numpy.random.default_rng([seed, rank, size])
        own = numpy.random.default_rng(7)
        is_home = shared.integers(size) == rank
        count = draw.integers(1, MOST + 1) if is_home else draw.integers(0, MOST + 1)
        self.x = rounded(draw.uniform(-100, 100, [count, HIDDEN]))
        self.ids = numpy.array([draw.permutation(EXPERTS)[:TOP_K] for _ in range(count)],
                               numpy.int64).reshape(count, TOP_K)
        self.weights = draw.random([count, TOP_K], numpy.float32)
        self.codes = draw.integers(0, 127, [count, HIDDEN], numpy.uint8)  # All are numbers.
        self.place = draw.integers(count) if is_home else None
        if is_home:
            self.x[self.place] = rounded(own.uniform(-2, 2, HIDDEN))
            self.codes[self.place] = own.integers(0, 127, HIDDEN, numpy.uint8)
            self.ids[self.place] = 33, 0, 17, 9
            # Several magnitudes, so that another order of sums gives other bits.
            self.weights[self.place] = 0.4, 0.013, 0.3, 0.287


class Kept:
    """The bits by name: written by the first run, compared by the others."""

    def __init__(self):
        self.file, self.new = os.environ["BITS"], {}
        self.known = dict(numpy.load(self.file)) if os.path.exists(self.file) else None

    def compare(self, name, token, sums):
        if token.place is None:
            return
        bits = sums[token.place]
        assert not (widened(bits) == 0).all(), name
        first = self.new.setdefault(name, bits) if self.known is None else self.known[name]
        assert (bits == first).all(), f"{name}: {(bits != first).sum()} channels differ"

    def save(self):
        if self.known is None:
            numpy.savez(self.file, **self.new)


def outputs_of(experts, rows, scales):
    """Returns what experts make of rows, of which `experts` are the numbers, as bits."""
    if rows.dtype == numpy.uint16:
        values = widened(rows)
    else:
        if scales is None:  # The codes are the values.
            scales = numpy.ones([*rows.shape[:-1], 1], numpy.float32)
        if scales.dtype == numpy.uint8:  # Exponents, and behind them padding.
            scales = (scales[..., :HIDDEN // 128].astype(numpy.uint32) << 23).view(numpy.float32)
        repeats = HIDDEN // scales.shape[-1]
        coded = rows.astype(numpy.float32) if rows.dtype == numpy.int8 else \
            codes()[rows].astype(numpy.float32)
        values = coded * numpy.repeat(scales, repeats, -1)
    factors = numpy.array([1.7 ** (e % 11) - 0.3 for e in range(EXPERTS)], numpy.float32)
    return rounded(values * factors[experts][..., None])


def by_exchange(comm, kept, seed):
    for codec in ("bf16", "int8_per_token", "fp8_f32", "fp8_rounded", "fp8_ue8m0", "fp8_as_given"):
        for layout in ("compact", "padded", "expert_slots"):
            with comm.exchange(experts=EXPERTS, hidden=HIDDEN, top_k=TOP_K, max_tokens=MOST,
                               codec=codec, layout=layout, relay="automatic", same_bits=True) as moe:
                token = Token(comm.rank, comm.size, seed)
                received = moe.dispatch(token.codes if codec == "fp8_as_given" else token.x, token.ids,
                                        token.weights)
                for block, expert in enumerate(received.expert_ids):
                    for first, count in zip(received.first_rows[block], received.counts[block]):
                        rows = slice(first, first + count)
                        received.outputs[rows] = outputs_of(
                            numpy.full(count, expert), received.row_data[rows],
                            None if received.scales is None else received.scales[rows])
                kept.compare(codec, token, moe.combine(received, len(token.x)))


def by_vllm(comm, kept, seed):
    manager = vllm.All2AllManager(comm, same_bits=True)
    handle = manager.get_handle(dict(
        max_num_tokens_per_dp_rank=MOST, token_hidden_size=HIDDEN, num_ep_ranks=comm.size,
        num_global_experts=EXPERTS, num_local_experts=EXPERTS // comm.size))
    to_place = numpy.random.default_rng(seed).permutation(EXPERTS)
    to_global = numpy.argsort(to_place)
    own = to_global[handle.first_expert:][:handle.local_experts]
    for quant, codec in ((None, "bf16"), (Quant("int8", None, True), "int8_per_token"),
                         (Quant("float8_e4m3fn", [128, 128], False), "fp8_f32")):
        for batched in (False, True):
            token = Token(comm.rank, comm.size, seed)
            steps = vllm.PrepareAndFinalize(handle, batched, (to_place, to_global, own))
            rows, scales, meta, ids, weights = steps.prepare(
                token.x, token.weights, token.ids, EXPERTS, None, False, quant)
            experts = numpy.repeat(own[:, None], rows.shape[1], 1) if batched else ids[:, 0]
            with numpy.errstate(all="ignore"):  # Behind the rows that came lies anything.
                outputs = outputs_of(experts, rows, scales)
            out = numpy.empty([len(token.x), HIDDEN], numpy.uint16)
            steps.finalize(out, outputs, token.weights if batched else weights,
                           token.ids if batched else ids, False, None)
            kept.compare(codec, token, out)
    manager.destroy()


def by_sglang(comm, kept, seed):
    for mode in ("normal", "low_latency"):
        token = Token(comm.rank, comm.size, seed)
        dispatcher = sglang.PeerbusDispatcher(
            comm, TOP_K, num_experts=EXPERTS, hidden_size=HIDDEN, deepep_mode=mode, same_bits=True,
            max_prefill_tokens=MOST, max_decode_tokens=MOST)
        came = dispatcher.dispatch(token.x, TopK(token.weights, token.ids))
        first = sum(dealt(EXPERTS, comm.size)[:comm.rank])
        if mode == "normal":
            assert (came.topk_ids[:, 1:] == -1).all() and (came.topk_weights[:, 0] == 1).all()
            experts = came.topk_ids[:, 0] + first
        else:
            shape = came.hidden_states.shape[:2]
            experts = numpy.repeat(first + numpy.arange(shape[0])[:, None], shape[1], 1)
        with numpy.errstate(all="ignore"):
            outputs = outputs_of(experts, came.hidden_states, None)
        kept.compare("bf16", token, dispatcher.combine((outputs, token.ids, token.weights)))
        sglang.PeerbusDispatcher.destroy_all()


def by_deep_ep(comm, kept, seed):
    if EXPERTS % comm.size:
        return  # DeepEP's names need equal numbers of experts.
    buffer = deep_ep.Buffer(comm, low_latency_mode=True, same_bits=True, relay="automatic")
    token = Token(comm.rank, comm.size, seed)
    for use_fp8 in (False, True):
        received, _, handle, _, _ = buffer.low_latency_dispatch(
            token.x, token.ids, MOST, EXPERTS, use_fp8=use_fp8)
        rows, scales = received if use_fp8 else (received, None)
        local = EXPERTS // comm.size
        experts = numpy.repeat(comm.rank * local + numpy.arange(local)[:, None], rows.shape[1], 1)
        with numpy.errstate(all="ignore"):
            outputs = outputs_of(experts, rows, scales)
        out, _, _ = buffer.low_latency_combine(outputs, token.ids, token.weights, handle)
        kept.compare("fp8_f32" if use_fp8 else "bf16", token, out)
    raises(peerbus.Error, "same_bits with layout rank_major", buffer.dispatch, token.x,
           topk_idx=token.ids, topk_weights=token.weights,
           **dict(zip(("num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert",
                       "is_token_in_rank"), buffer.get_dispatch_layout(token.ids, EXPERTS)[:4])))
    raises(peerbus.InvalidArgument, "same_bits", deep_ep.Buffer, comm, relay="always", same_bits=True)
    buffer.destroy()


def all_ways():
    comm = peerbus.Communicator(transport=os.environ.get("TRANSPORT", "automatic"))
    kept = Kept()
    for seed in (1, 2):
        for way in (by_exchange, by_vllm, by_sglang, by_deep_ep):
            way(comm, kept, seed)
    kept.save()


class Tests(unittest.TestCase):
    def test_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            bits = os.path.join(folder, "bits.npz")
            run(1, all_ways, BITS=bits)
            self.assertTrue(os.path.exists(bits))
            for ranks, hosts, transport in ((2, 1, "unified_bus"), (3, 1, "unified_bus"),
                                            (5, 1, "unified_bus"), (7, 1, "unified_bus"),
                                            (5, 2, "planes"), (3, 2, "fabric")):
                with self.subTest(ranks=ranks, transport=transport):
                    run(ranks, all_ways, hosts=hosts, BITS=bits, TRANSPORT=transport)


if __name__ == "__main__":
    main(globals())

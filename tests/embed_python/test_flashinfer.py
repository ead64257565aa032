# SPDX-License-Identifier: MIT
"""peerbus.engines.flashinfer, called in the order in which FlashInfer's moe_ep layer calls a fleet. On
numpy arrays, and on torch tensors where torch is installed: TENSORS=torch."""

import abc
import collections
import enum
import types
import unittest

import numpy

import peerbus
from engine_model import (EXPERTS, HIDDEN, MOST, TOP_K, Model, batches, by_expert, check_arguments,
                          expected, put_module, summed)
from ranks import bf16, main, needs_torch, raises, run, widened


class EpAlgorithm(enum.Enum):
    LOW_LATENCY, HIGH_THROUGHPUT = range(2)


class EpLayout(enum.Enum):
    EXPERT_MAJOR, RANK_MAJOR = range(2)


class QuantType(enum.Enum):
    FP8E4M3, NVFP8 = range(2)


class HandleAlgoKnobTopKWeights(types.SimpleNamespace):
    pass


class HandleAlgoKnobSplitOperation(types.SimpleNamespace):
    pass


class HandleAlgoKnobNumReceivedTokens(types.SimpleNamespace):
    pass


class FleetAlgoKnobQuantization(types.SimpleNamespace):
    pass


Params = types.SimpleNamespace


def fleet_of(rank, algorithm=EpAlgorithm.LOW_LATENCY, layout=EpLayout.EXPERT_MAJOR, knobs=(),
             experts=EXPERTS, **options):
    from peerbus.engines import flashinfer
    options.setdefault("relay", rank.relay)
    return flashinfer.PeerbusFleet(
        Params(world_size=rank.size, rank=rank.rank, process_group=rank.comm),
        Params(num_experts=experts, max_tokens_per_rank=MOST, token_hidden_size=HIDDEN,
               algorithm=algorithm, layout=layout), knobs, **options)


def moe_ep(rank, fleet, batch, is_split=False, with_out=False):
    """Returns the sums, as FlashInfer's layer gets them."""
    x, weights, ids = rank.given(*batch)
    target = rank.kind.given(numpy.zeros([1], numpy.int64))
    knobs = [HandleAlgoKnobTopKWeights(weights=weights), HandleAlgoKnobNumReceivedTokens(target=target)]
    knobs += [HandleAlgoKnobSplitOperation()] * is_split
    handle = fleet.create_handle(Params(topk_ids=ids), knobs)
    if is_split:
        handle.dispatch_send_only(Params(x=[x]))
        got = handle.dispatch_recv_only()
    else:
        got = handle.dispatch(Params(x=[x]))
    if fleet.layout == "padded":
        assert got.num_tokens == rank.size * MOST and got.recv_topk_idx is None
        outputs = by_expert(rank, got.expert_tensors, got.expert_scales, got.expert_counts)
    else:
        rows, slots = widened(rank.kind.got(got.expert_tensors)), rank.kind.got(got.recv_topk_idx)
        flat = rows.reshape(-1, HIDDEN)
        assert slots.shape == (len(flat), TOP_K)
        if fleet.layout == "slots":
            counts = rank.kind.got(got.expert_counts)
            assert rows.shape == (rank.size, MOST, HIDDEN) and counts.shape == (rank.size,)
            assert ((slots >= 0).any(1).reshape(rank.size, MOST).sum(1) == counts).all()
            assert got.recv_total_counter is None
        else:
            assert rank.kind.got(got.recv_total_counter)[0] == got.num_tokens == len(flat)
        assert slots.dtype == numpy.int64
        weighted = numpy.where(slots >= 0, rank.kind.got(got.recv_topk_weights), 0)
        outputs = rank.kind.given(summed(rank, flat, slots, weighted).reshape(rows.shape), True)
    out = rank.kind.given(bf16(numpy.zeros([len(batch[0]), HIDDEN])), True) if with_out else None
    sums = handle.combine(Params(x=[outputs], out=out)).x
    handle.complete()
    assert not with_out or sums is out
    handle.destroy()
    return widened(rank.kind.got(sums))


def layouts_and_orders():
    """All layouts, whole and split; two handles under way; quantized rows; another bootstrap."""
    rank = Model()
    layouts = [(EpAlgorithm.LOW_LATENCY, layout) for layout in EpLayout]
    for algorithm, layout in layouts + [(EpAlgorithm.HIGH_THROUGHPUT, EpLayout.EXPERT_MAJOR)]:
        fleet = fleet_of(rank, algorithm, layout)
        for i, batch in enumerate(batches(rank)):
            assert (moe_ep(rank, fleet, batch, i % 2 == 1, i > 2) == expected(*batch)).all()
        fleet.destroy()
        raises(peerbus.InvalidArgument, "destroyed", moe_ep, rank, fleet, batch)
    fleet = fleet_of(rank, knobs=[FleetAlgoKnobQuantization(quants=frozenset([QuantType.FP8E4M3]))])
    batch = rank.tokens(3, is_constant=True)
    assert (moe_ep(rank, fleet, batch) == expected(*batch)).all()
    fleet.update_topology(fleet.bootstrap)
    assert (moe_ep(rank, fleet, batch) == expected(*batch)).all()
    assert fleet.query_fault() is False and fleet.supports_fault_tolerance is False
    raises(NotImplementedError, "NVFP8", fleet_of, rank, knobs=[
        FleetAlgoKnobQuantization(quants=frozenset([QuantType.NVFP8]))])
    x, weights, ids = rank.given(*batch)
    raises(ValueError, "HandleAlgoKnobTopKWeights", fleet.create_handle, Params(topk_ids=ids))
    handles = [fleet.create_handle(Params(topk_ids=ids), [HandleAlgoKnobTopKWeights(weights=weights)])
               for _ in range(2)]
    raises(peerbus.InvalidArgument, "before dispatch", handles[0].combine, Params(x=[x], out=None))
    raises(peerbus.InvalidArgument, "before dispatch_send_only", handles[0].dispatch_recv_only)
    for handle in handles:
        handle.dispatch_send_only(Params(x=[x]))
    raises(peerbus.InvalidArgument, "dispatched before", handles[0].dispatch, Params(x=[x]))
    for handle in handles:
        got = handle.dispatch_recv_only()
        outputs = by_expert(rank, got.expert_tensors, got.expert_scales, got.expert_counts)
        sums = handle.combine(Params(x=[outputs], out=None)).x
        assert (widened(rank.kind.got(sums)) == expected(*batch)).all()
    given = [x, x] if rank.rank == 0 else [x]
    handle = fleet.create_handle(Params(topk_ids=ids), [HandleAlgoKnobTopKWeights(weights=weights)])
    raises((peerbus.InvalidArgument, peerbus.Refused), "", handle.dispatch, Params(x=given))
    got = handle.dispatch(Params(x=[x]))
    outputs = by_expert(rank, got.expert_tensors, got.expert_scales, got.expert_counts)
    assert (widened(rank.kind.got(handle.combine(Params(x=[outputs], out=None)).x))
            == expected(*batch)).all()
    assert (moe_ep(rank, fleet, batch) == expected(*batch)).all()


# What FlashInfer calls, in flashinfer@fb28d724.
CALLED = {
    "PeerbusFleet": {
        "__init__": "bootstrap params algo_knobs", "create_handle": "params algo_knobs",
        "update_topology": "bootstrap algo_knobs", "destroy": "", "query_fault": ""},
    "PeerbusHandle": {
        "dispatch": "params", "combine": "params", "complete": "", "destroy": "",
        "dispatch_send_only": "params", "dispatch_recv_only": ""}}


def in_flashinfer():
    """Where FlashInfer is there, the classes are of its own abstract ones, and its registry has the
    fleet."""
    def abstract(name, *methods):
        return abc.ABCMeta(name, (), {method: abc.abstractmethod(lambda *_: None) for method in methods})

    registry = {}
    for name in ("flashinfer", "flashinfer.moe_ep", "flashinfer.moe_ep.core",
                 "flashinfer.moe_ep.core.comm"):
        put_module(name)
    Output = collections.namedtuple(
        "Output", "expert_tensors num_tokens recv_topk_idx recv_topk_weights expert_counts "
        "recv_total_counter expert_scales", defaults=(None,) * 5)
    put_module("flashinfer.moe_ep.config", DispatchOutput=Output,
           CombineOutput=collections.namedtuple("CombineOutput", "x"))
    put_module("flashinfer.moe_ep.core.comm.fleet", _BACKEND_REGISTRY=registry,
           Fleet=abstract("Fleet", "__init__", "create_handle", "update_topology", "destroy"))
    put_module("flashinfer.moe_ep.core.comm.handle",
           Handle=abstract("Handle", "dispatch", "combine", "complete"))
    from peerbus.engines import flashinfer as back_end
    back_end.register()
    assert registry == {"peerbus": back_end.PeerbusFleet}
    rank = Model()
    batch = rank.tokens(2)
    assert (moe_ep(rank, fleet_of(rank), batch) == expected(*batch)).all()


def few_experts():
    """Some ranks have no expert."""
    rank = Model()
    for layout in EpLayout:
        fleet = fleet_of(rank, layout=layout, experts=2)
        x, weights, _ = rank.given(*rank.tokens(2, top_k=2))
        ids = rank.kind.given(numpy.array([[1, 0], [0, -1]]))
        handle = fleet.create_handle(Params(topk_ids=ids), [HandleAlgoKnobTopKWeights(weights=weights)])
        got = handle.dispatch(Params(x=[x]))
        assert fleet.layout != "padded" or len(got.expert_tensors) == (rank.rank < 2)
        sums = handle.combine(Params(x=[got.expert_tensors], out=None)).x
        assert sums.shape == (2, HIDDEN)


class Tests(unittest.TestCase):
    def test_ranks(self):
        for ranks in (2, 3, 5):
            with self.subTest(ranks=ranks):
                run(ranks, layouts_and_orders)
        run(3, few_experts)

    def test_on_two_hosts(self):
        for ranks in (3, 4):
            run(ranks, layouts_and_orders, hosts=2, RELAY="always")

    def test_flashinfer_is_there(self):
        run(2, in_flashinfer, fresh=True)

    @needs_torch
    def test_torch(self):
        run(3, layouts_and_orders, TENSORS="torch")

    def test_interface(self):
        from peerbus.engines import flashinfer
        for name, methods in CALLED.items():
            check_arguments(self, getattr(flashinfer, name), methods)


if __name__ == "__main__":
    main(globals())

# SPDX-License-Identifier: MIT
"""peerbus.engines.flashinfer, called in the order in which FlashInfer's moe_ep layer calls a fleet. On
numpy arrays, and on torch tensors where torch is installed: TENSORS=torch."""

import abc
import collections
import enum
import os
import time
import types
import unittest
from unittest import mock

import numpy

import peerbus
from peerbus.engines import dealt
from engine_model import (EXPERTS, HIDDEN, MOST, TOP_K, Model, batches, by_expert, check_arguments,
                          expected, put_module, summed)
from ranks import bf16, die, die_after, main, needs_torch, raises, run, widened


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


class FleetAlgoKnobFaultTolerance(types.SimpleNamespace):
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
    assert fleet.query_fault() is False
    assert fleet.supports_fault_tolerance is (len(rank.comm.near_ranks) == rank.size)
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


def without(rank, gone, x, weights, ids):
    """Returns a batch without the experts of ranks, of which the exact output is then expected."""
    owners = numpy.repeat(range(rank.size), dealt(EXPERTS, rank.size))
    return x, weights, numpy.where(numpy.isin(owners[ids], list(gone)), -1, ids)


def check(rank, fleet, gone=(), count=4, **options):
    """Requires that a round has the exact sums without the experts of some ranks."""
    batch = rank.tokens(count)
    sums = moe_ep(rank, fleet, batch, **options)
    assert (sums == expected(*without(rank, gone, *batch))).all()


def mask_of(rank, fleet):
    """Returns the active mask as a list."""
    mask = rank.kind.got(fleet.query_active_mask())
    assert mask.dtype == numpy.int32 and mask.shape == (rank.size,)
    return mask.tolist()


def end(rank, ranks):
    """The `ranks` die after all have come here."""
    rank.comm.barrier()
    if rank.rank in ranks:
        die()


def reconcile(rank, fleet, gone, epoch=None, **options):
    """Goes on, and requires that all ranks have the mask without those which are gone."""
    before = fleet.active_mask_epoch
    wanted = [int(r not in gone) for r in range(rank.size)]
    mask = fleet.reconcile_active_mask(**options)
    assert rank.kind.got(mask).tolist() == wanted == mask_of(rank, fleet)
    assert not fleet.query_fault() and before < fleet.active_mask_epoch <= len(gone)
    assert epoch in (None, fleet.active_mask_epoch)


ALL_LAYOUTS = {"padded": (EpAlgorithm.LOW_LATENCY, EpLayout.EXPERT_MAJOR),
               "slots": (EpAlgorithm.LOW_LATENCY, EpLayout.RANK_MAJOR),
               "rank_major": (EpAlgorithm.HIGH_THROUGHPUT, EpLayout.EXPERT_MAJOR)}


def killed_between_rounds():
    """Rank 1 dies while nobody calls. The next call raises, and after that rounds go on, of all kinds."""
    rank = Model()
    fleet = fleet_of(rank, *ALL_LAYOUTS[os.environ["LAYOUT"]])
    check(rank, fleet)
    assert fleet.supports_fault_tolerance is True and not fleet.query_fault()
    assert (mask_of(rank, fleet), fleet.active_mask_epoch) == ([1, 1, 1, 1], 0)
    end(rank, {1})
    while not fleet.query_fault():  # Also if no call has failed.
        time.sleep(0.001)
    raises((peerbus.PeerDead, peerbus.Poisoned), "rank 1 died", check, rank, fleet)
    assert fleet.query_fault() is True
    assert (mask_of(rank, fleet), fleet.active_mask_epoch) == ([1, 1, 1, 1], 0)
    reconcile(rank, fleet, {1}, epoch=1)
    assert fleet.completed == 1
    for i, batch in enumerate(batches(rank)):
        sums = moe_ep(rank, fleet, batch, i % 2 == 1)
        assert (sums == expected(*without(rank, {1}, *batch))).all()
    fleet.update_topology(fleet.bootstrap)  # The ranks that are left take new memory.
    check(rank, fleet, {1})
    rank.comm.barrier()


def killed_between_halves():
    """Rank 2 dies when one handle was received and another one sent. Both are void."""
    rank = Model()
    fleet = fleet_of(rank, *ALL_LAYOUTS[os.environ["LAYOUT"]])
    check(rank, fleet)
    x, weights, ids = rank.given(*rank.tokens(3))
    received, sent, unused = (fleet.create_handle(Params(topk_ids=ids), [
        HandleAlgoKnobTopKWeights(weights=weights), HandleAlgoKnobSplitOperation()]) for _ in range(3))
    rows = received.dispatch(Params(x=[x])).expert_tensors
    outputs = rank.kind.given(numpy.zeros(tuple(rows.shape), numpy.uint16), True)
    sent.dispatch_send_only(Params(x=[x]))
    end(rank, {2})
    received.combine(Params(x=[outputs], out=None))
    raises((peerbus.PeerDead, peerbus.Poisoned), "rank 2 died", received.complete)
    reconcile(rank, fleet, {2})
    assert fleet.completed == 1
    for call, arguments in ((received.complete, []), (received.combine, [Params(x=[outputs], out=None)]),
                            (sent.dispatch_recv_only, []), (sent.combine, [Params(x=[outputs], out=None)])):
        raises(peerbus.ViewChanged, "dispatch its tokens again", call, *arguments)
    got = unused.dispatch(Params(x=[x]))  # It was made before, and is not void.
    unused.combine(Params(x=[got.expert_tensors], out=None))
    raises(peerbus.ViewChanged, "dispatch its tokens again", sent.dispatch_recv_only)
    unused.complete()
    for is_split in (False, True, False):
        check(rank, fleet, {2}, is_split=is_split)
    rank.comm.barrier()


def killed_together():
    """Two ranks die at once, one of them rank 0, then another one."""
    rank = Model()
    fleet = fleet_of(rank)
    check(rank, fleet)
    end(rank, {0, 3})
    raises((peerbus.PeerDead, peerbus.Poisoned), "died", check, rank, fleet)
    reconcile(rank, fleet, {0, 3})
    check(rank, fleet, {0, 3})
    end(rank, {2})
    raises((peerbus.PeerDead, peerbus.Poisoned), "rank 2 died", check, rank, fleet)
    assert fleet.query_fault()
    reconcile(rank, fleet, {0, 2, 3})
    assert fleet.completed == 2
    check(rank, fleet, {0, 2, 3})
    rank.comm.barrier()


def masks():
    """A rank that masks another one sends it nothing, until it forgets that or all go on without a third."""
    rank = Model()
    fleet = fleet_of(rank)
    mine = {0: {3}, 2: {1, 3}}.get(rank.rank, set())

    def set_mask(*masked):
        fleet.set_active_mask(rank.kind.given(numpy.array([r not in masked for r in range(4)], numpy.int32)))

    for _ in range(2):
        set_mask(*mine)
        assert mask_of(rank, fleet) == [int(r not in mine) for r in range(4)]
        out = rank.kind.given(numpy.full(4, 7, numpy.int32))
        assert fleet.query_active_mask(out) is out
        assert rank.kind.got(out).tolist() == mask_of(rank, fleet)
        check(rank, fleet, mine)
        assert not fleet.query_fault() and fleet.active_mask_epoch == 0
        fleet.clear_faults()
        assert mask_of(rank, fleet) == [1, 1, 1, 1]
        check(rank, fleet)
    set_mask(*mine)
    set_mask(*mine - {3})  # Absolute.
    check(rank, fleet, mine - {3})
    raises(ValueError, "mask itself", set_mask, rank.rank)
    for wrong in ([1, 1, 1], [1, 1, 1, 2], [[1, 1, 1, 1]]):
        raises(ValueError, "expected 0 or 1 for each of 4 ranks", fleet.set_active_mask, wrong)
    raises(ValueError, "out has shape [3]", fleet.query_active_mask, numpy.zeros(3, numpy.int32))
    assert mask_of(rank, fleet) == [int(r not in mine - {3}) for r in range(4)]
    problem = peerbus.Refused if rank.rank else peerbus.InvalidArgument
    batch = rank.tokens(2)
    wrong = batch[0], batch[1], batch[2] + (EXPERTS if rank.rank == 0 else 0)
    raises(problem, "expert", moe_ep, rank, fleet, wrong)
    set_mask(*mine - {3})  # Ranks that live and are masked leave: test_reconcile.py.
    end(rank, {1})
    raises((peerbus.PeerDead, peerbus.Poisoned), "rank 1 died", check, rank, fleet)
    reconcile(rank, fleet, {1})
    check(rank, fleet, {1})
    raises(ValueError, "rank 1 would be active", set_mask)
    set_mask(1, *mine)
    check(rank, fleet, {1, *mine})
    fleet.clear_faults()
    assert mask_of(rank, fleet) == [1, 0, 1, 1]
    try:
        fleet.clear_faults(readmit=True)
    except peerbus.Error as caught:
        assert caught.code == 9 and "Communicator.admit" in str(caught)
    else:
        raise AssertionError("raised nothing")
    check(rank, fleet, {1})
    rank.comm.barrier()


def late():
    """Rank 3 lives and does not go on: the others know by name, and can call again."""
    rank = Model()
    fleet = fleet_of(rank, knobs=[FleetAlgoKnobFaultTolerance(reconcile_timeout_s=0.3)])
    check(rank, fleet)
    end(rank, {1})
    waiting = [os.path.join(os.environ["TEST_FOLDER"], str(r)) for r in (0, 2)]
    if rank.rank == 3:
        while not all(map(os.path.exists, waiting)):
            time.sleep(0.01)
    else:
        raises((peerbus.PeerDead, peerbus.Poisoned), "rank 1 died", check, rank, fleet)
        raises(peerbus.TimedOut, "rank 3 runs, but has not called", fleet.reconcile_active_mask)
        assert fleet.query_fault() and fleet.active_mask_epoch == 0
        open(os.path.join(os.environ["TEST_FOLDER"], str(rank.rank)), "w").close()
    reconcile(rank, fleet, {1}, timeout_s=20)
    check(rank, fleet, {1})
    rank.comm.barrier()


def killed_in_the_first_dispatch():
    """Rank 1 dies while memory is taken, so that only some of the others have it."""
    from peerbus.engines import _token_dispatcher
    rank = Model()
    fleet = fleet_of(rank)
    batch = rank.tokens(2)

    def unfinished(make):
        def call(*arguments, **options):
            made = make(*arguments, **options)
            if rank.rank == 1:
                die()
            if rank.rank == 2:
                made.destroy()
                raise peerbus.PeerDead(6, "rank 1 died")
            return made
        return call

    owner, name = {"window": (rank.comm, "window"),
                   "exchange": (_token_dispatcher, "Exchange")}[os.environ["MADE"]]
    with mock.patch.object(owner, name, unfinished(getattr(owner, name))):
        raises((peerbus.PeerDead, peerbus.Poisoned), "rank 1 died", moe_ep, rank, fleet, batch)
    reconcile(rank, fleet, {1})
    assert fleet.completed == 0
    check(rank, fleet, {1})
    rank.comm.barrier()


def killed_anywhere():
    """Ranks die at some moment, also while the others go on. These retry until three rounds are done."""
    rank = Model()
    fleet = fleet_of(rank)
    check(rank, fleet)
    rank.comm.barrier()
    after = {1: "FIRST", 2: "SECOND"}.get(rank.rank)
    if after:
        die_after(float(os.environ[after]))
    rounds = [rank.tokens(3) for _ in range(3)]
    done = 0
    while done < len(rounds) or len(rank.comm.view.members) > 3:
        batch = rounds[done % len(rounds)]
        try:
            sums = moe_ep(rank, fleet, batch)
        except (peerbus.PeerDead, peerbus.Poisoned):
            fleet.reconcile_active_mask()
            done = fleet.completed - 1
            continue
        gone = set(range(5)) - set(rank.comm.view.members)
        assert (sums == expected(*without(rank, gone, *batch))).all()
        done += 1
    rank.comm.barrier()


# What FlashInfer calls, in flashinfer@fb28d724.
CALLED = {
    "PeerbusFleet": {
        "__init__": "bootstrap params algo_knobs", "create_handle": "params algo_knobs",
        "update_topology": "bootstrap algo_knobs", "destroy": "", "query_fault": "",
        "query_active_mask": "out", "set_active_mask": "mask", "reconcile_active_mask": "timeout_s",
        "clear_faults": "readmit"},
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
    evicted = type("MoEEpRankEvictedError", (RuntimeError,), {})
    put_module("flashinfer.moe_ep.errors", MoEEpRankEvictedError=evicted)
    from peerbus.engines import flashinfer as back_end
    back_end.register()
    assert registry == {"peerbus": back_end.PeerbusFleet}
    assert issubclass(back_end.MoEEpRankEvictedError, evicted)
    raises(evicted, "why", lambda: (_ for _ in ()).throw(back_end.MoEEpRankEvictedError(12, "why")))
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

    def test_killed(self):
        for layout in ALL_LAYOUTS:
            with self.subTest(layout=layout):
                run(4, killed_between_rounds, killed=(1,), LAYOUT=layout)
                run(4, killed_between_halves, killed=(2,), LAYOUT=layout)
        run(4, killed_together, killed=(0, 2, 3))
        run(4, late, killed=(1,))
        for made in ("window", "exchange"):
            run(4, killed_in_the_first_dispatch, killed=(1,), MADE=made)

    def test_killed_anywhere(self):
        for first, second in ((0.0005, 0.001), (0.002, 0.003), (0.01, 0.0104), (0.02, 0.03)):
            with self.subTest(first=first, second=second):
                run(5, killed_anywhere, killed=(1, 2), FIRST=str(first), SECOND=str(second))

    def test_masks(self):
        run(4, masks, killed=(1,))

    def test_flashinfer_is_there(self):
        run(2, in_flashinfer, fresh=True)

    @needs_torch
    def test_torch(self):
        run(3, layouts_and_orders, TENSORS="torch")
        run(4, masks, killed=(1,), TENSORS="torch")
        run(4, killed_between_halves, killed=(2,), LAYOUT="slots", TENSORS="torch")

    def test_interface(self):
        from peerbus.engines import flashinfer
        for name, methods in CALLED.items():
            check_arguments(self, getattr(flashinfer, name), methods)


if __name__ == "__main__":
    main(globals())

# SPDX-License-Identifier: MIT
"""peerbus.eplb: plans of where experts lie, as EPLB, vLLM and SGLang have them. Exchanges by plans."""

import abc
import collections
import enum
import importlib
import importlib.util
import inspect
import math
import types
import unittest

import numpy

import peerbus
from peerbus import eplb
from peerbus.eplb import sglang, vllm
from engine_model import put_module
from ranks import bf16, main, needs_torch, raises, run, widened

# The example of EPLB's README, whose result is printed there as well.
WEIGHT = [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
          [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]]
PLAN = [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
        [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]]
# By eplb.py at d52c72d with torch 2.6 and a stable sort.
COUNT = [[1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1], [1, 2, 1, 1, 1, 2, 2, 1, 2, 1, 1, 1]]
SLOTS = [[[12, -1], [15, 13], [11, -1], [6, -1], [7, 5], [0, 2], [1, -1], [3, -1], [4, -1], [9, -1],
          [8, 10], [14, -1]],
         [[13, -1], [15, 11], [8, -1], [14, -1], [9, -1], [10, 12], [2, 4], [0, -1], [6, 3], [7, -1],
          [1, -1], [5, -1]]]
GLOBAL = [[10, 6, 10, 7, 0, 2, 11, 4, 5, 9, 5, 4, 8, 3, 1, 1],
          [1, 10, 2, 4, 5, 11, 5, 0, 6, 7, 6, 3, 8, 8, 9, 7]]

Topology = collections.namedtuple("Topology", "num_groups num_nodes num_ranks")


def zipf(layers, experts, exponent, seed):
    """Returns loads [layers, experts] that fall off as a power of the popularity, in random orders."""
    numbers = numpy.random.RandomState(seed)
    falling = numpy.floor(1e6 * numpy.arange(1, experts + 1.0) ** -exponent)
    return numpy.stack([numbers.permutation(falling) for _ in range(layers)])


def context(load_window, old_map, topology):
    """Returns what vLLM passes to a policy."""
    return types.SimpleNamespace(load_window_cpu=load_window, physical_to_logical_map_cpu=old_map,
                                 topology=topology, num_replicas=old_map.shape[1], cpu_group=None)


class Layer:
    """An exchange whose experts multiply by vectors of their own, which lie at their places only. Sums are
    exact, and `combine` requires them."""

    EXPERTS, HIDDEN, TOP_K, MOST = 12, 64, 2, 64
    VECTORS = 1 + (numpy.arange(EXPERTS)[:, None] * 7 + numpy.arange(HIDDEN)) % 13

    def __init__(self, comm, table, layout="compact", replicas="round_robin"):
        self.comm, self.table = comm, list(table)
        self.exchange = comm.exchange(experts=self.EXPERTS, hidden=self.HIDDEN, top_k=self.TOP_K,
                                      max_tokens=self.MOST, layout=layout, physical_to_logical=table,
                                      replicas=replicas)
        self.vectors = self.VECTORS[self.held()]

    def held(self):
        """Returns the experts of this rank."""
        return numpy.array(self.table).reshape(self.comm.size, -1)[self.comm.rank]

    def dispatch(self, draw, popularity=None):
        """Sends tokens to experts by their popularity. Returns the rows, whose outputs are there."""
        count = self.MOST - self.comm.rank
        self.x = numpy.repeat(draw.integers(1, 8, [count, 1]), self.HIDDEN, 1)
        self.ids = numpy.array([draw.choice(self.EXPERTS, self.TOP_K, False, popularity)
                                for _ in range(count)])
        received = self.exchange.dispatch(bf16(self.x), self.ids,
                                          numpy.full(self.ids.shape, 0.5, numpy.float32))
        assert (received.expert_ids == self.held()).all()
        for place, source in numpy.ndindex(received.counts.shape):
            first = received.first_rows[place, source]
            rows = slice(first, first + received.counts[place, source])
            received.outputs[rows] = bf16(widened(received.row_data[rows]) * self.vectors[place])
        return received

    def combine(self, received):
        sums = widened(self.exchange.combine(received, len(self.x)))
        assert (sums == self.x * (0.5 * self.VECTORS[self.ids]).sum(1)).all()

    def step(self, draw, popularity=None):
        """Carries out a batch. Returns the rows of each place from all ranks."""
        received = self.dispatch(draw, popularity)
        rows, of_all = received.count_rows()
        own = rows.reshape(self.comm.size, -1)[self.comm.rank]
        assert (own == received.counts.sum(1)).all() and (of_all or rows.sum() == own.sum())
        self.combine(received)
        self.counted = rows, of_all
        rows = rows.astype(numpy.int64)
        return rows if of_all else self.comm.all_reduce(rows)

    def install(self, table, replicas=None):
        """Moves the vectors to the places of another table, and the experts after them."""
        everywhere = self.comm.all_gather(self.vectors).reshape(-1, self.HIDDEN)
        before = self.table
        self.exchange.install_experts(table, replicas)
        self.table = list(table)
        self.vectors = everywhere[[before.index(expert) for expert in self.held()]]


def balancing():
    """What an engine does: it counts rows, plans from them, and moves experts between batches."""
    comm = peerbus.Communicator()
    ranks, experts, slots = comm.size, Layer.EXPERTS, 5 * comm.size
    old = eplb.plan_spread(numpy.ones((2, experts)), slots, ranks)[0]
    assert old.shape == (2, slots) and old.dtype == numpy.int64
    layers = [Layer(comm, old[0]), Layer(comm, old[1], "expert_slots")]
    draw = numpy.random.default_rng(comm.rank)
    popularity = 1 / (1 + numpy.array([list(dict.fromkeys(table)) for table in old.tolist()]).argsort())
    popularity /= popularity.sum(1, keepdims=True)  # By Zipf's law. The hottest experts are at rank 0.

    window = numpy.zeros([4, 2, experts], numpy.int64)

    def rows_of_steps():
        """Carries out 8 batches of each layer. Returns the rows of each place. `window` has those of
        experts in the latest 4 steps, as docs/balancing.md keeps them."""
        rows = numpy.zeros([8, 2, slots], numpy.int64)
        for step, layer in numpy.ndindex(8, 2):
            rows[step, layer] = layers[layer].step(draw, popularity[layer])
            window[step % 4, layer] = numpy.bincount(layers[layer].table, layers[layer].counted[0], experts)
        for layer, loads in enumerate(window.sum(0)):
            loads = loads if layers[layer].counted[1] else comm.all_reduce(loads)
            assert (loads == numpy.bincount(layers[layer].table, rows[4:, layer].sum(0), experts)).all()
        return rows.sum(0)

    def balancedness(rows):
        of_ranks = rows.reshape(2, ranks, -1).sum(2)
        return of_ranks.mean(1) / of_ranks.max(1)

    counted = rows_of_steps()
    loads = numpy.array([numpy.bincount(table, rows, experts) for table, rows in zip(old, counted)])
    assert (loads.sum(1) == 8 * Layer.TOP_K * sum(Layer.MOST - rank for rank in range(ranks))).all()
    new, moves = eplb.plan_incremental(loads, old, ranks)[::3]
    assert moves.min() > 0
    for layer, load, table, moved in zip(layers, loads, new, moves):  # An exchange knows its own places.
        planned = layer.exchange.plan_experts(load)
        assert (planned[0] == table).all() and planned[1] == moved
    for layer, table in zip(layers, new):
        layer.install(table)
    before, after = balancedness(counted), balancedness(rows_of_steps())
    assert (after > before + 0.05).all() and (after > 0.9).all(), (before, after)


def tables_of_any_type():
    """Tables are integers of any type, with gaps too. A place is vacant if its entry is -1 or `VACANT`."""
    comm = peerbus.Communicator()
    draw = numpy.random.default_rng(comm.rank)
    plain = list(range(Layer.EXPERTS))
    layer, table = Layer(comm, plain), plain
    for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", list):
        table = table[::-1]
        layer.install(table if kind is list else numpy.repeat(numpy.array(table, kind), 2)[::2])
        layer.combine(layer.dispatch(draw))
    given = numpy.array([-1] + plain + [0])
    moe = comm.exchange(experts=12, hidden=64, top_k=1, max_tokens=1, physical_to_logical=given,
                        experts_of_rank=numpy.array([13, 1]))
    assert (moe.experts, moe.physical_experts) == (12, 14)
    for _ in range(2):
        given[given < 0] = peerbus.VACANT
        received = moe.dispatch(bf16(numpy.ones([1, 64])), [[11]] * numpy.ones([1, 1], int),
                                numpy.ones([1, 1], numpy.float32))
        assert received.expert_ids.tolist() == given[13 * comm.rank:13 + comm.rank].tolist()
        assert received.count_rows().rows[given == 11].sum() == 2
        received.outputs[:received.end] = received.row_data[:received.end]
        moe.combine(received, 1)
        given = numpy.array([0, -1] + plain[1:] + [11])
        moe.install_experts(given)


def torch_tables():
    import torch
    comm = peerbus.Communicator()
    draw = numpy.random.default_rng(comm.rank)
    maps = torch.arange(Layer.EXPERTS).flip(0).repeat(3, 1)  # [layers, physical experts]
    layer = Layer(comm, maps[1])
    layer.step(draw)
    layer.install(maps[2].to(torch.int32).flip(0))
    layer.step(draw)
    refused_elsewhere(comm, TypeError, "has float32", layer.exchange.install_experts, maps[1] * 0.5,
                      good=(maps[1],))


def choices():
    """Each rule sends rows where it says. All experts are at both ranks."""
    comm = peerbus.Communicator()
    rank, draw = comm.rank, numpy.random.default_rng(comm.rank)
    numbers = numpy.arange(Layer.EXPERTS)
    table = numpy.tile(numbers, 2)
    layer = Layer(comm, table, replicas="nearest")
    choice = peerbus.ReplicaChoice

    def check(place_of):
        rows = layer.step(draw)
        tokens = numpy.arange(len(layer.ids))[:, None]
        places = numpy.broadcast_to(place_of(layer.ids, tokens), layer.ids.shape)
        sent = numpy.bincount(places.reshape(-1), minlength=len(table))
        assert (rows == comm.all_reduce(sent)).all(), (rows, sent)

    def here(ids, _):
        return ids + 12 * rank

    def there(ids, _):
        return ids + 12 * (1 - rank)

    def in_turns(ids, tokens):
        return ids + 12 * ((tokens + rank + ids) % 2)

    check(here)
    for replicas, place_of in ((choice(distances=[rank, 1 - rank]), here),
                               (choice(distances=numpy.array([1 - rank, rank])), there), (None, there),
                               ("round_robin", in_turns), (None, in_turns),
                               (choice("weighted", quotas=[0] * 12 + [7] * 12), lambda ids, _: ids + 12),
                               (choice("fixed", chosen=numbers + 12 * (1 - rank)), there)):
        layer.install(table, replicas)
        check(place_of)
    raises(peerbus.InvalidArgument, "replicas is None, but the choice is fixed",
           layer.exchange.install_experts, table)
    check(there)


def refused_elsewhere(comm, kind, fragment, call, *bad, good=()):
    """Requires that bad arguments of rank 1 are refused there by such an exception, and by all ranks."""
    if comm.rank == 1:
        raises(kind, fragment, call, *bad)
    else:
        raises(peerbus.InvalidArgument, "rank 1 could not", call, *good)


def refusals():
    """What is wrong on one rank is refused on all, and the experts stay where they are."""
    comm = peerbus.Communicator()
    draw, wrong = numpy.random.default_rng(comm.rank), peerbus.InvalidArgument
    table = numpy.append(numpy.arange(12), [6, 0])
    layer, choice = Layer(comm, table), peerbus.ReplicaChoice
    for says, loads, limits in (("loads has 11 entries, expected 12 experts", numpy.ones(11), {}),
                                ("load of expert 2", [1, 1, -1] + [1] * 9, {}),
                                ("least_gain is -1", numpy.ones(12), {"least_gain": -1.0}),
                                ("most_moves is 0, expected 1 or more", numpy.ones(12), {"most_moves": 0})):
        raises(wrong, says, layer.exchange.plan_experts, loads, **limits)
    other, lacking = table.copy(), table.copy()
    other[[0, 6]], lacking[3] = [6, 0], 7
    everywhere = (
        ([table] * 2, None, wrong, "physical_to_logical has 2 dimensions, expected 1"),
        (table * 1.0, None, TypeError, "physical_to_logical has float64"),
        (table == 1, None, TypeError, "physical_to_logical has bool"),
        (table - 2, None, wrong, "physical_to_logical[0] is -2, expected 0 to 4294967295, or -1 for"),
        (table + 1, None, wrong, "physical_to_logical[11] is 12, expected 0 to 11, or vacant"),
        (lacking, None, wrong, "physical_to_logical lacks expert 3"),
        (table, "far", wrong, "replicas.policy is 'far', expected one of nearest, round_robin"),
        (table, 3, TypeError, "replicas is int, expected a ReplicaChoice or a policy"),
        (table, choice(distances=[1]), wrong, "replicas.distances has 1 entries, expected ranks, 2"),
        (table, choice("weighted", [1]), wrong, "replicas.quotas has 1 entries, expected physical experts"),
        (table, choice("weighted"), wrong, "replicas.quotas has 0 entries with policy weighted"),
        (table, choice("fixed", chosen=table), wrong, "replicas.chosen has 14 entries, expected experts, 12"),
        (table, choice("nearest", chosen=range(12)), wrong, "replicas.chosen has 12 entries with policy"))
    for bad, replicas, kind, says in everywhere:
        refused_elsewhere(comm, kind, says, layer.exchange.install_experts, bad, replicas, good=(table,))
        layer.step(draw)
        made = dict(experts=12, hidden=64, top_k=1, max_tokens=1, physical_to_logical=table)
        if comm.rank == 1:
            made.update(physical_to_logical=bad, replicas=replicas)
        refused_elsewhere(comm, kind, says, lambda: comm.exchange(**made))
    for bad, says in ((dict(experts_of_rank=[4] * 3), "experts_of_rank has 3 entries, expected ranks, 2"),
                      (dict(physical_to_logical=table[:0]), "has 0 entries, expected at least experts, 12"),
                      (dict(physical_to_logical=table[:5]), "has 5 entries, expected at least experts, 12")):
        made = dict(bad if comm.rank == 1 else {}, experts=12, hidden=64, top_k=1, max_tokens=1)
        refused_elsewhere(comm, wrong, says, lambda: comm.exchange(**made))
    for bad, kind, says in (
            ((table[:5],), wrong, "physical_to_logical has 5 entries, expected physical experts, 14"),
            ((None,), wrong, "physical_to_logical has 0 dimensions"),
            ((table, "nearest", "soon"), TypeError, "timeout")):
        refused_elsewhere(comm, kind, says, layer.exchange.install_experts, *bad, good=(table,))
        layer.step(draw)
    raises(peerbus.Error, "physical_to_logical[0] is 0 on rank 0 but 6 on rank 1",
           layer.exchange.install_experts, other if comm.rank == 1 else table)
    layer.step(draw)
    received = layer.dispatch(draw)
    raises(wrong, " is received, expected all batches to be combined", layer.exchange.install_experts, table)
    layer.combine(received)
    layer.install(other)
    raises(wrong, "was given ticket", received.count_rows)
    layer.step(draw)


class Weights:
    """The weights of experts in memory from which they move: vectors of `Layer` in halves, their scale, and
    further bytes."""

    TENSORS = (("uint16", [Layer.HIDDEN]), ("float32", (1,)), 5000)

    def __init__(self, comm, layers, **options):
        self.layers, self.exchanges = layers, [layer.exchange for layer in layers]
        self.memory = peerbus.ExpertWeights(comm, self.exchanges[0], self.TENSORS, **options)
        for place, expert in enumerate(layers[0].held()):
            for i, tensor in enumerate(self.of(expert)):
                assert (self.memory.tensor(place, i) == 0).all()
                self.memory.tensor(place, i)[:] = tensor

    @staticmethod
    def of(expert):
        further = numpy.frombuffer(numpy.random.RandomState(expert).bytes(5000), numpy.uint8)
        return (2 * Layer.VECTORS[expert]).astype(numpy.uint16), numpy.array([0.5], numpy.float32), further

    def check(self):
        """Requires that all places here have all bytes of the experts that the map says."""
        held = self.memory.physical_to_logical.reshape(self.layers[0].comm.size, -1)[self.layers[0].comm.rank]
        for place, expert in enumerate(held):
            for i, tensor in enumerate(self.of(expert)):
                found = self.memory.tensor(place, i)
                assert found.dtype == tensor.dtype and found.shape == tensor.shape and (found == tensor).all()

    def step(self, draw):
        """Carries out a batch of each layer with the weights that are in the memory."""
        for layer in self.layers:
            places = range(len(layer.held()))
            layer.vectors = numpy.array([self.memory.tensor(e, 0) * self.memory.tensor(e, 1) for e in places])
            layer.step(draw)

    def commit(self, **options):
        is_over = self.memory.commit(*self.exchanges, **options)
        for layer in self.layers:
            layer.table = self.memory.physical_to_logical.tolist()
        return is_over


def moving():
    """Weights move while two exchanges serve. Sums are those of numpy before, meanwhile and afterwards."""
    comm = peerbus.Communicator()
    draw, ranks = numpy.random.default_rng(comm.rank), comm.size
    old = eplb.plan_spread(numpy.ones((1, Layer.EXPERTS)), 5 * ranks, ranks)[0][0]
    new = eplb.plan_spread(zipf(1, Layer.EXPERTS, 1, 7), 5 * ranks, ranks)[0][0]
    with peerbus.ExpertWeights(comm, Layer(comm, old).exchange, [1]) as unused:
        assert unused.tensor(0, 0).shape == (1,)
    raises(ValueError, "the expert weights was destroyed", lambda: unused.is_moving)
    weights = Weights(comm, [Layer(comm, old), Layer(comm, old, "expert_slots")], slice_bytes=1000)
    assert not weights.memory.is_moving and weights.commit()
    for wanted in new, old:
        weights.step(draw)
        rounds, ended, is_over = weights.memory.begin(wanted), 0, False
        assert rounds > 1 and weights.memory.is_moving
        while not is_over:
            weights.memory.advance(3000 * (comm.rank + 1))
            weights.step(draw)
            weights.check()
            before = weights.memory.physical_to_logical
            is_over = weights.commit(replicas="round_robin" if ended else None)
            ended += (weights.memory.physical_to_logical != before).any()
            assert is_over == (ended == rounds) != weights.memory.is_moving
            weights.check()
        by_rank = [numpy.sort(numpy.reshape(table, [ranks, -1]), 1)
                   for table in (weights.memory.physical_to_logical, wanted)]
        assert (by_rank[0] == by_rank[1]).all()
    weights.step(draw)
    assert weights.memory.begin(weights.memory.physical_to_logical) == 0


def moves_refused():
    """What is wrong on one rank is refused on all. Moves that are given up leave the old map."""
    comm = peerbus.Communicator()
    draw, wrong = numpy.random.default_rng(comm.rank), peerbus.InvalidArgument
    table = numpy.append(numpy.arange(12), [6, 0])
    layer = Layer(comm, table)

    def make(tensors, *options):
        return peerbus.ExpertWeights(comm, layer.exchange, tensors, *options)
    for bad, kind, says in ((([],), wrong, "0 tensors"), (([-1],), wrong, "tensors is -1"),
                            (([("float13", [2])],), TypeError, "float13"), ((3,), TypeError, "not iterable"),
                            (([("O", [2])],), TypeError, "expected types of numbers"),
                            (([8], 0), wrong, "spare is 0"), (([8], 1, 0), wrong, "slice_bytes is 0"),
                            (([1 << 45],), wrong, "a tensor of 35184372088832 bytes")):
        refused_elsewhere(comm, kind, says, make, *bad, good=([8],))
    raises(peerbus.Error, "the bytes of the tensors is 8, 4 on rank 0 but 8, 5 on rank 1", make,
           [8, 4 + comm.rank])
    raises(TypeError, "exchange is NoneType, expected a peerbus.Exchange", peerbus.ExpertWeights, comm, None, [8])
    weights = Weights(comm, [layer], spare=2)
    memory = weights.memory
    raises(wrong, "tensor 0 of local expert 7 given", memory.tensor, 7, 0)
    raises(wrong, "tensor 3 of local expert 0 given", memory.tensor, 0, 3)
    other, lacking = table.copy(), table.copy()
    other[:7], other[7:], lacking[3] = table[7:], table[:7], 7
    for bad, kind, says in ((lacking, wrong, "physical_to_logical lacks expert 3"),
                            (table * 0.5, TypeError, "has float64"), (None, wrong, "has 0 dimensions"),
                            (table[:5], wrong, "has 5 entries, expected physical experts, 14")):
        refused_elsewhere(comm, kind, says, memory.begin, bad, good=(other,))
    raises(peerbus.Error, "physical_to_logical[0] is 7 on rank 0 but 0 on rank 1", memory.begin,
           table if comm.rank == 1 else other)
    rounds = memory.begin(other)
    assert rounds == 3  # A rank takes in five experts, two at a time.
    raises(wrong, "moves are under way", memory.begin, other)
    memory.advance(7000 * comm.rank)
    weights.step(draw)
    memory.abandon()
    assert not memory.is_moving and (memory.physical_to_logical == table).all()
    weights.step(draw)
    weights.check()
    assert memory.begin(other) == rounds
    while not memory.advance(1 << 20):
        pass
    comm.barrier()
    raises(wrong, "count is 0, expected an exchange", memory.commit)
    raises(TypeError, "exchange is Communicator", memory.commit, comm)
    for bad, kind, says in (("far", wrong, "replicas.policy is 'far'"), (3, TypeError, "replicas is int"),
                            (peerbus.ReplicaChoice("fixed", chosen=[1]), wrong, "replicas.chosen has 1 entries")):
        refused_elsewhere(comm, kind, says, lambda replicas="nearest": weights.commit(replicas=replicas),
                          *([bad] if comm.rank == 1 else []))
        weights.step(draw)
    received = layer.dispatch(draw)
    raises(wrong, "expected all batches to be combined", weights.commit)
    layer.combine(received)
    assert (memory.physical_to_logical == table).all()
    choice = peerbus.ReplicaChoice("weighted", quotas=[1] * len(table))
    while not weights.commit(replicas=choice):
        memory.advance(1 << 20)
    raises(wrong, "replicas is None, but the choice is weighted", weights.commit)
    weights.step(draw)
    weights.check()


def contents(experts, layer, given):
    """Returns the tensors of places of a layer, which tell its experts: matrices, scales and codes."""
    experts = numpy.array(experts)
    matrices = experts[:, None, None] * 100 + numpy.arange(24).reshape(4, 6) + layer
    return [given(matrices.astype(numpy.int16)), given((experts * 0.5 + layer).astype(numpy.float32)),
            given(numpy.repeat((experts * 3 + layer).astype(numpy.uint8)[:, None], 777, 1))]


def rearranging(given=numpy.array):
    """What vLLM does: it makes a communicator, and rearranges the weights of all layers in place."""
    group = peerbus.Communicator()
    rank, ranks, layers, local, experts = group.rank, group.size, 4, 5, 9
    communicator = vllm.create_eplb_communicator(types.SimpleNamespace(cpu_group=group), "torch_gloo", [])
    assert not communicator.needs_profile_buffer_reservation
    communicator.set_stream(None)
    draw = numpy.random.RandomState(3)

    def tables():
        """Returns maps in which experts are vacant, at several ranks, and twice at a rank."""
        made = draw.randint(-1, experts, [layers, ranks * local])
        for table in made:
            table[draw.permutation(ranks * local)[:experts]] = numpy.arange(experts)
        return made

    def own(table):
        return table.reshape(layers, -1, local)[:, rank]

    def tensors_of(table):
        return [contents(experts, layer, given) for layer, experts in enumerate(own(table))]

    def require(weights, expected):
        for found, tensors in zip(weights, expected):
            for values, wanted in zip(found, tensors):
                assert (numpy.asarray(values) == numpy.asarray(wanted)).all()

    def after(old, new):
        """Returns the experts whose tensors are at the places in the end: vacant ones are as they were."""
        return numpy.where(new == -1, old, new)

    buffer = contents([0] * local, 0, given)
    old = tables()
    weights = tensors_of(old)
    for turn in range(6):
        new = tables()
        moved = given(old), given(new), weights
        vllm.rearrange_expert_weights_inplace(*moved, buffer, group, communicator, True)
        require(weights, tensors_of(old))
        if turn % 3 == 0:
            vllm.rearrange_expert_weights_inplace(*moved, buffer, group, communicator)
        elif turn % 3 == 1:
            vllm.rearrange_expert_weights_inplace(
                old_global_expert_indices=moved[0], new_global_expert_indices=moved[1],
                expert_weights=moved[2], expert_buffer=buffer, ep_group=group, communicator=communicator,
                is_profile=False, rank_mapping=None, enable_migration_batching=True)
        else:
            vllm.rearrange_expert_weights_inplace(*moved, ep_group=group)
        require(weights, tensors_of(after(old, new)))
        old = new
        weights = tensors_of(old)  # What vacant places hold is not looked at any more.

    # Fewer ranks, and more: the last rank leaves, and comes again as the first.
    fewer = numpy.tile(numpy.arange(2 * local) % experts, [layers, 1])
    leaves = {**{r: r for r in range(2)}, 2: -1}
    vllm.rearrange_expert_weights_inplace(old, fewer, weights, buffer, group, communicator, rank_mapping=leaves)
    wide = numpy.pad(fewer, [(0, 0), (0, local)], constant_values=-1)
    require(weights, tensors_of(after(old, wide)))
    if rank < 2:
        weights = tensors_of(wide)
    comes = numpy.pad(fewer, [(0, 0), (local, 0)], constant_values=-1)
    start = tensors_of(comes)
    vllm.rearrange_expert_weights_inplace(fewer, new, start, buffer, group, communicator,
                                          rank_mapping={0: 1, 1: 2})
    require(start, tensors_of(after(comes, new)))

    # What is wrong on one rank is refused on all, and nothing is written.
    old, new = tables(), tables()
    weights = tensors_of(old)
    lacking, other = numpy.where(old == 4, 3, old), numpy.roll(new, 1, 0)
    new[0, 0] = 4
    call, wrong = vllm.rearrange_expert_weights_inplace, peerbus.InvalidArgument
    for bad, kind, says in (((lacking, new, weights), wrong, "expert 4 of layer 0 is at no place"),
                            ((old * 0.5, new, weights), TypeError, "old_global_expert_indices has float64"),
                            ((old, new[:2], weights), wrong, "new_global_expert_indices [2, 15]"),
                            ((old, new, weights[:3]), wrong, "expert_weights has 3 entries"),
                            ((old, new, [each[:1] for each in weights]), wrong, "the tensors of layer 0 are"),
                            ((old[:, 3:], new[:, 3:], weights), wrong, "5 rows on 3 ranks, expected 12")):
        refused_elsewhere(group, kind, says, lambda *moved: call(*moved, buffer, group, communicator), *bad,
                          good=(old, new, weights))
    raises(peerbus.Error, "differ from those of rank", call, old, other if rank == 1 else new, weights, buffer,
           group, communicator)
    raises(TypeError, "expected an EplbCommunicator", call, old, new, weights, buffer, group, group)
    require(weights, tensors_of(old))


def vllm_transfers():
    """Transfers by vLLM's communicator. Ranks add them in orders of their own."""
    group = peerbus.Communicator()
    rank, ranks = group.rank, group.size
    communicator = vllm.EplbCommunicator(group)
    communicator.execute()
    for turn in range(3):
        communicator.set_transfer_context(numpy.arange(4), layer_idx=turn)
        got = {}
        numbers = numpy.random.default_rng(10 * turn + rank)
        for peer in numbers.permutation([r for r in range(ranks) if r != rank]).tolist():
            for expert in numbers.permutation(3).tolist():
                tensors = [numpy.full(5, 100 * rank + 10 * peer + expert), numpy.full(2000 * expert, expert, "u1")]
                got[peer, expert] = [numpy.zeros_like(tensor) for tensor in tensors]
                communicator.add_send(tensors=tensors, dst_rank=peer, expert_id=expert)
                communicator.add_recv(tensors=got[peer, expert], src_rank=peer, expert_id=expert)
        communicator.execute()
        for (peer, expert), (numbers, codes) in got.items():
            assert (numbers == 100 * peer + 10 * rank + expert).all() and (codes == expert).all()
    alone = numpy.zeros(3)
    communicator.add_send(numpy.full(3, rank + 0.5), (rank + 1) % ranks)  # As before November 2026.
    communicator.add_recv(alone, (rank - 1) % ranks)
    communicator.execute()
    assert (alone == (rank - 1) % ranks + 0.5).all()


def in_vllm():
    """Where vLLM is there, the communicator is one of its own."""
    class Base(abc.ABC):
        needs_profile_buffer_reservation = property(lambda self: True)

        @abc.abstractmethod
        def add_send(self, tensors, dst_rank, expert_id):
            pass

        @abc.abstractmethod
        def add_recv(self, tensors, src_rank, expert_id):
            pass

        @abc.abstractmethod
        def execute(self):
            pass

    for name in ("vllm", "vllm.distributed", "vllm.distributed.eplb"):
        put_module(name)
    put_module("vllm.distributed.eplb.eplb_communicator", EplbCommunicator=Base)
    importlib.reload(importlib.import_module("peerbus.eplb._vllm_weights"))
    importlib.reload(vllm)
    assert issubclass(vllm.EplbCommunicator, Base)
    rearranging()


def torch_rearranging():
    import torch
    rearranging(lambda values: torch.from_numpy(values.copy()))


class Tests(unittest.TestCase):
    def check_legal(self, phy2log, log2phy, count, ranks):
        """Checks tables of all layers: the maps are inverse, each expert has a slot, and no rank has one
        twice."""
        layers, slots = phy2log.shape
        self.assertEqual(log2phy.shape, count.shape + (count.max(),))
        for layer in range(layers):
            for expert, places in enumerate(log2phy[layer].tolist()):
                used = places[:count[layer, expert]]
                self.assertGreaterEqual(len(used), 1)
                self.assertEqual(set(places[len(used):]) - {-1}, set())
                self.assertEqual({phy2log[layer, slot] for slot in used}, {expert})
            self.assertEqual(sorted(slot for places in log2phy[layer].tolist() for slot in places
                                    if slot >= 0), list(range(slots)))
            for of_rank in phy2log[layer].reshape(ranks, -1).tolist():
                self.assertEqual(len(set(of_rank)), len(of_rank))

    def test_published_plans(self):
        found = eplb.rebalance_experts(numpy.array(WEIGHT), 16, 4, 2, 8)
        self.assertEqual(len(found), 3)
        for table, expected in zip(found, (PLAN, SLOTS, COUNT)):
            self.assertIs(type(table), numpy.ndarray)
            self.assertEqual(table.dtype, numpy.int64)
            self.assertEqual(table.tolist(), expected)
        for kind in (numpy.int32, numpy.uint64, numpy.float32, numpy.float64, list):
            weight = WEIGHT if kind is list else numpy.array(WEIGHT, kind)
            named = eplb.rebalance_experts(weight=weight, num_replicas=16, num_groups=4, num_nodes=2,
                                           num_gpus=8)
            self.assertEqual(named[0].tolist(), PLAN)
        across = numpy.array(WEIGHT).T.copy().T  # With gaps.
        self.assertEqual(eplb.rebalance_experts(across, 16, 4, 2, 8)[0].tolist(), PLAN)
        self.assertEqual(eplb.rebalance_experts(across, 16, 3, 2, 8)[0].tolist(), GLOBAL)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no torch")
    def test_torch(self):
        import torch
        for dtype in (torch.int64, torch.float32, torch.bfloat16):
            found = eplb.rebalance_experts(torch.tensor(WEIGHT, dtype=dtype), 16, 4, 2, 8)
            for table, expected in zip(found, (PLAN, SLOTS, COUNT)):
                self.assertEqual((type(table), table.dtype), (torch.Tensor, torch.int64))
                self.assertEqual(table.tolist(), expected)
        weight = torch.from_numpy(zipf(2, 32, 1, 1))
        old = eplb.plan_spread(weight, 40, 8)[0]
        self.assertEqual(eplb.balancedness(weight, old, 8).shape, (2,))
        policy = vllm.EplbPolicy()
        plan = policy.plan_rebalance(context(weight.flip(1)[None], old, Topology(1, 1, 8)),
                                     policy.create_state(2))
        self.assertEqual((type(plan.physical_to_logical_map), plan.physical_to_logical_map.shape),
                         (torch.Tensor, old.shape))
        self.assertEqual(type(sglang.rebalance_experts(weight[None], 40, 5, None, 1, "deepseek")[2]),
                         torch.Tensor)

    def test_spread(self):
        weight = zipf(20, 256, 1.0, 2)
        tables = eplb.plan_spread(weight, 320, 64)
        self.check_legal(*tables, ranks=64)
        self.assertGreaterEqual(eplb.balancedness(weight, tables[0], 64).min(), 0.98)

    def test_incremental(self):
        weight = zipf(8, 64, 1.0, 3)
        old = eplb.plan_spread(weight, 80, 16)[0]
        now = weight * numpy.random.RandomState(4).uniform(0.5, 2, weight.shape)
        for most_moves in (1, 8, None):
            found = eplb.plan_incremental(now, old, 16, most_moves=most_moves)
            self.check_legal(*found[:3], ranks=16)
            changed = (found.physical_to_logical_map != old).sum(1)
            self.assertEqual(changed.tolist(), found.moves.tolist())
            self.assertLessEqual(found.moves.max(), most_moves or 80)
            before, after = (eplb.balancedness(now, plan, 16)
                             for plan in (old, found.physical_to_logical_map))
            moved = found.moves > 0
            self.assertGreater((after - before)[moved].min(initial=1), 0.0099)
        self.assertTrue(moved.all())
        kept = eplb.plan_incremental(now, old, 16, least_gain=1)
        self.assertEqual(kept.physical_to_logical_map.tolist(), old.tolist())
        self.assertEqual(kept.moves.tolist(), [0] * 8)
        masters = numpy.arange(80).reshape(16, 5) - numpy.arange(16)[:, None]  # And the next rank's first.
        masters[:, 4] %= 64
        masters = numpy.repeat(masters.reshape(1, 80), 8, 0)
        found = eplb.plan_incremental(now, masters, 16, fixed_slots=4)
        self.check_legal(*found[:3], ranks=16)
        self.assertTrue((found.physical_to_logical_map != masters)[:, 4::5].any())
        self.assertEqual(found.logical_to_physical_map[:, :, 0].tolist(),
                         [[expert + expert // 4 for expert in range(64)]] * 8)

    def test_exchanges(self):
        """Exchanges by these plans, and by tables and choices of other kinds."""
        run(3, balancing)
        for function in tables_of_any_type, choices, refusals:
            run(2, function)

    @needs_torch
    def test_torch_tables(self):
        run(2, torch_tables)

    def test_weights_move(self):
        run(3, moving)
        run(3, moving, hosts=2)
        run(2, moves_refused)

    def test_vllm_moves(self):
        for function in rearranging, vllm_transfers, in_vllm:
            run(3, function)
        arguments = list(inspect.signature(vllm.rearrange_expert_weights_inplace).parameters)
        self.assertEqual(arguments, [
            "old_global_expert_indices", "new_global_expert_indices", "expert_weights", "expert_buffer", "ep_group",
            "communicator", "is_profile", "rank_mapping", "enable_migration_batching"])
        for method, names in (("add_send", ["tensors", "dst_rank", "expert_id"]),
                              ("add_recv", ["tensors", "src_rank", "expert_id"]), ("execute", ["old_indices"]),
                              ("set_transfer_context", ["old_indices", "layer_idx", "perf_context"]),
                              ("set_stream", ["cuda_stream"])):
            found = inspect.signature(getattr(vllm.EplbCommunicator, method)).parameters
            self.assertEqual(list(found), ["self", *names])

    @needs_torch
    def test_torch_vllm_moves(self):
        run(3, torch_rearranging)

    def test_balancedness(self):
        self.assertEqual(eplb.balancedness([[4, 1, 3], [0, 0, 0]], [[0, 1, 0, 2]] * 2, 2).tolist(), [0.8, 1])

    def test_refusals(self):
        wrong = peerbus.InvalidArgument
        weight = numpy.array(WEIGHT)
        plan = eplb.rebalance_experts
        for arguments, says in (((weight, 17, 4, 2, 8), "17 slots (num_replicas) on 8 ranks (num_gpus)"),
                                ((weight, 8, 4, 2, 8), "num_replicas is 8 for 12 experts"),
                                ((weight, 16, 5, 1, 8), "12 experts in 5 groups (num_groups)"),
                                ((weight, 18, 4, 2, 3), "3 ranks (num_gpus) in 2 nodes (num_nodes)"),
                                ((weight, 16, 0, 1, 8), "0 groups (num_groups)"),
                                ((weight, 16, 4, 2, 0), "0 ranks (num_gpus)"),
                                ((weight, -16, 4, 2, 8), "num_replicas is -16"),
                                ((weight, 1 << 40, 4, 2, 8), "less than 2**31"),
                                ((-weight, 16, 4, 2, 8), "the load of expert 0 is -90"),
                                ((weight * math.nan, 16, 4, 2, 8), "the load of expert 0 is"),
                                ((weight[0], 16, 4, 2, 8), "weight has 1 dimensions, expected 2")):
            raises(wrong, says, plan, *arguments)
        raises(TypeError, "weight has", plan, weight.astype(str), 16, 4, 2, 8)
        raises(wrong, "17 slots (num_replicas) on 8", eplb.plan_spread, weight, 17, 8)
        raises(wrong, "13 slots per rank for 12 experts", eplb.plan_spread, weight, 26, 2)
        old = eplb.plan_spread(weight, 16, 8)[0]
        raises(wrong, "old_map is [1, 16]", eplb.plan_incremental, weight, old[:1], 8)
        raises(wrong, "old_map[0] is", eplb.plan_incremental, weight, old - 100, 8)
        twice = old.copy()
        twice[1, 4] = twice[1, 5]
        raises(wrong, f"old_map has expert {twice[1, 5]} twice on rank 2", eplb.plan_incremental, weight,
               twice, 8)
        raises(wrong, "least_gain is -1", eplb.plan_incremental, weight, old, 8, -1)
        raises(wrong, "most_moves is 0", eplb.plan_incremental, weight, old, 8, 0, 0)
        raises(wrong, "fixed_slots is 3", eplb.plan_incremental, weight, old, 8, 0, None, 3)
        raises(TypeError, "old_map has float64", eplb.plan_incremental, weight, old * 0.5, 8)
        raises(wrong, "expected a multiple of the ranks", eplb.balancedness, weight, old, 3)
        raises(wrong, "expected 0 to 11", eplb.balancedness, weight, old + 1, 8)

    def test_sglang(self):
        steps = numpy.array([WEIGHT, WEIGHT]) // 2 + numpy.array([[[0]], [[1]]]) * (numpy.array(WEIGHT) % 2)
        self.assertEqual(steps.sum(0).tolist(), WEIGHT)
        member = enum.Enum("EplbAlgorithm", "deepseek deepseek_hierarchical deepseek_vec")
        for algorithm in ("deepseek_hierarchical", member.deepseek_hierarchical):
            found = sglang.rebalance_experts(tokens_per_expert=steps, num_physical_experts=16,
                                             num_local_physical_experts=2, num_groups=4, num_nodes=2,
                                             algorithm=algorithm)
            self.assertEqual([table.tolist() for table in found], [PLAN, SLOTS, COUNT])
        self.assertEqual(sglang.rebalance_experts(steps, 16, 2, 4, 2, "deepseek")[0].tolist(), GLOBAL)
        self.assertEqual(sglang.rebalance_experts(steps, 16, 2, None, 1, "deepseek")[0].tolist(), GLOBAL)
        self.check_legal(*sglang.rebalance_experts(steps, 16, 2, 4, 2, "spread"), ranks=8)
        raises(peerbus.InvalidArgument, "expected one of deepseek, deepseek_hierarchical, spread",
               sglang.rebalance_experts, steps, 16, 2, 4, 2, member.deepseek_vec)
        raises(peerbus.InvalidArgument, "multiple of num_local_physical_experts, 3",
               sglang.rebalance_experts, steps, 16, 3, 4, 2, "deepseek")

    def test_vllm_older_form(self):
        plan = vllm.EplbPolicy.rebalance_experts(numpy.array(WEIGHT), 16, 4, 2, 8)
        self.assertEqual(plan.tolist(), PLAN)
        self.assertEqual(vllm.EplbPolicy.rebalance_experts(numpy.array(WEIGHT), 16, 0, 1, 8).tolist(), GLOBAL)
        # The experts of each rank lie the other way round: those that stay keep their slots.
        old = plan.reshape(2, 8, 2)[:, :, ::-1].reshape(2, 16)
        kept = vllm.EplbPolicy.rebalance_experts(numpy.array(WEIGHT), 16, 4, 2, 8, old)
        self.assertEqual(kept.tolist(), old.tolist())
        other = old.copy()
        other[0, 0] = 0  # It was expert 6, which must come again, beside 5, which stays.
        self.assertEqual(vllm.EplbPolicy.rebalance_experts(numpy.array(WEIGHT), 16, 4, 2, 8, other).tolist(),
                         old.tolist())
        fewer = vllm.EplbPolicy.rebalance_experts(numpy.array(WEIGHT), 16, 4, 2, 8, old[:, :12])
        self.assertEqual(fewer.tolist(), PLAN)

    def test_vllm_policy(self):
        loads = zipf(3, 64, 1.0, 5)
        old = eplb.plan_spread(loads, 80, 16)[0]
        now = loads * numpy.random.RandomState(6).uniform(0.5, 2, loads.shape)
        window = numpy.stack([now * 0.25, now * 0.75])
        topology = Topology(1, 1, 16)
        before = eplb.balancedness(now, old, 16)
        for algorithm in vllm.ALGORITHMS:
            policy = vllm.EplbPolicy(algorithm, most_moves=40)
            state = policy.create_state(3)
            plan = policy.plan_rebalance(context(window, old, topology), state)
            self.assertEqual(state.commits, [0, 0, 0])
            self.assertGreater((eplb.balancedness(now, plan.physical_to_logical_map, 16) - before).min(), 0)
            for layer in (0, 2, 0):
                policy.on_layer_committed(state, plan, layer)
            self.assertEqual(state.commits, [2, 0, 1])
        policy = vllm.EplbPolicy(most_moves=4)
        few = policy.plan_rebalance(context(window, old, topology), policy.create_state(3))
        self.assertLessEqual((few.physical_to_logical_map != old).sum(1).max(), 4)
        twice = old.copy()
        twice[1, :5] = twice[1, 0]  # Layer 1 is planned anew.
        plan = policy.plan_rebalance(context(window, twice, topology), policy.create_state(3))
        self.assertEqual(plan.physical_to_logical_map[1].tolist(),
                         eplb.plan_spread(window.sum(0)[1:2], 80, 16)[0][0].tolist())
        self.assertLessEqual((plan.physical_to_logical_map != old).sum(1)[[0, 2]].max(), 4)
        raises(peerbus.InvalidArgument, "expected a multiple of the ranks", policy.plan_rebalance,
               context(window, old, Topology(1, 1, 7)), policy.create_state(3))
        raises(peerbus.InvalidArgument, "physical_to_logical_map_cpu is [2, 80]", policy.plan_rebalance,
               context(window, old[:2], topology), policy.create_state(3))
        raises(peerbus.InvalidArgument, "expected one of incremental, spread, published", vllm.EplbPolicy,
               "flashlb")


if __name__ == "__main__":
    main(globals())

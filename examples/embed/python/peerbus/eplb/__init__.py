# SPDX-License-Identifier: MIT
"""Plans of where experts lie, from how many tokens each receives: EPLB's algorithms under EPLB's name,
and planners of peerbus. docs/balancing.md compares them.

`rebalance_experts` has the arguments and results of DeepSeek's eplb.py. `peerbus.eplb.vllm` has the
policy that vLLM calls, `peerbus.eplb.sglang` the function that SGLang calls. Loads are arrays of numpy,
tensors of torch, or nested lists; results are tensors of torch on the CPU if the loads are tensors of
torch, otherwise arrays of numpy, of int64. Planners do not communicate: ranks that pass equal loads get
equal plans, on all machines. Only `peerbus.eplb.vllm` also moves weights, between ranks.
"""

import ctypes
import typing

import numpy

from .. import _library as c
from .._tensors import array_of, like

__all__ = ["IncrementalPlan", "balancedness", "plan_incremental", "plan_spread", "rebalance_experts"]


class IncrementalPlan(typing.NamedTuple):
    """Tables of all layers, and [layers] how many experts must be copied to another rank."""

    physical_to_logical_map: typing.Any
    logical_to_physical_map: typing.Any
    expert_count: typing.Any
    moves: typing.Any


def _plan(planner, weight, num_replicas, num_gpus, num_groups=1, num_nodes=1, old_map=None,
          least_gain=0.0, most_moves=0, fixed_slots=0):
    """Returns the three tables of EPLB and the moves, of the planner of this number."""
    loads = array_of(weight, numpy.float64, "weight", 2)
    layers, experts = loads.shape
    slots = c.number(num_replicas, "num_replicas")
    ranks = c.number(num_gpus, "num_gpus")
    # Before memory is taken for the tables.
    if not 0 < experts <= slots < 1 << 31:
        raise c.InvalidArgument(1, f"num_replicas is {slots} for {experts} experts, expected a slot for "
                                   "each of 1 or more experts, and less than 2**31")
    if old_map is not None:
        old_map = array_of(old_map, numpy.int64, "old_map", 2)
        if old_map.shape != (layers, slots):
            raise c.InvalidArgument(1, f"old_map is {list(old_map.shape)}, expected [layers, "
                                       f"num_replicas], {[layers, slots]}")
    tables = [numpy.empty(shape, numpy.int64) for shape in ((layers, slots), (layers, slots),
                                                            (layers, experts), layers)]
    args = c.EplbArgs(
        planner=planner, layers=layers, experts=experts, slots=slots, ranks=ranks,
        groups=c.number(num_groups, "num_groups"), nodes=c.number(num_nodes, "num_nodes"),
        loads=loads.ctypes.data, old_map=None if old_map is None else old_map.ctypes.data,
        least_gain=least_gain, most_moves=most_moves, fixed_slots=fixed_slots)
    addresses = [table.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)) for table in tables]
    c.check(c.lib.peerbus_eplb_plan(ctypes.byref(args), ctypes.byref(c.EplbTables(
        physical_to_logical=addresses[0], replica_of_slot=addresses[1], expert_count=addresses[2],
        moves=addresses[3]))))
    phy2log, replica, count, moves = tables
    log2phy = numpy.full((layers, experts, count.max(initial=0)), -1, numpy.int64)
    log2phy[numpy.arange(layers)[:, None], phy2log, replica] = numpy.arange(slots)
    return IncrementalPlan(*(like(weight, table) for table in (phy2log, log2phy, count, moves)))


def rebalance_experts(weight, num_replicas, num_groups, num_nodes, num_gpus):
    """Returns EPLB's plan: (physical_to_logical_map [layers, num_replicas], logical_to_physical_map
    [layers, experts, most replicas], padded by -1, expert_count [layers, experts]).

    `weight` [layers, experts] is the load of each expert, `num_replicas` the slots of all ranks. If
    `num_nodes` divides `num_groups`, groups of experts stay inside nodes (hierarchical), otherwise groups
    and nodes have no influence (global). A rank may get an expert twice; `plan_spread` avoids that.
    Raises `InvalidArgument` for negative loads, and sizes that do not divide."""
    return tuple(_plan(c.CONSTANTS["PEERBUS_EPLB_PUBLISHED"], weight, num_replicas, num_gpus, num_groups,
                       num_nodes))[:3]


def plan_spread(weight, num_replicas, num_gpus):
    """Returns a plan with the tables of `rebalance_experts`, in which no rank holds an expert twice.
    Raises `InvalidArgument` also if a rank has more slots than there are experts."""
    return tuple(_plan(c.CONSTANTS["PEERBUS_EPLB_SPREAD"], weight, num_replicas, num_gpus))[:3]


def plan_incremental(weight, old_map, num_gpus, least_gain=0.01, most_moves=None, fixed_slots=0):
    """Returns the `IncrementalPlan` that improves `old_map` [layers, slots] by few moves. An expert that
    stays on its rank stays in its slot. A layer whose balancedness would grow by less than `least_gain`
    keeps its map. `most_moves` bounds the experts of a layer that come to another rank. The
    first `fixed_slots` of each rank keep their experts, whose replica 0 is there. Raises
    `InvalidArgument` if a rank holds an expert twice in `old_map`, or an expert has no slot."""
    old_map = array_of(old_map, numpy.int64, "old_map", 2)
    return _plan(c.CONSTANTS["PEERBUS_EPLB_INCREMENTAL"], weight, old_map.shape[1], num_gpus,
                 old_map=old_map, least_gain=least_gain, most_moves=c.at_most(most_moves, "most_moves"),
                 fixed_slots=c.number(fixed_slots, "fixed_slots"))


def balancedness(weight, physical_to_logical_map, num_gpus):
    """Returns for each layer the mean of rank loads divided by their maximum: 1 is perfect. The replicas
    of an expert share its load equally."""
    loads = array_of(weight, numpy.float64, "weight", 2)
    plan = array_of(physical_to_logical_map, numpy.int64, "physical_to_logical_map", 2)
    ranks = c.number(num_gpus, "num_gpus")
    if plan.shape[0] != loads.shape[0] or ranks == 0 or plan.shape[1] % ranks:
        raise c.InvalidArgument(1, f"physical_to_logical_map is {list(plan.shape)} for {loads.shape[0]} "
                                   f"layers and {ranks} ranks, expected a multiple of the ranks")
    if plan.size and not 0 <= plan.min() <= plan.max() < loads.shape[1]:
        raise c.InvalidArgument(1, f"physical_to_logical_map has {plan.min()} to {plan.max()}, expected "
                                   f"0 to {loads.shape[1] - 1}")
    result = numpy.ones(len(loads))
    for layer, (load, slots) in enumerate(zip(loads, plan)):
        share = load / numpy.maximum(numpy.bincount(slots, minlength=len(load)), 1)
        of_ranks = share[slots].reshape(ranks, -1).sum(1)
        if of_ranks.max(initial=0) > 0:
            result[layer] = of_ranks.mean() / of_ranks.max()
    return like(weight, result)

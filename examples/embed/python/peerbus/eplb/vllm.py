# SPDX-License-Identifier: MIT
"""vLLM's balancing of experts over peerbus: `EplbPolicy`, with the methods that vLLM calls, and the moves of
weights, `EplbCommunicator` and `rearrange_expert_weights_inplace`.

The policy is written for vllm/distributed/eplb/policy/abstract.py as of November 2026 (`plan_rebalance`), and for
versions before it (`rebalance_experts`). Where vLLM is not installed, or is older, the classes stand
alone, with the same methods.
"""

import dataclasses
import typing

import numpy

from .. import _library as c
from .._tensors import array_of, is_torch, like
from . import plan_incremental, plan_spread
from . import rebalance_experts as _published
from ._vllm_weights import (EplbCommunicator, create_eplb_communicator,
                            rearrange_expert_weights_inplace)

try:
    from vllm.distributed.eplb.policy.abstract import AbstractEplbPolicy
except ImportError:
    AbstractEplbPolicy = object
try:
    from vllm.distributed.eplb.policy.abstract import EplbPlan, EplbPolicyState
except ImportError:

    @dataclasses.dataclass(frozen=True)
    class EplbPlan:
        """The experts of slots [layers, slots], which nobody changes."""

        physical_to_logical_map: typing.Any

    class EplbPolicyState:
        """What a policy keeps for one model."""

__all__ = ["ALGORITHMS", "EplbCommunicator", "EplbPlan", "EplbPolicy", "EplbState",
           "create_eplb_communicator", "rearrange_expert_weights_inplace"]

ALGORITHMS = ("incremental", "spread", "published")
"""How `EplbPolicy` plans: `plan_incremental` and `plan_spread` of peerbus.eplb, or EPLB itself."""


class EplbState(EplbPolicyState):
    """Counts for one model: `commits` [layers], how many plans of each layer were committed."""

    def __init__(self, num_moe_layers):
        self.commits = [0] * num_moe_layers


class EplbPolicy(AbstractEplbPolicy):
    """A policy that plans by one of `ALGORITHMS`. `least_gain` and `most_moves` are those of
    `peerbus.eplb.plan_incremental`. A layer whose map has an expert twice on a rank, such as one by EPLB,
    is planned anew by `plan_spread`, once."""

    def __init__(self, algorithm="incremental", least_gain=0.01, most_moves=None):
        c.place("algorithm", algorithm, ALGORITHMS)
        self.algorithm, self.least_gain, self.most_moves = algorithm, least_gain, most_moves

    def create_state(self, num_moe_layers):
        """Returns the state of one model."""
        return EplbState(num_moe_layers)

    def plan_rebalance(self, context, policy_state):
        """Returns the `EplbPlan` for vLLM's EplbRebalanceContext, whose load window is summed over the
        samples. Does not change `policy_state`. Raises `InvalidArgument` for sizes that do not fit."""
        of = context.topology
        weight, old = context.load_window_cpu.sum(0), context.physical_to_logical_map_cpu
        if self.algorithm == "published":
            plan = self.rebalance_experts(weight, context.num_replicas, of.num_groups, of.num_nodes,
                                          of.num_ranks)
        elif self.algorithm == "spread":
            plan = plan_spread(weight, context.num_replicas, of.num_ranks)[0]
        else:
            plan = self._improve(weight, old, context.num_replicas, of.num_ranks)
        return EplbPlan(plan)

    def _improve(self, weight, old, num_replicas, num_ranks):
        """Returns the plan by `plan_incremental`, layer by layer."""
        maps = array_of(old, numpy.int64, "physical_to_logical_map_cpu", 2)
        if maps.shape != (len(weight), num_replicas):
            raise c.InvalidArgument(1, f"physical_to_logical_map_cpu is {list(maps.shape)}, expected "
                                       f"[layers, num_replicas], {[len(weight), num_replicas]}")
        if num_ranks < 1 or num_replicas % num_ranks:
            raise c.InvalidArgument(1, f"num_replicas is {num_replicas} on {num_ranks} ranks, expected a "
                                       "multiple of the ranks")
        plan = numpy.empty_like(maps)
        for layer, experts in enumerate(maps):
            loads = weight[layer:layer + 1]
            by_rank = numpy.sort(experts.reshape(num_ranks, -1), axis=1)
            if (by_rank[:, 1:] == by_rank[:, :-1]).any():
                found = plan_spread(loads, num_replicas, num_ranks)[0]
            else:
                found = plan_incremental(loads, experts[None], num_ranks, self.least_gain,
                                         self.most_moves)[0]
            plan[layer] = found.numpy() if is_torch(found) else found
        return like(weight, plan)

    def on_layer_committed(self, policy_state, plan, layer_idx):
        """Counts a layer whose plan vLLM has installed."""
        policy_state.commits[layer_idx] += 1

    @classmethod
    def rebalance_experts(cls, weight, num_replicas, num_groups, num_nodes, num_ranks,
                          old_global_expert_indices=None):
        """Returns the physical_to_logical_map [layers, num_replicas] of EPLB, as vLLM's older interface.
        0 groups are 1. With `old_global_expert_indices`, the map before, an expert that stays on its rank
        stays in its slot, so that its weights are not copied."""
        plan = _published(weight, num_replicas, num_groups or 1, num_nodes, num_ranks)[0]
        if old_global_expert_indices is None:
            return plan
        old = array_of(old_global_expert_indices, numpy.int64, "old_global_expert_indices", 2)
        new = array_of(plan, numpy.int64, "plan", 2)
        if old.shape != new.shape:
            return plan  # The number of slots changes, so that no slot stays.
        for old_map, new_map in zip(old, new):
            _keep_slots(old_map.reshape(num_ranks, -1), new_map.reshape(num_ranks, -1))
        return like(weight, new)


def _keep_slots(old, new):
    """Orders the experts of each rank of `new` [ranks, slots] so that those of `old` keep their slots."""
    for before, after in zip(old, new):
        left = list(after)
        kept = numpy.full(len(after), -1)
        for slot, expert in enumerate(before):
            if expert in left:
                left.remove(expert)
                kept[slot] = expert
        kept[kept < 0] = left
        after[:] = kept

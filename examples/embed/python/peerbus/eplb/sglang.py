# SPDX-License-Identifier: MIT
"""SGLang's entry point of its expert balancers, over peerbus: `rebalance_experts` of
sglang/srt/eplb/eplb_algorithms, with the same arguments and results."""

from .. import _library as c
from . import plan_spread
from . import rebalance_experts as _published

ALGORITHMS = ("deepseek", "deepseek_hierarchical", "spread")
"""The algorithms that `rebalance_experts` has: EPLB's two, and `peerbus.eplb.plan_spread`."""


def rebalance_experts(tokens_per_expert, num_physical_experts, num_local_physical_experts, num_groups,
                      num_nodes, algorithm):
    """Returns (physical_to_logical_map, logical_to_physical_map, expert_count) as
    `peerbus.eplb.rebalance_experts` does, for loads [steps, layers, experts] that are summed over the
    steps. `algorithm` is one of `ALGORITHMS`, or a member of SGLang's EplbAlgorithm of that name."""
    name = getattr(algorithm, "name", algorithm)
    c.place("algorithm", name, ALGORITHMS)
    local = c.number(num_local_physical_experts, "num_local_physical_experts")
    if local == 0 or num_physical_experts % local:
        raise c.InvalidArgument(1, f"num_physical_experts is {num_physical_experts}, expected a multiple "
                                   f"of num_local_physical_experts, {local}")
    ranks = num_physical_experts // local
    weight = tokens_per_expert.sum(0)
    if name == "spread":
        return plan_spread(weight, num_physical_experts, ranks)
    if name == "deepseek":
        num_groups = num_nodes = 1
    return _published(weight, num_physical_experts, num_groups or 1, num_nodes, ranks)

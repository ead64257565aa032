# SPDX-License-Identifier: MIT
"""vLLM's expert parallelism over peerbus: the all-to-all manager and the modular prepare / finalize.

Written for vllm-project/vllm@003d383e (modular_kernel.py, all2all.py) and the registry of pull request
#50556. Where vLLM is not installed the classes stand alone, with the same methods; an installed vLLM of
another version that lacks a name is an ImportError. docs/engines.md.
"""

from ._manager import All2AllManager, is_batch_invariant
from ._prepare_finalize import PrepareAndFinalize, codec_for

__all__ = ["All2AllManager", "BACKENDS", "PrepareAndFinalize", "codec_for", "is_batch_invariant",
           "make_prepare_finalize", "register"]

BACKENDS = {"peerbus": False, "peerbus_batched": True}
"""The names of `--all2all-backend`: with rows as Standard, and as BatchedExperts."""

_managers = {}  # Of groups whose platform has another manager.


def make_prepare_finalize(moe, quant_config, routing_tables, all2all_manager, batched=False, **options):
    """Returns the `PrepareAndFinalize` for vLLM's `FusedMoEConfig`. Collective. If `all2all_manager` is
    another one, an `All2AllManager` of its `cpu_group` is made with `options`, once."""
    if not isinstance(all2all_manager, All2AllManager):
        group = all2all_manager.cpu_group
        if id(group) not in _managers:
            _managers[id(group)] = All2AllManager(group, **options)
        all2all_manager = _managers[id(group)]
    ranks = all2all_manager.world_size
    handle = all2all_manager.get_handle(dict(
        max_num_tokens_per_dp_rank=moe.max_num_tokens, token_hidden_size=moe.hidden_dim,
        num_ep_ranks=ranks, num_global_experts=moe.num_experts,
        num_local_experts=moe.num_experts // ranks))
    return PrepareAndFinalize(handle, batched, routing_tables, moe, quant_config)


def register(**options):
    """Registers `BACKENDS` with vLLM's factories of prepare / finalize, and returns whether this vLLM has
    them (pull request #50556). The entry point `vllm.general_plugins` calls it. `options`, such as
    relay="always", are those of the `All2AllManager` that is made where the platform has another."""
    try:
        from vllm.model_executor.layers.fused_moe.all2all_utils import (
            register_moe_prepare_finalize_factory)
        from vllm.model_executor.layers.fused_moe.prepare_finalize import MoEPrepareFinalizeFactory
    except ImportError:
        return False

    def factory(name, batched):
        @classmethod
        def create(cls, *, moe, quant_config, routing_tables, all2all_manager, allow_new_interface=True,
                   use_monolithic=False, eep_stage=False):
            if use_monolithic:
                raise NotImplementedError(f"{name} has no monolithic prepare / finalize: choose experts "
                                          "that take topk_ids")
            if eep_stage:
                raise NotImplementedError(f"{name} cannot stage another number of ranks")
            return make_prepare_finalize(moe, quant_config, routing_tables, all2all_manager, batched,
                                         **options)
        return type(f"PeerbusFactory_{name}", (MoEPrepareFinalizeFactory,), {
            "backend_name": name, "supports_sequence_parallel": True, "create": create})

    for name, batched in BACKENDS.items():
        register_moe_prepare_finalize_factory(factory(name, batched))
    return True

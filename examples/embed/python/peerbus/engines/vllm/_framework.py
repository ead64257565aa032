# SPDX-License-Identifier: MIT
"""vLLM's classes that the back end derives from and makes, or stand-ins where vLLM is not installed."""

import dataclasses
import enum
import importlib.util

if importlib.util.find_spec("vllm") is not None:  # One of another version may lack a name: ImportError.
    from vllm.distributed.device_communicators.base_device_communicator import All2AllManagerBase
    from vllm.model_executor.layers.fused_moe.modular_kernel import (
        ExpertTokensMetadata, FusedMoEActivationFormat, FusedMoEPrepareAndFinalizeModular)
else:
    All2AllManagerBase = FusedMoEPrepareAndFinalizeModular = object

    class FusedMoEActivationFormat(enum.Enum):
        """How rows reach the experts: [M, H], or [local experts, most rows, H]."""
        Standard = ("standard",)
        BatchedExperts = ("batched_experts",)

    @dataclasses.dataclass
    class ExpertTokensMetadata:
        """The rows of each local expert, int32 [L]."""
        expert_num_tokens: object
        expert_num_tokens_cpu: object

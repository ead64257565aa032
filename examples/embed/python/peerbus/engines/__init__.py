# SPDX-License-Identifier: MIT
"""Back ends for serving engines: peerbus.engines.vllm, peerbus.engines.sglang, peerbus.engines.flashinfer
and, for vLLM with attention and experts on ranks of their own, peerbus.engines.afd. docs/engines.md says
how to choose them there.

Each has the methods that its engine calls, on tensors of torch on the CPU or arrays of numpy. The
engine is imported only if it is there. All stand on `TokenDispatcher`, which is also for engines that are
not among them.
"""

from ._token_dispatcher import Batch, TokenDispatcher, dealt

__all__ = ["Batch", "TokenDispatcher", "dealt"]

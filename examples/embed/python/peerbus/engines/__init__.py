# SPDX-License-Identifier: MIT
"""Back ends for serving engines: peerbus.engines.vllm, peerbus.engines.sglang and
peerbus.engines.flashinfer. docs/engines.md says how to choose them there.

Each has the methods that its engine calls, on tensors of torch on the CPU or arrays of numpy. The
engine is imported only if it is there. `TokenDispatcher` is what the three stand on, for engines that
are not among them.
"""

from ._token_dispatcher import Batch, TokenDispatcher

__all__ = ["Batch", "TokenDispatcher"]

# SPDX-License-Identifier: MIT
"""SGLang's token dispatcher over peerbus, with the outputs of its DeepEP dispatcher.

Written for sgl-project/sglang@8a0b43e5 (token_dispatcher/base.py) and @003a81bf (deepep.py). Where
SGLang is not installed the classes stand alone, with the same methods. docs/engines.md.
"""

import collections
import importlib.util
import typing

import numpy

from .. import Communicator
from .. import _library as c
from .._tensors import like
from ._token_dispatcher import TokenDispatcher, Watch

if importlib.util.find_spec("sglang") is not None:  # One of another version may lack a name.
    from sglang.srt.layers.dp_attention import get_is_extend_in_batch
    from sglang.srt.layers.moe.token_dispatcher.base import BaseDispatcher
    from sglang.srt.layers.moe.token_dispatcher.deepep import (
        DeepEPLLDispatchOutput, DeepEPNormalDispatchOutput)
else:
    get_is_extend_in_batch = None

    class BaseDispatcher:
        """The hooks of a dispatcher. Each is called with it and with what passes, and may return another
        of that."""

        def __init__(self):
            self.quant_config = None
            self._hooks = collections.defaultdict(list)

        def set_quant_config(self, quant_config):
            self.quant_config = quant_config

        def register_pre_dispatch_hook(self, hook):
            self._hooks["pre_dispatch"].append(hook)

        def register_post_dispatch_hook(self, hook):
            self._hooks["post_dispatch"].append(hook)

        def register_pre_combine_hook(self, hook):
            self._hooks["pre_combine"].append(hook)

        def register_post_combine_hook(self, hook):
            self._hooks["post_combine"].append(hook)

    class DeepEPNormalDispatchOutput(typing.NamedTuple):
        """Rows [N, H] with the slots of their tokens, local experts or -1."""
        hidden_states: typing.Any
        hidden_states_scale: typing.Any
        topk_ids: typing.Any
        topk_weights: typing.Any
        num_recv_tokens_per_expert: typing.List[int]

    class DeepEPLLDispatchOutput(typing.NamedTuple):
        """Rows [L, R * B, H], of which `masked_m` [L] came. The slots are those of this rank's tokens."""
        hidden_states: typing.Any
        hidden_states_scale: typing.Any
        topk_ids: typing.Any
        topk_weights: typing.Any
        masked_m: typing.Any
        expected_m: int

_CODECS = {"bf16": "bf16", "fp8": "fp8_f32", "int8": "int8_per_token"}


class PeerbusDispatcher(BaseDispatcher):
    """The dispatcher of a layer.

    The arguments are those of SGLang's `DeepEPDispatcher`. `group` is a process group of torch, of any
    hosts, or a `peerbus.Communicator`; a process group is joined once for all layers. `deepep_mode` is
    "normal", "low_latency" or "auto", or SGLang's own; with "auto" batches for which
    `is_extend_in_batch()` is true are normal. `max_prefill_tokens` and `max_decode_tokens` bound the
    tokens of a rank in the two modes. `output_dtype`: "bf16", "fp8" (in blocks of 128) or "int8" (per
    token). `relay` and `same_bits` as in `peerbus.Exchange`: normal mode then sends a row for each
    expert, in its first slot with the weight 1.

    Layers of equal sizes share memory: up to two of their batches may then be under way.
    `set_quant_config` changes nothing: `output_dtype` says how rows travel. A batch that nobody combines
    ends by `reset`.
    """

    _comms = {}  # By group: the group, so that its id stays its own, its communicator and its `Watch`.
    _dispatchers_of = {}  # By group, size and mode.

    def __init__(self, group, router_topk, permute_fusion=False, num_experts=None,
                 num_local_experts=None, hidden_size=None, params_dtype=None, deepep_mode="auto",
                 async_finish=False, return_recv_hook=False, *, max_prefill_tokens=8192,
                 max_decode_tokens=128, output_dtype="bf16", is_extend_in_batch=None,
                 relay="automatic", same_bits=False, timeout=None):
        super().__init__()
        mode = getattr(deepep_mode, "value", deepep_mode)
        if mode not in ("auto", "normal", "low_latency"):
            raise c.InvalidArgument(1, f"deepep_mode is {mode!r}, expected auto, normal or low_latency")
        if output_dtype not in _CODECS:
            raise c.InvalidArgument(1, f"output_dtype is {output_dtype!r}, expected one of "
                                       f"{', '.join(_CODECS)}")
        self._mode, self._codec, self._top_k = mode, _CODECS[output_dtype], router_topk
        self._is_extend = is_extend_in_batch or get_is_extend_in_batch
        if mode == "auto" and self._is_extend is None:
            raise TypeError("deepep_mode is auto, expected is_extend_in_batch, which tells the modes "
                            "apart where SGLang is not installed")
        self._same_bits, self._batch, self._sent = same_bits, None, None
        if id(group) not in self._comms:
            self._comms[id(group)] = group, Communicator.of_group(group, timeout), Watch()
        _, comm, self._watch = self._comms[id(group)]

        def dispatcher(name, most):
            key = id(group), name, num_experts, hidden_size, router_topk, most, relay, same_bits, timeout
            if key not in self._dispatchers_of:
                self._dispatchers_of[key] = TokenDispatcher(
                    comm, num_experts, hidden_size, most, relay=relay, same_bits=same_bits,
                    timeout=timeout, watch=self._watch)
            return self._dispatchers_of[key]

        self._normal = dispatcher("normal", max_prefill_tokens)
        self._low_latency = dispatcher("low_latency", max_decode_tokens)
        if num_local_experts not in (None, self._normal.local_experts, num_experts // comm.size):
            raise c.InvalidArgument(1, f"num_local_experts is {num_local_experts}, expected "
                                       f"{self._normal.local_experts}")

    def _hooked(self, name, *passing):
        """Returns what passes a point, as the hooks there leave it. SGLang's own base calls hooks
        itself."""
        for hook in getattr(self, "_hooks", {}).get(name, ()):
            changed = hook(self, *passing)
            if changed is not None:
                passing = changed if len(passing) > 1 else (changed,)
        return passing if len(passing) > 1 else passing[0]

    def dispatch(self, hidden_states, topk_output):
        """Collective: returns a `DeepEPNormalDispatchOutput` or a `DeepEPLLDispatchOutput`, by the mode
        of the batch, which is that of all ranks."""
        self._require("dispatch_a", self._batch is None and self._sent is None)
        try:
            hidden_states, topk_output = self._hooked("pre_dispatch", hidden_states, topk_output)
        except Exception:
            self._choose()
            self._dispatcher.refuse_dispatch(self._layout, getattr(topk_output, "topk_ids", None),
                                             self._codec)
            raise
        self.dispatch_a(hidden_states, topk_output)
        output = self.dispatch_b()
        try:
            return self._hooked("post_dispatch", output)
        except Exception as problem:
            self.refuse_combine(problem)
            raise

    def _choose(self):
        """Chooses the mode of the next batch."""
        is_normal = self._mode == "normal" or (self._mode == "auto" and self._is_extend())
        self._dispatcher = self._normal if is_normal else self._low_latency
        self._layout = "padded" if not is_normal else "compact" if self._same_bits else "rank_major"

    def dispatch_a(self, hidden_states, topk_output):
        """Collective: sends the rows of [T, H] bfloat16 to the experts of `topk_output.topk_ids` [T, K],
        with `topk_output.topk_weights`."""
        self._require("dispatch_a", self._batch is None and self._sent is None)
        self._choose()
        ids, weights = (getattr(topk_output, name, None) for name in ("topk_ids", "topk_weights"))
        self._batch = self._dispatcher.send(self._layout, hidden_states, ids, weights, self._codec)
        self._ids, self._weights = ids, weights

    def dispatch_b(self):
        """Collective: returns the rows that came, views of memory that the second next dispatch of the
        mode overwrites."""
        batch = self._batch
        self._require("dispatch_b", batch is not None and batch.stage == "sent")
        try:
            batch.receive()
        finally:
            if batch.stage == "given up":
                self._batch = None
        if self._layout == "padded":
            experts = self._dispatcher.experts
            expected = (batch.count * self._dispatcher.comm.size * self._top_k + experts) // experts
            return DeepEPLLDispatchOutput(batch.rows, batch.scales, self._ids, self._weights,
                                          batch.counts, expected)
        if self._layout == "rank_major":
            ids, weights = numpy.asarray(batch.slot_experts).astype(numpy.int64), batch.slot_weights
        else:
            own = numpy.asarray(batch.row_experts)
            ids = numpy.full([len(own), self._top_k], -1, numpy.int64)
            ids[:, 0] = own
            weights = like(self._ids, (ids >= 0).astype(numpy.float32))
        return DeepEPNormalDispatchOutput(batch.rows, batch.scales, like(self._ids, ids), weights,
                                          numpy.asarray(batch.counts).tolist())

    def combine(self, combine_input):
        """Collective: returns the sums [T, H] of the outputs."""
        try:
            combine_input = self._hooked("pre_combine", combine_input)
        except Exception as problem:
            self._send_back(lambda batch: batch.refuse_combine(problem))
        else:
            self.combine_a(combine_input)
        return self._hooked("post_combine", self.combine_b())

    def combine_a(self, combine_input):
        """Collective: sends back the outputs, the first of (hidden_states, topk_ids, topk_weights). In
        normal mode they are weighted and added over the local experts of a row; in low-latency mode the
        rows' home does that, with these weights. What is wrong with them is raised by `combine_b`."""
        def send(batch):
            try:
                hidden_states, _, weights = combine_input
            except Exception as problem:
                batch.refuse_combine(problem)
            else:
                batch.send_back(hidden_states, None, weights if self._layout == "padded" else None)
        self._send_back(send)

    def _send_back(self, send):
        self._require("combine_a", self._batch is not None and self._batch.stage == "received")
        send(self._batch)
        self._batch, self._sent = None, self._batch

    def combine_b(self):
        """Collective: returns the sums [T, H]. If it raises `Refused`, or what was wrong here, all ranks
        may call `combine_a` again."""
        self._require("combine_b", self._sent is not None)
        batch = self._sent
        try:
            return batch.finish()
        finally:
            if batch.stage != "sent back":  # Otherwise the call counts as not made.
                self._sent = None
            if batch.stage == "received":
                self._batch = batch

    def refuse_combine(self, problem):
        """Collective: stands for `combine` on a rank whose experts have raised `problem`: the other ranks
        raise `Refused` there, and the batch is over on all that call `reset`."""
        self._send_back(lambda batch: batch.refuse_combine(problem))
        self.reset()

    def reset(self):
        """Collective: gives up the batch under way, if there is one."""
        batch, self._batch, self._sent = self._sent or self._batch, None, None
        if batch is not None:
            batch.give_up()

    def _require(self, name, is_next):
        if not is_next:
            where = "sent back" if self._sent is not None else \
                "not dispatched" if self._batch is None else self._batch.stage
            raise c.InvalidArgument(1, f"{name} was called on a batch that is {where}: dispatch_a, "
                                       "dispatch_b, combine_a, combine_b is the order")

    def query_fault(self):
        """Returns whether a call of this rank has failed because a rank died, did not answer or cannot be
        reached."""
        return self._watch.fault is not None

    @classmethod
    def destroy_all(cls):
        """Releases the memory of all layers, and the communicators that were not given."""
        for dispatcher in cls._dispatchers_of.values():
            dispatcher.destroy()
        for group, comm, _ in cls._comms.values():
            if comm is not group:
                comm.destroy()
        cls._dispatchers_of.clear()
        cls._comms.clear()

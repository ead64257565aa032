# SPDX-License-Identifier: MIT
"""The modular prepare / finalize, whole and in halves."""

import collections
import threading

import numpy

from ... import _library as c
from ..._bf16 import from_bf16, to_bf16
from ..._tensors import is_torch, like
from .._token_dispatcher import Once
from ._framework import (ExpertTokensMetadata, FusedMoEActivationFormat,
                         FusedMoEPrepareAndFinalizeModular)


def codec_for(quant_config, defer_input_quant):
    """Returns the codec whose rows are those that vLLM's quantization of inputs gives: bf16 if there is
    none or the experts do it, int8 per token, or float8_e4m3fn in blocks of 128."""
    quant = None if defer_input_quant else getattr(quant_config, "quant_dtype", None)
    if quant is None:
        return "bf16"
    name, block = str(quant).split(".")[-1], getattr(quant_config, "block_shape", None)
    if name == "int8" and getattr(quant_config, "per_act_token_quant", False) and block is None:
        return "int8_per_token"
    if name == "float8_e4m3fn" and block is not None and block[1] == 128:
        return "fp8_f32"
    raise NotImplementedError(
        f"inputs are quantized to {name} with block_shape {block} and per_act_token_quant "
        f"{getattr(quant_config, 'per_act_token_quant', False)}, expected int8 per token, "
        "float8_e4m3fn in blocks of 128, or defer_input_quant")


class PrepareAndFinalize(FusedMoEPrepareAndFinalizeModular):
    """Prepare and finalize over a `TokenDispatcher`, which `All2AllManager.get_handle` returns.

    With the format Standard a row comes once to each rank that has experts of its token, and
    `topk_ids` and `topk_weights` say which. Slots of other experts, and those that no expert has, have
    the id of an expert of another rank (-1 where there is none) and the weight 0. With `same_bits` of the
    dispatcher a row comes once for each expert, with top-k 1 and weight 1, and its home weights and adds.
    With BatchedExperts rows come by expert, [L, R * B, H], and `expert_num_tokens` says how many; the
    home weights and adds.

    `routing_tables` are vLLM's: the place of each global expert, the global expert of each place, and
    this rank's. They are read in each call, so that a placement may change between batches.

    Each thread has micro-batches of its own. `finalize` finds its batch by the `topk_ids` that it is given,
    those that `prepare` returned or was given. A batch that was received and is never finalized, because
    its experts raised, is forgotten; hooks of others are called. What `prepare` returns is valid until
    the second next batch. All ranks make calls in the same order.
    """

    def __init__(self, handle, batched=False, routing_tables=None, moe_config=None,
                 quant_config=None):
        # vLLM's constructor, whose arguments differ between versions, only keeps these two.
        self.moe_config, self.quant_config = moe_config, quant_config
        self._dispatcher, self._batched = handle, batched
        self._layout = "padded" if batched else "compact" if handle.same_bits else "rank_major"
        self._to_place, self._to_global = (routing_tables or (None, None))[:2]
        self._here = threading.local()

    # --- what it is ---

    @property
    def activation_format(self):
        """How rows reach the experts."""
        return FusedMoEActivationFormat.BatchedExperts if self._batched else \
            FusedMoEActivationFormat.Standard

    def topk_indices_dtype(self):
        """Returns None: int32 and int64 are taken."""
        return None

    def max_num_tokens_per_rank(self):
        """Returns the most tokens of a rank in a batch."""
        return self._dispatcher.max_tokens

    def num_dispatchers(self):
        """Returns the number of ranks."""
        return self._dispatcher.comm.size

    def output_is_reduced(self):
        """Returns True: finalize gives the sums over all ranks."""
        return True

    def supports_async(self):
        """Returns True: there are halves."""
        return True

    def supports_deferred_moe_finalize(self):
        """Returns False: finalize is needed."""
        return False

    def post_init_setup(self, fused_experts):
        """Does nothing: the experts change nothing here."""

    def on_commit(self):
        """Does nothing."""

    # --- prepare ---

    def prepare_async(self, a1, topk_weights, topk_ids, num_experts, expert_map,
                      apply_router_weight_on_input, quant_config, defer_input_quant=False):
        """Collective: sends the rows. Returns (hook, receiver): `hook()` waits for those of other
        ranks, in any thread, and `receiver()` does so too and returns what `prepare` returns."""
        codec, places, weights = "bf16", topk_ids, topk_weights
        try:
            codec = codec_for(quant_config, defer_input_quant)
            if num_experts != self._dispatcher.experts:
                raise c.InvalidArgument(1, f"num_experts is {num_experts}, expected that of the "
                                           f"handle, {self._dispatcher.experts}")
            if self._to_place is not None:
                places = _looked_up(self._to_place, topk_ids)
            if apply_router_weight_on_input:
                a1, weights = _weighted(a1, topk_weights)
        except NotImplementedError:
            raise  # The configuration of all ranks.
        except Exception:
            self._dispatcher.refuse_dispatch(self._layout, topk_ids, codec)
            raise
        batch = self._dispatcher.send(self._layout, a1, places, weights, codec)
        batch.ids, waiting = topk_ids, self._waiting()
        for each in [each for each in waiting
                     if each.is_void or each.ids is topk_ids and each.stage == "received"]:
            waiting.remove(each)  # Ranks are gone, or its experts raised and the ids are filled again.
        waiting.append(batch)

        def receive():
            try:
                batch.receive()
            except c.Refused:
                waiting.remove(batch)
                raise

        def is_made():
            return batch.stage != "sent"
        hook = Once(receive, is_made)

        def receiver():
            hook()
            return self._prepared(batch, topk_ids)
        return hook, Once(receiver, is_made)

    def prepare(self, *args, **kwargs):
        """Collective: returns (rows, scales or None, `ExpertTokensMetadata`, topk_ids, topk_weights), the
        last two None with BatchedExperts. Arguments as of `prepare_async`; bad ones are refused on all
        ranks."""
        return self.prepare_async(*args, **kwargs)[1]()

    def _prepared(self, batch, topk_ids):
        counts = batch.counts
        if self._batched:
            return batch.rows, batch.scales, ExpertTokensMetadata(counts, counts), None, None
        if self._layout == "compact":
            ids = numpy.asarray(batch.row_experts)[:, None] + self._dispatcher.first_expert
            weights = numpy.ones(ids.shape, numpy.float32)
        else:
            slots, first = numpy.asarray(batch.slot_experts), self._dispatcher.first_expert
            # Experts of vLLM take every id for one that exists: a place of another rank.
            other = 0 if first > 0 else self._dispatcher.experts - 1
            if self._dispatcher.local_experts == self._dispatcher.experts:
                other = -1
            ids = numpy.where(slots >= 0, slots + numpy.int64(first), other)
            weights = numpy.asarray(batch.slot_weights)
        if self._to_global is not None:
            ids = numpy.where(ids < 0, -1, numpy.asarray(self._to_global)[ids])
        batch.ids = ids = like(topk_ids, ids.astype(numpy.asarray(topk_ids[:0]).dtype))
        return batch.rows, batch.scales, ExpertTokensMetadata(counts, counts), ids, \
            like(topk_ids, weights)

    # --- finalize ---

    def finalize_async(self, output, fused_expert_output, topk_weights, topk_ids,
                       apply_router_weight_on_input, weight_and_reduce_impl):
        """Collective: sends the outputs of a batch back. Returns (hook, receiver), of which either waits for
        other ranks, in any thread; then `output` [T, H] is written. What was wrong with the arguments
        is raised there, and all ranks may then finalize again."""
        waiting = self._waiting()
        batch = next((each for each in waiting if each.ids is topk_ids), None)
        if batch is None and len(waiting) == 1:
            batch = waiting[0]  # Copies of what prepare returned.
        if batch is None or batch.stage != "received":
            why = "before prepare" if not waiting else \
                "with topk_ids that no prepare returned or was given" if batch is None else \
                f"on a batch that is {batch.stage}, expected the receiver of prepare_async before it"
            raise c.InvalidArgument(1, f"finalize was called {why}")
        weights = topk_weights if self._batched and not apply_router_weight_on_input else None
        try:
            if self._layout == "rank_major":
                fused_expert_output = self._reduced(batch, fused_expert_output, topk_weights, topk_ids,
                                                    apply_router_weight_on_input,
                                                    weight_and_reduce_impl)
            elif self._layout == "compact":  # One slot for each row, weighted at home.
                fused_expert_output = fused_expert_output.reshape(tuple(batch.outputs.shape))
        except Exception as problem:
            batch.refuse_combine(problem)
        else:
            batch.send_back(fused_expert_output, output, weights)
        while waiting.popleft() is not batch:
            pass  # Older ones were given up.

        def finish():
            try:
                batch.finish()
            finally:
                if batch.stage == "received":  # All ranks may finalize again.
                    waiting.appendleft(batch)
        finish = Once(finish, lambda: batch.stage != "sent back")
        return finish, finish

    def finalize(self, *args, **kwargs):
        """Collective: writes the sums to `output`. Arguments as of `finalize_async`."""
        self.finalize_async(*args, **kwargs)[1]()

    def _waiting(self):
        if not hasattr(self._here, "batches"):
            self._here.batches = collections.deque(maxlen=self._dispatcher.in_flight)
        return self._here.batches

    def _reduced(self, batch, outputs, topk_weights, topk_ids, on_input, impl):
        """Returns one output for each row, as the experts' own way to weight and add makes it."""
        if len(batch.rows) == 0:
            return batch.outputs
        if impl is None or type(impl).__name__ == "TopKWeightAndReduceDelegate":
            ones = numpy.ones(tuple(batch.slot_experts.shape), numpy.float32) if on_input else None
            return batch.reduced(outputs, ones)
        return impl.apply(output=None, fused_expert_output=outputs, topk_weights=topk_weights,
                          topk_ids=topk_ids, apply_router_weight_on_input=on_input)


def _looked_up(table, ids):
    """Returns what a table has for each id. Ids that it does not have stay as they are."""
    table, given = numpy.asarray(table), numpy.asarray(ids)
    known = (given >= 0) & (given < len(table))
    return like(ids, numpy.where(known, table[numpy.where(known, given, 0)], given)
                .astype(given.dtype))


def _weighted(a1, topk_weights):
    """Returns rows that the weight of their only expert was applied to, as vLLM does it, and weights of
    one."""
    if topk_weights.shape[1] != 1:
        raise c.InvalidArgument(1, f"apply_router_weight_on_input with top-k {topk_weights.shape[1]}, "
                                   "expected 1")
    if is_torch(a1):
        return a1 * topk_weights.to(a1.dtype), topk_weights.new_ones(topk_weights.shape)
    weighted = to_bf16(from_bf16(a1) * from_bf16(to_bf16(topk_weights)))
    return weighted, numpy.ones_like(topk_weights)

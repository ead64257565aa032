# SPDX-License-Identifier: MIT
"""peerbus.engines.sglang, called in the order in which SGLang calls a dispatcher. On numpy arrays, and on
torch tensors where torch is installed: TENSORS=torch."""

import collections
import unittest

import peerbus
from engine_model import (EXPERTS, HIDDEN, MOST, TOP_K, Model, batches, by_expert, check_arguments,
                          expected, summed)
from ranks import main, needs_torch, raises, run, widened

TopK = collections.namedtuple("TopK", "topk_weights topk_ids router_logits")


class Layer:
    """A layer of SGLang, over one rank's experts."""

    def __init__(self, rank, is_extend=None, **options):
        from peerbus.engines import sglang
        self.rank, self.kind = rank, rank.kind
        self.dispatcher = sglang.PeerbusDispatcher(
            rank.comm, TOP_K, num_experts=EXPERTS, num_local_experts=len(rank.places),
            hidden_size=HIDDEN, max_prefill_tokens=2 * MOST, max_decode_tokens=MOST,
            is_extend_in_batch=is_extend, **options)

    def given(self, x, weights, ids):
        x, weights, ids = self.rank.given(x, weights, ids)
        return x, TopK(weights, ids, None)

    def experts(self, output):
        """Returns the input of combine."""
        if hasattr(output, "masked_m"):
            assert output.expected_m >= 1
            rows = by_expert(self.rank, output.hidden_states, output.hidden_states_scale, output.masked_m)
            return rows, output.topk_ids, output.topk_weights
        ids = self.kind.got(output.topk_ids)
        assert [(ids == e).sum() for e in range(len(self.rank.places))] == \
            output.num_recv_tokens_per_expert
        values = widened(self.kind.got(output.hidden_states))
        sums = summed(self.rank, values, ids, self.kind.got(output.topk_weights))
        return self.kind.given(sums, True), output.topk_ids, output.topk_weights

    def forward(self, x, weights, ids):
        output = self.dispatcher.dispatch(*self.given(x, weights, ids))
        return widened(self.kind.got(self.dispatcher.combine(self.experts(output))))


def batches_of_both_modes():
    """Prompts and decoding, also where a row comes for each expert; two batches of two copies of a
    layer, as two-batch overlap has them."""
    for same_bits in (False, True):
        rank, is_extend = Model(), [True]
        options = dict(is_extend=lambda: is_extend[0], same_bits=same_bits,
                       relay="automatic" if same_bits else rank.relay)
        layers = [Layer(rank, **options) for _ in range(2)]
        for is_extend[0] in (True, False, True, False):
            for batch in batches(rank):
                assert (layers[0].forward(*batch) == expected(*batch)).all()
            both = [rank.tokens(count) for count in (MOST, rank.rank)]
            for layer, batch in zip(layers, both):
                layer.dispatcher.dispatch_a(*layer.given(*batch))
            outputs = [layer.dispatcher.dispatch_b() for layer in layers]
            for layer, output in zip(layers, outputs):
                layer.dispatcher.combine_a(layer.experts(output))
            for layer, batch in zip(layers, both):
                sums = widened(rank.kind.got(layer.dispatcher.combine_b()))
                assert (sums == expected(*batch)).all()
    assert not layers[0].dispatcher.query_fault()


def hooks_and_orders():
    """Quantized rows, hooks, and calls in a wrong order."""
    rank = Model()
    batch = rank.tokens(2, is_constant=True)
    assert (Layer(rank, deepep_mode="low_latency", output_dtype="fp8").forward(*batch)
            == expected(*batch)).all()
    layer, seen = Layer(rank, deepep_mode="normal"), []
    for name in ("pre_dispatch", "post_dispatch", "pre_combine", "post_combine"):
        getattr(layer.dispatcher, f"register_{name}_hook")(
            lambda dispatcher, *passing, name=name: seen.append((name, len(passing))))
    layer.dispatcher.register_post_combine_hook(lambda dispatcher, sums: sums + 0)
    assert (layer.forward(*batch) == expected(*batch)).all()
    assert seen == [("pre_dispatch", 2), ("post_dispatch", 1), ("pre_combine", 1), ("post_combine", 1)]
    dispatcher, given = layer.dispatcher, layer.given(*batch)
    for name, arguments in (("dispatch_b", ()), ("combine_a", ((None,) * 3,)), ("combine_b", ())):
        raises(peerbus.InvalidArgument, "not dispatched", getattr(dispatcher, name), *arguments)
    dispatcher.dispatch_a(*given)
    raises(peerbus.InvalidArgument, "batch that is sent", dispatcher.dispatch_a, *given)
    raises(peerbus.InvalidArgument, "batch that is sent", dispatcher.combine_a, (None,) * 3)
    sent = layer.experts(dispatcher.dispatch_b())
    raises(peerbus.InvalidArgument, "batch that is received", dispatcher.combine_b)
    dispatcher.combine_a(sent)
    raises(peerbus.InvalidArgument, "sent back", dispatcher.dispatch_a, *given)
    assert (widened(rank.kind.got(dispatcher.combine_b())) == expected(*batch)).all()
    # What one rank alone gives wrong is refused on all.
    wrong = TopK(given[1].topk_weights, given[1].topk_ids + EXPERTS * (rank.rank == 0), None)
    raises((peerbus.InvalidArgument, peerbus.Refused), "", dispatcher.dispatch, given[0], wrong)
    assert (layer.forward(*batch) == expected(*batch)).all()
    # A hook that raises on one rank is an error on all, and experts that raise do not end the layer.
    for name in ("pre_dispatch", "post_dispatch", "pre_combine"):
        breaking = Layer(rank, deepep_mode="normal")

        def hook(*_):
            if rank.rank == 0:
                raise ArithmeticError("broken")
        getattr(breaking.dispatcher, f"register_{name}_hook")(hook)
        raises(ArithmeticError if rank.rank == 0 else peerbus.Refused, "", breaking.forward, *batch)
        breaking.dispatcher.reset()
    dispatcher.dispatch(*given)
    dispatcher.reset()
    dispatcher.dispatch_a(*given)
    dispatcher.reset()
    dispatcher.combine_a(layer.experts(dispatcher.dispatch(*given)))
    dispatcher.reset()
    for _ in range(3):
        assert (layer.forward(*batch) == expected(*batch)).all()
    raises(peerbus.InvalidArgument, "deepep_mode", Layer, rank, deepep_mode="fast")
    raises(TypeError, "is_extend_in_batch", Layer, rank)
    type(dispatcher).destroy_all()


# What SGLang calls, in sglang@8a0b43e5 and @003a81bf.
CALLED = {
    "__init__": "group router_topk permute_fusion num_experts num_local_experts hidden_size params_dtype "
                "deepep_mode async_finish return_recv_hook",
    "dispatch": "hidden_states topk_output", "dispatch_a": "hidden_states topk_output",
    "dispatch_b": "", "combine": "combine_input", "combine_a": "combine_input", "combine_b": "",
    "set_quant_config": "quant_config", "register_pre_dispatch_hook": "hook",
    "register_post_dispatch_hook": "hook", "register_pre_combine_hook": "hook",
    "register_post_combine_hook": "hook"}


class Tests(unittest.TestCase):
    def test_ranks(self):
        for ranks in (2, 3, 5):
            with self.subTest(ranks=ranks):
                run(ranks, batches_of_both_modes)
        run(2, hooks_and_orders)

    def test_on_two_hosts(self):
        for ranks in (3, 4):
            run(ranks, batches_of_both_modes, hosts=2, RELAY="always")

    @needs_torch
    def test_torch(self):
        for function in (batches_of_both_modes, hooks_and_orders):
            with self.subTest(function=function.__name__):
                run(3, function, TENSORS="torch")

    def test_interface(self):
        from peerbus.engines import sglang
        check_arguments(self, sglang.PeerbusDispatcher, CALLED)


if __name__ == "__main__":
    main(globals())

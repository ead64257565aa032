# SPDX-License-Identifier: MIT
"""peerbus.engines.afd, called in the order in which the workers of vLLM's AFD plug-in call a connector, on
numpy arrays, and on torch tensors where torch is installed: TENSORS=torch. And the example
attention_apart.py."""

import os
import time
import types
import unittest

import numpy

import peerbus
from peerbus.engines import dealt
from engine_model import EXPERTS, HIDDEN, TOP_K, check_arguments, expected, factor
from ranks import bf16, ended, free_port, has_hosts, main, needs_torch, raises, run, widened
from test_deep_ep import Kind

LAYERS, MOST = 3, 6
SPLITS = (3, 2), (1, 1), (1, 3)  # Attention and FFN ranks.


def configs(attention, ffn, role, routes, ubatches=2, dtype=None, **extra):
    """Returns what the plug-in gives to a connector."""
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(dtype=dtype, hf_config=types.SimpleNamespace(
            hidden_size=HIDDEN, num_experts_per_tok=TOP_K, n_routed_experts=EXPERTS)),
        scheduler_config=types.SimpleNamespace(max_num_batched_tokens=MOST),
        parallel_config=types.SimpleNamespace(num_ubatches=ubatches),
        additional_config={"afd": {"connector_extra_config": extra}},
    ), types.SimpleNamespace(role=role, num_attention_ranks=attention, num_ffn_ranks=ffn, host="127.0.0.1",
                             port=int(os.environ["AFD_PORT"]), compute_gate_on_attention=routes)


class Rank:
    """This rank: attention or FFN, as the environment says."""

    def __init__(self, **more):
        from peerbus.engines import afd
        self.kind = Kind()
        self.attention, self.ffn = int(os.environ["ATTENTION"]), int(os.environ["FFN"])
        number = int(os.environ["RANK"])
        self.is_ffn = number >= self.attention
        self.role_rank = number - self.is_ffn * self.attention
        self.logits = os.environ.get("LOGITS")  # Their type, if they travel.
        self.routes = os.environ["ROUTES"] == "1" and not self.logits
        if self.logits:
            more["router_logits"] = self.logits
        if self.kind.torch:
            more["dtype"] = self.kind.torch.bfloat16
        if "PEERBUS_SECRET" in os.environ:
            more.update(secret=os.environ["PEERBUS_SECRET"].ljust(16, "-"), host=os.environ["PEERBUS_HOST"])
        config, afd_config = configs(self.attention, self.ffn, "ffn" if self.is_ffn else "attention",
                                     self.routes or bool(self.logits), **more)
        self.connector = afd.PeerbusAFDConnector(number, 0, config, afd_config, self.role_rank)
        assert not self.connector.is_initialized
        self.connector.init_afd_connector()
        self.connector.init_afd_connector()
        assert self.connector.is_initialized

    def batch(self, layer, stage, attention_rank):
        """Returns the tokens of an attention rank, which any rank can say: one of them has none in a layer."""
        draw = numpy.random.default_rng([layer, stage, attention_rank])
        count = 0 if attention_rank == layer % 3 else int(draw.integers(1, MOST + 1))
        x = 1 + (numpy.arange(count)[:, None] + attention_rank + stage + numpy.arange(HIDDEN)) % 3
        ids = numpy.array([draw.permutation(EXPERTS)[:TOP_K] for _ in range(count)],
                          numpy.int64).reshape(count, TOP_K)
        ids[:, -1] = numpy.where(numpy.arange(count) % 2, -1, ids[:, -1])  # Some have an expert less.
        weights = draw.choice(numpy.float32([1, 0.5, 0.25]), [count, TOP_K])
        return x.astype(numpy.float32), weights, ids

    def context(self, layer, stage, count):
        return types.SimpleNamespace(states=None, metadata=types.SimpleNamespace(
            layer_idx=layer, stage_idx=stage, seq_lens=[count], total_tokens=count))

    def send(self, layer, stage):
        x, weights, ids = self.batch(layer, stage, self.role_rank)
        given = self.kind.given(bf16(x), True)
        routing = dict(topk_ids=self.kind.given(ids), topk_weights=self.kind.given(weights),
                       router_logits=None) if self.routes else {}
        if self.logits:
            routing["router_logits"] = self.kind.given(self.logits_of(layer, stage, self.role_rank),
                                                       self.logits == "bfloat16")
        self.connector.send_attn_output(given, self.context(layer, stage, len(x)), **routing)
        return given, expected(x, weights, ids) if self.routes else x * factor(layer)

    def logits_of(self, layer, stage, attention_rank):
        """Returns the logits of the tokens of an attention rank: bits of bfloat16, or float32."""
        count = len(self.batch(layer, stage, attention_rank)[0])
        values = numpy.random.default_rng([9, layer, stage, attention_rank]).integers(-9, 9, [count, EXPERTS])
        return bf16(values) if self.logits == "bfloat16" else values.astype(numpy.float32)

    def routing_spec(self):
        return types.SimpleNamespace(router_logits_width=EXPERTS, router_logits_dtype=(
            getattr(self.kind.torch, self.logits) if self.kind.torch else
            numpy.dtype("u2" if self.logits == "bfloat16" else "f4"))) if self.logits else None

    def run_attention(self, layers=LAYERS, stages=2):
        for layer in range(layers):
            sent = [self.send(layer, stage) for stage in range(stages)]
            for stage, (given, wanted) in enumerate(sent):
                out = self.connector.recv_ffn_output(ref_tensor=given, ubatch_idx=stage)
                assert out is given
                numpy.testing.assert_array_equal(widened(self.kind.got(out)), wanted)

    def run_ffn(self, layers=LAYERS, stages=2):
        first = sum(dealt(EXPERTS, self.ffn)[:self.role_rank])
        for layer in range(layers):
            for stage in range(stages):
                payload = self.connector.recv_attn_output(ubatch_idx=stage, layer_idx=layer,
                                                          routing_spec=self.routing_spec())
                metadata = payload.context.metadata
                assert (metadata.layer_idx, metadata.stage_idx) == (layer, stage)
                assert len(metadata.seq_lens) == self.attention
                rows = widened(self.kind.got(payload.hidden_states))
                assert len(rows) == metadata.total_tokens
                groups = self.kind.got(payload.context.states.group_list)
                if self.routes:
                    experts = numpy.repeat(numpy.arange(len(groups)), groups)
                    outputs = rows * factor(first + experts)[:, None]
                    wanted = [numpy.isin(self.batch(layer, stage, a)[2],
                                         first + numpy.arange(len(groups))).sum()
                              for a in range(self.attention)]
                else:
                    outputs = rows * factor(layer)
                    tokens = [self.dealt(layer, stage, a) for a in range(self.attention)]
                    wanted = [len(own) for own in tokens]
                    if self.logits:
                        numpy.testing.assert_array_equal(
                            self.kind.got(payload.router_logits), numpy.concatenate(
                                [self.logits_of(layer, stage, a)[own] for a, own in enumerate(tokens)]))
                    else:
                        assert payload.router_logits is None
                assert metadata.seq_lens == wanted and groups.sum() == len(rows)
                self.connector.send_ffn_output(self.kind.given(bf16(outputs), True), payload.context)

    def dealt(self, layer, stage, attention_rank):
        """Returns which tokens of a rank come to this one: those whose part of the row of all attention
        ranks, each as long as the next, begins in this rank's part."""
        count = len(self.batch(layer, stage, attention_rank)[0])
        return [i for i in range(count) if self.role_rank * self.attention * count
                <= (attention_rank * count + i) * self.ffn < (self.role_rank + 1) * self.attention * count]

    def run(self):
        self.run_ffn() if self.is_ffn else self.run_attention()


def serve():
    rank = Rank()
    plane = rank.connector.control_plane
    for step in range(2):
        if rank.is_ffn:
            told = plane.recv_dp_metadata_list()
            assert (told.is_graph_capturing, told.is_warmup) == (False, step == 0)
            assert {stage: (list(data.num_tokens_across_dp_cpu), data.max_tokens_across_dp_cpu)
                    for stage, data in told.dp_metadata_list.items()} == {0: ([3, step], 3), 1: ([0, 1], 1)}
        else:
            stages = {0: ([3, step], 3), 1: ([0, 1], 1)}
            told = types.SimpleNamespace(is_graph_capturing=False, is_warmup=step == 0, dp_metadata_list={
                stage: types.SimpleNamespace(num_tokens_across_dp_cpu=numpy.array(counts),
                                             max_tokens_across_dp_cpu=most)
                for stage, (counts, most) in stages.items()})
            plane.send_dp_metadata_list(told)
        plane.update_state_from_dp_metadata(told)
    rank.run()
    rank.run()  # As the next step does.
    rank.connector.close()
    assert not rank.connector.is_initialized
    rank.connector.close()


def refuse():
    """Bad arguments of attention rank 0, and of the FFN rank."""
    rank = Rank(timeout=10, ubatches=1)
    from peerbus.engines.afd import PeerbusAFDConnector
    connector, x = rank.connector, numpy.zeros([1, HIDDEN], "u2")
    good = dict(topk_ids=numpy.arange(TOP_K)[None], topk_weights=numpy.ones([1, TOP_K], "f4"))
    if rank.is_ffn:
        raises(RuntimeError, "on an ffn rank", connector.send_attn_output, x, rank.context(0, 0, 1), **good)
    else:
        raises(RuntimeError, "on an attention rank", connector.recv_attn_output)
        raises(RuntimeError, "nothing was sent", connector.recv_ffn_output, None)
    for kind, text, tokens, routing in (
            (ValueError, "has 2 rows, expected total_tokens of the context, 1", numpy.zeros([2, HIDDEN], "u2"), good),
            (ValueError, "expected both", x, {}),
            (peerbus.InvalidArgument, f"expert id {EXPERTS}", x, dict(good, topk_ids=good["topk_ids"] + EXPERTS))):
        if rank.is_ffn:
            raises(peerbus.Refused, "rank 0", connector.recv_attn_output)
        elif rank.role_rank == 0:
            raises(kind, text, connector.send_attn_output, tokens, rank.context(0, 0, 1), **routing)
        else:
            connector.send_attn_output(x, rank.context(0, 0, 1), **good)
            raises(peerbus.Refused, "rank 0", connector.recv_ffn_output, x)
        rank.run_ffn(1, 1) if rank.is_ffn else rank.run_attention(1, 1)  # It goes on.
    if rank.is_ffn:
        payload = connector.recv_attn_output()
        raises(peerbus.InvalidArgument, "ffn_output are [9, 128], expected [6, 128]", connector.send_ffn_output,
               numpy.zeros([9, HIDDEN], "u2"), payload.context)
    else:
        connector.send_attn_output(x, rank.context(0, 0, 1), **good)
        raises(peerbus.Refused, "rank 2", connector.recv_ffn_output, x)
    rank.run_ffn(1, 1) if rank.is_ffn else rank.run_attention(1, 1)
    if rank.is_ffn:  # A context that was used: its outputs stay as they are.
        payload = connector.recv_attn_output()
        connector.send_ffn_output(payload.hidden_states, payload.context)
        for outputs in payload.hidden_states + 1, numpy.zeros([9, HIDDEN], "u2"):
            raises(RuntimeError, "whose outputs were sent", connector.send_ffn_output, outputs, payload.context)
    else:
        once = dict(good, topk_weights=numpy.eye(1, TOP_K, dtype="f4"))
        given = bf16(numpy.full([1, HIDDEN], rank.role_rank + 1.0))
        connector.send_attn_output(given, rank.context(0, 0, 1), **once)
        out = connector.recv_ffn_output(numpy.zeros([1, HIDDEN], "u2"))
        numpy.testing.assert_array_equal(out, given)
    rank.run_ffn(1, 1) if rank.is_ffn else rank.run_attention(1, 1)
    if rank.is_ffn:
        raises(RuntimeError, "whose outputs were sent", connector.send_ffn_output, payload.hidden_states,
               payload.context)  # Of a batch that has ended.
    rank.run_ffn(1, 1) if rank.is_ffn else rank.run_attention(1, 1)
    if rank.is_ffn:  # A wrong place for the sums.
        payload = connector.recv_attn_output()
        connector.send_ffn_output(payload.hidden_states, payload.context)
    else:
        connector.send_attn_output(x, rank.context(0, 0, 1), **good)
        raises(peerbus.InvalidArgument if rank.role_rank == 0 else peerbus.Refused,
               "out is [2, " if rank.role_rank == 0 else "rank 0", connector.recv_ffn_output,
               numpy.zeros([2 - rank.role_rank, HIDDEN], "u2"))
    rank.run_ffn(LAYERS, 1) if rank.is_ffn else rank.run_attention(LAYERS, 1)
    plane = connector.control_plane
    if rank.is_ffn:
        raises(peerbus.Refused, "could not say what the step is", plane.recv_dp_metadata_list)
    elif rank.role_rank == 0:
        raises(AttributeError, "dp_metadata_list", plane.send_dp_metadata_list, None)
    else:
        raises(peerbus.Refused, "could not say", plane.send_dp_metadata_list, None)
    if rank.is_ffn:
        payload = connector.recv_attn_output()
        connector.close()
        raises(RuntimeError, "before init_afd_connector", connector.send_ffn_output, payload.hidden_states,
               payload.context)
    else:
        connector.send_attn_output(x, rank.context(0, 0, 1), **good)
        raises((peerbus.PeerDead, peerbus.Unreachable), "rank 2", connector.recv_ffn_output, x)
    config, afd_config = configs(1, 1, "router", True)
    raises(ValueError, "role is 'router'", PeerbusAFDConnector, 0, 0, config, afd_config, 0)
    config, afd_config = configs(2, 0, "attention", True)
    raises(ValueError, "2 attention and 0 FFN ranks", PeerbusAFDConnector, 0, 0, config, afd_config, 0)
    config, afd_config = configs(2, 1, "ffn", True)
    raises(ValueError, "role_rank is 1, expected one of 1 ffn ranks", PeerbusAFDConnector, 0, 0, config,
           afd_config, 1)
    config, afd_config = configs(2, 1, "ffn", True, core_num=8)
    raises(ValueError, "has 'core_num', expected codec", PeerbusAFDConnector, 0, 0, config, afd_config, 0)


def refuse_logits():
    """Bad logits of attention rank 0, and another wish of the FFN rank."""
    rank = Rank(timeout=10, ubatches=1)
    connector, x = rank.connector, numpy.zeros([1, HIDDEN], "u2")
    good = numpy.zeros([1, EXPERTS], "f4")
    for text, logits in (("router_logits are none, expected [1, 35] float32", None),
                         ("router_logits are [1, 34] float32, expected [1, 35]", good[:, 1:]),
                         ("router_logits are [1, 35] bfloat16, expected [1, 35] float32", good.astype("u2"))):
        if rank.is_ffn:
            raises(peerbus.Refused, "rank 0", connector.recv_attn_output)
        elif rank.role_rank == 0:
            raises(ValueError, text, connector.send_attn_output, x, rank.context(0, 0, 1), router_logits=logits)
        else:
            connector.send_attn_output(x, rank.context(0, 0, 1), router_logits=good)
            raises(peerbus.Refused, "rank 0", connector.recv_ffn_output, x)
        rank.run_ffn(1, 1) if rank.is_ffn else rank.run_attention(1, 1)  # It goes on.
    if rank.is_ffn:
        other = types.SimpleNamespace(router_logits_width=8, router_logits_dtype=numpy.dtype("f4"))
        raises(ValueError, "wants 8 logits of float32, but connector_extra_config has router_logits 'float32' of 35",
               connector.recv_attn_output, routing_spec=other)
    else:
        connector.send_attn_output(x, rank.context(0, 0, 1), router_logits=good)
        raises(peerbus.Refused, "rank 2", connector.recv_ffn_output, x)
    rank.run_ffn(1, 1) if rank.is_ffn else rank.run_attention(1, 1)
    from peerbus.engines.afd import PeerbusAFDConnector
    for gate, logits, text in ((True, "float16", "router_logits is 'float16', expected bfloat16 or float32"),
                               (False, "float32", "expected none, as compute_gate_on_attention is false")):
        config, afd_config = configs(1, 1, "ffn", gate, router_logits=logits)
        raises(ValueError, text, PeerbusAFDConnector, 1, 0, config, afd_config, 0)


def receive_ahead():
    """An FFN rank receives two micro-batches before it sends one, and waits for the first step for longer than
    a call may take."""
    rank = Rank(timeout=1)
    connector = rank.connector
    if not rank.is_ffn:
        time.sleep(1.5)
        connector.control_plane.send_dp_metadata_list(
            types.SimpleNamespace(is_graph_capturing=False, is_warmup=False, dp_metadata_list={}))
        sent = [rank.send(0, 0), rank.send(0, 1)]
        connector.recv_ffn_output(sent[0][0], 0)
        sent.append(rank.send(1, 0))
        connector.recv_ffn_output(sent[1][0], 1)
        connector.recv_ffn_output(sent[2][0], 0)
        for given, wanted in sent:
            numpy.testing.assert_array_equal(widened(given), wanted)
    else:
        connector.control_plane.recv_dp_metadata_list()
        payloads = [connector.recv_attn_output(0), connector.recv_attn_output(1)]
        for layer, payload in ((0, payloads[0]), (0, payloads[1]), (1, None)):
            payload = payload or connector.recv_attn_output(0)
            rows = widened(payload.hidden_states) * factor(layer)
            connector.send_ffn_output(bf16(rows), payload.context)


class AFDTest(unittest.TestCase):
    def run_split(self, function, attention, ffn, routes, **more):
        run(attention + ffn, function, ATTENTION=str(attention), FFN=str(ffn), ROUTES="01"[routes],
            AFD_PORT=free_port(), **more)

    def test_splits(self):
        for attention, ffn in SPLITS:
            for routes in (True, False):
                with self.subTest(attention=attention, ffn=ffn, routes=routes):
                    self.run_split(serve, attention, ffn, routes)

    def test_router_logits(self):
        for attention, ffn in SPLITS:
            for logits in "float32", "bfloat16":
                with self.subTest(attention=attention, ffn=ffn, logits=logits):
                    self.run_split(serve, attention, ffn, True, LOGITS=logits)
        self.run_split(refuse_logits, 2, 1, True, LOGITS="float32")

    @unittest.skipUnless(has_hosts, "libpeerbus is built without networks")
    def test_hosts(self):
        self.run_split(serve, 3, 2, True, hosts=2)

    @needs_torch
    def test_torch(self):
        self.run_split(serve, 3, 2, True, TENSORS="torch")
        self.run_split(serve, 3, 2, True, TENSORS="torch", LOGITS="bfloat16")

    def test_bad_arguments(self):
        self.run_split(refuse, 2, 1, True)

    def test_receive_ahead(self):
        self.run_split(receive_ahead, 1, 1, False)

    def test_methods(self):
        from peerbus.engines import afd
        check_arguments(self, afd.PeerbusAFDConnector, {
            "__init__": "rank local_rank vllm_config afd_config role_rank",
            "init_afd_connector": "", "close": "",
            "send_attn_output": "hidden_states context topk_ids topk_weights router_logits _",
            "recv_ffn_output": "ref_tensor ubatch_idx _", "recv_attn_output": "ubatch_idx layer_idx routing_spec _",
            "send_ffn_output": "ffn_output context _"})
        check_arguments(self, afd.PeerbusAFDControlPlane, {
            "update_state_from_dp_metadata": "payload", "send_dp_metadata_list": "payload",
            "recv_dp_metadata_list": ""})


class ExampleTest(unittest.TestCase):
    """Text over ranks, some of which have no sequence or no draft."""

    example = os.path.join(os.path.dirname(peerbus.__file__), "..", "attention_apart.py")

    def test_text(self):
        for arguments in "--tokens 12", "--attention 9 --experts 1 --drafts 0 --tokens 3":
            self.assertIn("0 of 8 texts differ", ended(self.example, *arguments.split()))

    def test_arguments(self):
        for arguments, says in (("--experts 8", "--experts is 8, expected at most 7"),
                                ("--tokens 0", "--tokens: 0, expected a whole number from 1")):
            self.assertIn(says, ended(self.example, *arguments.split(), expected=2))


if __name__ == "__main__":
    main(globals())

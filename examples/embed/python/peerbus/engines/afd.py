# SPDX-License-Identifier: MIT
"""Attention and experts on ranks of their own, with the words of vLLM's AFD plug-in.

Written for vllm-project/afd-plugin@2e4378f (connectors/base.py, metadata.py, npu/async_cam.py). Where the
plug-in is not installed the class stands alone, with the same methods. docs/engines.md.
"""

import collections
import contextlib
import dataclasses
import importlib.util
import json
import sys
import weakref
from typing import Any

import numpy

from .. import Communicator
from .. import _library as c
from .._bf16 import from_bf16, to_bf16
from .._tensors import bits_of, like, view_like
from ._token_dispatcher import TokenDispatcher, dealt


def _is_there():
    """Returns whether the plug-in is installed."""
    return importlib.util.find_spec("afd_plugin") is not None


if _is_there():  # One of another version may lack a name: ImportError.
    from afd_plugin.connectors.base import AFDConnectorBase, AFDControlPlane
    from afd_plugin.connectors.metadata import AFDControlPayload, AFDDPMetadata
else:
    AFDConnectorBase = AFDControlPlane = object

    @dataclasses.dataclass
    class AFDDPMetadata:
        """The tokens of each rank of a data-parallel group, and the most of them."""
        num_tokens_across_dp_cpu: Any
        max_tokens_across_dp_cpu: Any = None

    @dataclasses.dataclass
    class AFDControlPayload:
        """What attention tells FFN ranks of a step: `AFDDPMetadata` by stage."""
        dp_metadata_list: dict
        is_graph_capturing: bool
        is_warmup: bool


@dataclasses.dataclass
class AFDTransferMetadata:
    """Of one transfer. `seq_lens` are the rows from each attention rank, which may be 0, in order."""
    layer_idx: int
    stage_idx: int
    seq_lens: list

    @property
    def total_tokens(self):
        """The rows of the transfer."""
        return sum(self.seq_lens)


@dataclasses.dataclass
class PeerbusTransferState:
    """What an FFN rank needs beside rows: `group_list`, int64, has the rows of each local expert, which lie
    behind each other, and `dynamic_scales` those of the rows with a quantizing codec."""
    group_list: Any
    dynamic_scales: Any = None
    rows: Any = dataclasses.field(default=None, repr=False)  # `_GroupedRows`.


@dataclasses.dataclass
class AFDTransferContext:
    """A transfer, from `recv_attn_output` to `send_ffn_output`."""
    metadata: AFDTransferMetadata
    states: Any = None


@dataclasses.dataclass
class AFDA2FTransferPayload:
    """What `recv_attn_output` returns: rows, [N, H] of the codec's type, and their logits of the gate,
    [N, n_routed_experts], if those travel. Both are copies."""
    hidden_states: Any
    context: AFDTransferContext
    router_logits: Any = None


class _GroupedRows:
    """The rows of a batch of layout slots, once for each local expert of a token, in the order of experts.
    `group_list` has the rows of each local expert, `sources` those of each rank."""

    def __init__(self, batch, local_experts):
        self.batch = batch
        ranks, most, _ = batch.outputs.shape
        experts = numpy.asarray(batch.slot_experts)
        at, slot = numpy.nonzero(experts >= 0)
        order = numpy.argsort(experts[at, slot], kind="stable")  # Of a rank's tokens and ranks in order.
        self._at, self._slot = at[order], slot[order]
        self._weights = numpy.asarray(batch.slot_weights)[self._at, self._slot]
        self._rows, self._row_of = numpy.unique(self._at, return_inverse=True)
        self.group_list = numpy.bincount(experts[at, slot], minlength=local_experts)
        self.sources = numpy.bincount(at // most, minlength=ranks)

    def of(self, values):
        """Returns the rows of [R, B, ...]."""
        return values.reshape(-1, values.shape[-1])[self._at]

    def place(self, outputs):
        """Puts `outputs`, [N, H], where attention ranks read them: as weighted sums over the local experts of
        each token, in float32 in the order of its slots, rounded once."""
        ranks, most, hidden = self.batch.outputs.shape
        given = bits_of(outputs, "ffn_output", [len(self._at), hidden])
        target = bits_of(self.batch.outputs, "outputs", [ranks, most, hidden]).reshape(-1, hidden)
        if (self._weights == 1).all() and len(self._rows) == len(self._at):
            target[self._at] = given
            return
        sums = numpy.zeros([len(self._rows), hidden], numpy.float32)
        for slot in numpy.unique(self._slot):
            own = self._slot == slot
            sums[self._row_of[own]] += self._weights[own, None] * from_bf16(given[own])
        target[self._rows] = to_bf16(sums)


_LOGITS = {"bfloat16": (4, 16), "float32": (2, 32)}  # Types of `router_logits`, as the library has them.
_IDLE_SECONDS = 1800  # For which FFN ranks wait for a step.


def _extra_config(vllm_config):
    """Returns `connector_extra_config` of a configuration."""
    additional = getattr(vllm_config, "additional_config", None) or {}
    return additional.get("afd", {}).get("connector_extra_config")


class PeerbusAFDControlPlane(AFDControlPlane):
    """Tells FFN ranks of each step, as attention rank 0 says. Made by the connector. Collective: all attention
    ranks send, and all FFN ranks receive."""

    def __init__(self, connector):
        self._connector = weakref.ref(connector)

    def update_state_from_dp_metadata(self, payload):
        """Does nothing: sizes travel with the tokens."""

    def send_dp_metadata_list(self, payload):
        """Attention ranks: begins a step."""
        self._connector().tell(lambda: self._encode(payload))

    @staticmethod
    def _encode(payload):
        def counts(data):
            ranks = numpy.asarray(data.num_tokens_across_dp_cpu).ravel().tolist()
            most = data.max_tokens_across_dp_cpu
            return {"num_tokens_across_dp_cpu": ranks,
                    "max_tokens_across_dp_cpu": max(ranks, default=0) if most is None else int(most)}
        return json.dumps({
            "dp_metadata_list": {str(stage): counts(data) for stage, data in payload.dp_metadata_list.items()},
            "is_graph_capturing": bool(payload.is_graph_capturing), "is_warmup": bool(payload.is_warmup)}).encode()

    def recv_dp_metadata_list(self):
        """FFN ranks: waits for the next step, up to half an hour, and returns its `AFDControlPayload`. Raises
        `Refused` if attention rank 0 had none to tell."""
        told = json.loads(self._connector().tell(None))
        stages = {int(stage): AFDDPMetadata(data["num_tokens_across_dp_cpu"], data["max_tokens_across_dp_cpu"])
                  for stage, data in told["dp_metadata_list"].items()}
        return AFDControlPayload(stages, told["is_graph_capturing"], told["is_warmup"])


def _no_tokens(model_config, hidden, top_k):
    """Returns tokens, experts and weights of an FFN rank: tensors of torch if the model's are."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(getattr(model_config, "dtype", None), torch.dtype):
        return (torch.empty([0, hidden], dtype=torch.bfloat16), torch.empty([0, top_k], dtype=torch.int64),
                torch.empty([0, top_k]))
    return (numpy.empty([0, hidden], numpy.uint16), numpy.empty([0, top_k], numpy.int64),
            numpy.empty([0, top_k], numpy.float32))


def _name_of(dtype):
    """Returns the name of a type of torch or numpy, which has uint16 for bfloat16."""
    name = str(dtype).rpartition(".")[2]
    return "bfloat16" if name == "uint16" else name


class PeerbusAFDConnector(AFDConnectorBase):
    """Moves tokens of attention ranks to FFN ranks and outputs back, for any numbers of both.

    The arguments are those of the plug-in: of `vllm_config` it reads
    `model_config.hf_config` (hidden_size, num_experts_per_tok, n_routed_experts),
    `scheduler_config.max_num_batched_tokens`, `parallel_config.num_ubatches`, and `additional_config`; of
    `afd_config` role, num_attention_ranks, num_ffn_ranks, host, port and compute_gate_on_attention.
    `connector_extra_config` may have `codec` (one of peerbus.CODECS, by default bf16), `secret` (to meet
    between hosts), `host` (the name of this rank's), `timeout` of each call in seconds, and `router_logits`, the
    type of the gate's logits, bfloat16 or float32.

    If attention computes the gate, each token goes to the ranks of its experts, which are dealt out to FFN ranks
    equally, and comes back as the weighted sum. Without a gate it goes to one FFN rank, and comes back as that
    leaves it: attention ranks are dealt out to FFN ranks in order, and the tokens of one that falls to two FFN
    ranks are split. So does a token with `router_logits`, which takes its logits of all experts along.

    Each rank calls for each layer and micro-batch, in the same order: attention ranks `send_attn_output`
    and `recv_ffn_output`, FFN ranks `recv_attn_output` and `send_ffn_output`. `num_ubatches` may be under
    way at once. A rank without tokens calls as
    well. What is wrong with the arguments of one is refused on all. Errors are those of
    `peerbus.Exchange`; after `PeerDead` the connector is closed and made anew.
    """

    def __init__(self, rank, local_rank, vllm_config, afd_config, role_rank):
        if AFDConnectorBase is object:
            self.rank, self.local_rank, self.role_rank = rank, local_rank, role_rank
            self.vllm_config, self.afd_config = vllm_config, afd_config
            self.extra_info = self.parse_extra_config(_extra_config(vllm_config))
        else:
            super().__init__(rank, local_rank, vllm_config, afd_config, role_rank)
        self.attn_size = c.number(afd_config.num_attention_ranks, "num_attention_ranks")
        self.ffn_size = c.number(afd_config.num_ffn_ranks, "num_ffn_ranks")
        if min(self.attn_size, self.ffn_size) == 0:
            raise ValueError(f"there are {self.attn_size} attention and {self.ffn_size} FFN ranks, expected "
                             "at least one of each")
        if afd_config.role not in ("attention", "ffn"):
            raise ValueError(f"role is {afd_config.role!r}, expected 'attention' or 'ffn'")
        self._is_ffn = afd_config.role == "ffn"
        own_size = self.ffn_size if self._is_ffn else self.attn_size
        if not 0 <= role_rank < own_size:
            raise ValueError(f"role_rank is {role_rank}, expected one of {own_size} {afd_config.role} ranks")
        self.world_rank = role_rank + self._is_ffn * self.attn_size  # Attention ranks come first.
        gate = bool(getattr(afd_config, "compute_gate_on_attention", False))
        self._logits = self.extra_info["router_logits"]
        if self._logits is not None and (not gate or self._logits not in _LOGITS):
            raise ValueError(f"router_logits is {self._logits!r}, expected " + (
                "bfloat16 or float32" if gate else "none, as compute_gate_on_attention is false"))
        self._routes = gate and self._logits is None
        model = vllm_config.model_config.hf_config
        self.hidden_size = model.hidden_size
        self._top_k = model.num_experts_per_tok if self._routes else 1
        self._experts = model.n_routed_experts if self._routes else self.ffn_size
        self._logits_width = model.n_routed_experts if self._logits else 0
        self._logits_bytes = self._logits_width * _LOGITS[self._logits][1] // 8 if self._logits else 0
        self._nothing = _no_tokens(vllm_config.model_config, self.hidden_size, self._top_k)
        self._comm = self._dispatcher = None
        self.control_plane = PeerbusAFDControlPlane(self)
        # Batches, oldest first: those of attention ranks by stage, and those that FFN ranks have received,
        # which are finished when the library needs their place.
        self._under_way, self._received = collections.defaultdict(collections.deque), collections.deque()

    @classmethod
    def parse_extra_config(cls, raw):
        """Returns `connector_extra_config` with what is not given."""
        known = {"codec": "bf16", "secret": None, "host": None, "timeout": None, "router_logits": None}
        unknown = sorted(set(raw or {}).difference(known))
        if unknown:
            raise ValueError(f"connector_extra_config has {unknown[0]!r}, expected {', '.join(known)}")
        return {**known, **(raw or {})}

    @property
    def is_initialized(self):
        """Whether the ranks have met."""
        return self._dispatcher is not None

    def init_afd_connector(self):
        """Collective among all ranks of both roles: meets them. Does nothing if that has happened."""
        if self.is_initialized:
            return
        extra = self.extra_info
        comm = Communicator(self.world_rank, self.attn_size + self.ffn_size, self.afd_config.port,
                            timeout=extra["timeout"], host=extra["host"], secret=extra["secret"],
                            address=self.afd_config.host if extra["secret"] else None)
        config = self.vllm_config
        try:
            dispatcher = TokenDispatcher(
                comm, self._experts, self.hidden_size, config.scheduler_config.max_num_batched_tokens,
                in_flight=max(1, config.parallel_config.num_ubatches), timeout=extra["timeout"],
                experts_of_rank=[0] * self.attn_size + dealt(self._experts, self.ffn_size),
                attachments=[-(-self._logits_bytes // 4) * 4] if self._logits else ())
            comm.broadcast(numpy.zeros(1, numpy.int64), 0)  # So that `tell` need not meet the ranks.
        except BaseException:
            comm.destroy()
            raise
        self._comm, self._dispatcher = comm, dispatcher

    def close(self):
        """Leaves the other ranks once they have the outputs that were sent, and releases the memory of the
        library, in which rows lie. Does nothing if that has happened before."""
        dispatcher, comm = self._dispatcher, self._comm
        self._dispatcher = self._comm = None
        if dispatcher is not None:
            for batch in self._received:
                with contextlib.suppress(c.Error):  # Of ranks that are gone.
                    batch.give_up()
            dispatcher.destroy()
            comm.destroy()
        self._under_way.clear()
        self._received.clear()

    def tell(self, make):
        """Collective: returns the bytes that `make()` returns on attention rank 0. What it raises there, the
        others learn as `Refused`."""
        self._require_initialized("the control plane")
        text, problem, size = b"", None, numpy.zeros(1, numpy.int64)
        if self.world_rank == 0:
            try:
                text = make()
                size[0] = len(text)
            except Exception as found:
                problem, size[0] = found, -1
        self._comm.broadcast(size, 0, _IDLE_SECONDS)
        if problem is not None:
            raise problem
        if size[0] < 0:
            raise c.Refused(8, "attention rank 0 could not say what the step is")
        told = numpy.frombuffer(text, numpy.uint8) if self.world_rank == 0 else numpy.empty(int(size[0]), numpy.uint8)
        return self._comm.broadcast(told, 0).tobytes()

    def _require_initialized(self, name):
        if not self.is_initialized:
            raise RuntimeError(f"{name} was called before init_afd_connector")

    def _require(self, name, is_ffn):
        self._require_initialized(name)
        if is_ffn != self._is_ffn:
            raise RuntimeError(f"{name} was called on an {self.afd_config.role} rank")

    def _send(self, x, topk_ids, topk_weights, logits=()):
        return self._dispatcher.send("slots", x, topk_ids, topk_weights, self.extra_info["codec"], logits)

    def _refuse_dispatch(self):
        """Makes the calls of the other ranks fail, which this rank cannot make."""
        self._dispatcher.refuse_dispatch("slots", self._nothing[1], self.extra_info["codec"])

    def send_attn_output(self, hidden_states, context, topk_ids=None, topk_weights=None, router_logits=None, **_):
        """Attention ranks: sends tokens, [T, H] bfloat16, which must not change until `recv_ffn_output` has
        returned, nor `router_logits`. Waits for no rank, but the first one. `router_logits`
        [T, n_routed_experts] are read if their type is configured. Otherwise `topk_ids` int32 or int64 and
        `topk_weights` float32 are [T, K] if attention computes the gate, and are not read without it."""
        self._require("send_attn_output", False)
        try:
            count = hidden_states.shape[0]
            if context.metadata.total_tokens != count:
                raise ValueError(f"hidden_states has {count} rows, expected total_tokens of the context, "
                                 f"{context.metadata.total_tokens}")
            if not self._routes:
                topk_ids, topk_weights = self._dealt(count), numpy.ones([count, 1], numpy.float32)
            elif topk_ids is None or topk_weights is None:
                raise ValueError("send_attn_output was given no topk_ids and topk_weights, expected both, as "
                                 "compute_gate_on_attention is true")
            logits = [self._checked_logits(router_logits, count)] if self._logits else ()
        except Exception:
            self._refuse_dispatch()
            raise
        self._under_way[context.metadata.stage_idx].append(
            self._send(hidden_states, topk_ids, topk_weights, logits))

    def _checked_logits(self, logits, count):
        """Returns the logits of tokens. Requires their shape and type."""
        given = "none" if logits is None else f"{list(logits.shape)} {_name_of(logits.dtype)}"
        wanted = f"{[count, self._logits_width]} {self._logits}"
        if given != wanted:
            raise ValueError(f"router_logits are {given}, expected {wanted}")
        if self._logits_bytes % 4 == 0:
            return logits
        bits = bits_of(logits, "router_logits", logits.shape)  # An odd number of bfloat16.
        return numpy.pad(bits, ((0, 0), (0, 1)))

    def _dealt(self, count):
        """Returns the FFN rank of each token, [T, 1]."""
        place = self.role_rank * count + numpy.arange(count, dtype=numpy.int64)
        return (place * self.ffn_size // (self.attn_size * max(count, 1)))[:, None]

    def recv_ffn_output(self, ref_tensor, ubatch_idx=0, **_):
        """Attention ranks: returns the outputs of the oldest tokens of a stage, in `ref_tensor`, [T, H]
        bfloat16 without gaps."""
        if not self._under_way[ubatch_idx]:
            raise RuntimeError(f"recv_ffn_output was called for stage {ubatch_idx}, of which nothing was sent")
        batch = self._under_way[ubatch_idx].popleft()
        batch.receive()  # No rows, but the word of all ranks that they take part.
        batch.send_back(out=ref_tensor)
        return batch.finish()

    def recv_attn_output(self, ubatch_idx=0, layer_idx=0, routing_spec=None, **_):
        """FFN ranks: waits for the tokens of all attention ranks. Returns an `AFDA2FTransferPayload`, whose
        rows lie in the order of experts, attention ranks and tokens. `routing_spec` says the width and type of
        the logits that are expected; others are refused."""
        self._require("recv_attn_output", True)
        received = self._received
        # The library refuses one more beside batches whose outputs are not sent.
        while len(received) >= self._dispatcher.in_flight and received[0].stage == "sent back":
            received.popleft().give_up()
        if routing_spec is not None:
            wanted = routing_spec.router_logits_width, _name_of(routing_spec.router_logits_dtype)
            if wanted != (self._logits_width, self._logits):
                self._refuse_dispatch()
                raise ValueError(f"routing_spec wants {wanted[0]} logits of {wanted[1]}, but connector_extra_config "
                                 f"has router_logits {self._logits!r} of {self._logits_width} experts")
        batch = self._send(*self._nothing, [numpy.empty(0, numpy.uint8)] if self._logits else ()).receive()
        received.append(batch)
        rows = _GroupedRows(batch, self._dispatcher.local_experts)
        context = AFDTransferContext(
            AFDTransferMetadata(layer_idx, ubatch_idx, rows.sources[:self.attn_size].tolist()),
            PeerbusTransferState(like(batch.rows, rows.group_list),
                                 None if batch.scales is None else rows.of(batch.scales), rows))
        logits = None
        if self._logits:
            kind = _LOGITS[self._logits]
            bits = numpy.ascontiguousarray(rows.of(batch.attachments[0])[:, :self._logits_bytes])
            logits = view_like(batch.rows, bits.view(f"u{kind[1] // 8}" if kind[0] == 4 else "f4"), kind)
        return AFDA2FTransferPayload(rows.of(batch.rows), context, logits)

    def send_ffn_output(self, ffn_output, context, **_):
        """FFN ranks: sends the outputs of the rows of `context`, [N, H] bfloat16, unweighted. Waits for no
        rank."""
        self._require("send_ffn_output", True)
        rows = context.states.rows
        if rows.batch not in self._received or rows.batch.stage != "received":
            raise RuntimeError("send_ffn_output was given a context whose outputs were sent, or of a connector "
                               "that is closed, expected one of recv_attn_output, once")
        try:
            rows.place(ffn_output)
        except Exception as problem:
            rows.batch.refuse_combine(problem)
            raise
        rows.batch.send_back()


def register():
    """Lets the plug-in know the connector: `--additional-config '{"afd": {"connector":
    "PeerbusAFDConnector", ...}}'`."""
    from afd_plugin import config
    from afd_plugin.connectors.factory import AFDConnectorFactory
    if "PeerbusAFDConnector" not in config.SUPPORTED_AFD_CONNECTORS:
        config.SUPPORTED_AFD_CONNECTORS += ("PeerbusAFDConnector",)
    AFDConnectorFactory.register_connector("PeerbusAFDConnector", __name__, "PeerbusAFDConnector", replace=True)

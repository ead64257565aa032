# SPDX-License-Identifier: MIT
"""FlashInfer's moe_ep over peerbus: a `Fleet` and its `Handle`s.

Written for flashinfer-ai/flashinfer@fb28d724 (moe_ep/core/comm, config.py, algo_knobs.py). Where
FlashInfer is not installed the classes stand alone, with the same methods. docs/engines.md.
"""

import dataclasses
import importlib.util
import sys
from typing import Any

import numpy

from .. import Communicator
from .. import _library as c
from .._tensors import like
from ._token_dispatcher import TokenDispatcher


def _is_there():
    """Returns whether FlashInfer is installed, with moe_ep."""
    return importlib.util.find_spec("flashinfer") is not None and \
        importlib.util.find_spec("flashinfer.moe_ep") is not None


if _is_there():  # One of another version may lack a name: ImportError.
    from flashinfer.moe_ep.config import CombineOutput, DispatchOutput
    from flashinfer.moe_ep.core.comm.fleet import _BACKEND_REGISTRY, Fleet as _Fleet
    from flashinfer.moe_ep.core.comm.handle import Handle as _Handle
    from flashinfer.moe_ep.errors import MoEEpRankEvictedError as _Evicted
else:
    _Fleet = _Handle = _Evicted = object
    _BACKEND_REGISTRY = {}

    @dataclasses.dataclass(frozen=True)
    class DispatchOutput:
        """What a dispatch brought: see FlashInfer's of this name."""
        expert_tensors: Any
        num_tokens: Any
        recv_topk_idx: Any = None
        recv_topk_weights: Any = None
        expert_counts: Any = None
        recv_total_counter: Any = None
        expert_scales: Any = None

    @dataclasses.dataclass(frozen=True)
    class CombineOutput:
        """The sums, [T, H]."""
        x: Any


class MoEEpRankEvictedError(c.ViewChanged, _Evicted):
    """The other ranks go on without this one."""


_CODECS = {frozenset(): "bf16", frozenset(["FP8E4M3"]): "fp8_f32",
           frozenset(["FP8E4M3", "UE8M0"]): "fp8_ue8m0"}


def _indexed(knobs):
    """Returns the knobs by the names of their classes."""
    return {type(knob).__name__: knob for knob in knobs}


class PeerbusFleet(_Fleet):
    """The memory and the ranks of handles. Collective.

    The ranks are those of `bootstrap.process_group`, by default of torch's default group, or where torch
    has none, of a launcher; `process_group` may be a `peerbus.Communicator`. Of `params`, layouts are

    - LOW_LATENCY, EXPERT_MAJOR: [L, R * B, H] and the rows of each local expert [L];
    - LOW_LATENCY, RANK_MAJOR: [R, B, H], the rows of each source rank [R], and the slots of a row;
    - HIGH_THROUGHPUT: [1, N, H], the N rows that came, and their slots.

    Slots name local experts, int64, -1 for others. `FleetAlgoKnobQuantization` takes FP8E4M3, alone or with
    UE8M0, `FleetAlgoKnobFaultTolerance` the time limit of `reconcile_active_mask`. Other knobs of a fleet
    are about queues and memory, and change nothing here.
    `num_experts` need not divide. `relay` and `same_bits` as in `peerbus.Exchange`.

    When a rank has died, calls raise `PeerDead`, and `query_fault()` is true. All living ranks then call
    `reconcile_active_mask`, and new handles work without the experts of those that are gone, whose share of
    the sums is left out. Handles from before then raise `ViewChanged`. `completed` is the number of
    combines that all ranks had completed: what comes after them is dispatched anew, by ranks that had
    completed more too.
    """

    def __init__(self, bootstrap, params, algo_knobs=(), *, relay="automatic", same_bits=False,
                 timeout=None):
        quants = getattr(_indexed(algo_knobs).get("FleetAlgoKnobQuantization"), "quants", ())
        names = frozenset(quant.name for quant in quants)
        if names not in _CODECS:
            raise NotImplementedError(f"quantization {', '.join(sorted(names))}, expected none, FP8E4M3, "
                                      "or FP8E4M3 with UE8M0")
        self.codec, self.params, self.bootstrap = _CODECS[names], params, bootstrap
        self.layout = "rank_major" if params.algorithm.name == "HIGH_THROUGHPUT" else \
            {"EXPERT_MAJOR": "padded", "RANK_MAJOR": "slots"}[params.layout.name]
        self._options = dict(same_bits=same_bits, timeout=timeout, relay=relay)
        self._reconcile_timeout = getattr(_indexed(algo_knobs).get("FleetAlgoKnobFaultTolerance"),
                                          "reconcile_timeout_s", None)
        self._dispatcher = None
        self._join()

    def _join(self):
        given = self.bootstrap.process_group
        if given is None:
            dist = getattr(sys.modules.get("torch"), "distributed", None)
            if dist is not None and dist.is_available() and dist.is_initialized():
                given = dist.group.WORLD
        comm = Communicator.of_group(given, self._options["timeout"])
        self._own_comm = None if comm is given else comm
        if (comm.rank, comm.size) != (self.bootstrap.rank, self.bootstrap.world_size):
            raise c.InvalidArgument(
                1, f"the process group has rank {comm.rank} of {comm.size}, expected that of the "
                   f"bootstrap, {self.bootstrap.rank} of {self.bootstrap.world_size}")
        self._dispatcher = TokenDispatcher(
            comm, self.params.num_experts, self.params.token_hidden_size,
            self.params.max_tokens_per_rank, **self._options)
        self.completed = 0

    @property
    def dispatcher(self):
        """The `TokenDispatcher` of the handles."""
        if self._dispatcher is None:
            raise c.InvalidArgument(1, "the PeerbusFleet was destroyed")
        return self._dispatcher

    def create_handle(self, params, algo_knobs=()):
        """Returns a `PeerbusHandle` for one dispatch and combine. Two may be under way."""
        return PeerbusHandle(self, params, algo_knobs)

    def update_topology(self, bootstrap, algo_knobs=()):
        """Collective: releases the memory, and joins the ranks of another `bootstrap`. No handle may be
        under way."""
        self.destroy()
        self.bootstrap = bootstrap
        self._join()

    @property
    def supports_fault_tolerance(self):
        """Whether the fleet can go on without ranks: if all are on one host."""
        return len(self.dispatcher.comm.near_ranks) == self.dispatcher.comm.size

    @property
    def active_mask_epoch(self):
        """The number of the view, which grows when ranks go on without others."""
        return self.dispatcher.comm.view.number

    def query_active_mask(self, out=None):
        """Returns which ranks this one sends to, int32 [world]: 1 is active, 0 is masked or gone. In `out`,
        if that is given, otherwise a tensor of torch if the program has imported it. A rank that has died
        is active until `reconcile_active_mask`. Local."""
        dispatcher, torch = self.dispatcher, sys.modules.get("torch")
        mask = numpy.zeros(dispatcher.comm.size, numpy.int32)
        mask[list(set(dispatcher.comm.view.members) - dispatcher.watch.masked)] = 1
        if out is not None and tuple(out.shape) != mask.shape:
            raise ValueError(f"out has shape {list(out.shape)}, expected {list(mask.shape)}")
        mask = mask if torch is None or isinstance(out, numpy.ndarray) else torch.from_numpy(mask)
        if out is None:
            return mask
        out[:] = mask
        return out

    def query_fault(self):
        """Returns whether a rank has died or left and the group has not gone on yet, or a call of this rank
        has failed because a rank did not answer or cannot be reached. Local."""
        return self.dispatcher.watch.is_faulty(self.dispatcher.comm)

    def set_active_mask(self, mask):
        """Sets which ranks this one sends to, [world]: 1 is active. Those that are 0 get no rows of its
        tokens, whose sums then lack their experts; they still take part in all calls. Local, from the
        next dispatch on, until `reconcile_active_mask`, after which they are gone. Raises `ValueError` if
        this rank is 0, or one that is gone is 1."""
        comm, given = self.dispatcher.comm, numpy.asarray(mask)
        if given.shape != (comm.size,) or not numpy.isin(given, (0, 1)).all():
            raise ValueError(f"mask is {given.tolist()}, expected 0 or 1 for each of {comm.size} ranks")
        self.dispatcher.watch.mask(comm, numpy.flatnonzero(given == 0).tolist())

    def reconcile_active_mask(self, timeout_s=None):
        """Collective among the living: goes on without the ranks that have died or left, and without those
        that another rank masks, and returns the mask, the same on all ranks. No other call is under way. If
        ranks are gone, the batches of handles are void. The time limit, of each wait, is by default that of
        `FleetAlgoKnobFaultTolerance`. Raises `TimedOut` if a living rank does not call, after which all
        may call again if ranks are gone, and `MoEEpRankEvictedError`, a `ViewChanged`, on a rank that the
        others go on without. Its fleet and its communicator are then destroyed. The others wait until it has
        left, which it has when whatever else it made from the communicator is destroyed too; after
        `TimedOut` they may call again. Of ranks that mask each other the lowest stays."""
        dispatcher = self.dispatcher
        limit = self._reconcile_timeout if timeout_s is None else timeout_s
        try:
            done = dispatcher.watch.continue_without_the_masked(dispatcher.comm, limit)
        except c.ViewChanged as problem:
            self.destroy()
            dispatcher.comm.destroy()
            raise MoEEpRankEvictedError(problem.code, str(problem)) from problem
        for combined in done.values():  # A fleet has one exchange, or none before its first dispatch.
            self.completed = combined
        return self.query_active_mask()

    def clear_faults(self, readmit=False):
        """Makes all ranks active that are not gone. Local. `readmit` is not supported: ranks come back by
        `peerbus.Communicator.admit`, to a new communicator, on which a fleet is made anew."""
        if readmit:
            raise c.Error(9, "clear_faults was called with readmit, which is not supported: ranks come back by "
                             "Communicator.admit")
        self.dispatcher.watch.masked = frozenset()

    def destroy(self):
        """Releases the memory. Does nothing if that has happened before."""
        for each in (self._dispatcher, self._own_comm):
            if each is not None:
                each.destroy()
        self._dispatcher = self._own_comm = None


class PeerbusHandle(_Handle):
    """One dispatch and combine. `HandleAlgoKnobTopKWeights` is required: its weights travel with the
    rows, or are applied at home by EXPERT_MAJOR. With `HandleAlgoKnobSplitOperation` the combine is
    complete after `complete`. With HIGH_THROUGHPUT, `HandleAlgoKnobNumReceivedTokens` names where the
    number of rows is written."""

    def __init__(self, fleet, params, algo_knobs=()):
        knobs = _indexed(algo_knobs)
        if "HandleAlgoKnobTopKWeights" not in knobs:
            raise ValueError("the handle has no HandleAlgoKnobTopKWeights, expected the weights of the "
                             "tokens")
        self._fleet, self._topk_ids = fleet, params.topk_ids
        self._weights = knobs["HandleAlgoKnobTopKWeights"].weights
        if hasattr(self._weights, "float"):
            self._weights = self._weights.float()  # As FlashInfer converts bfloat16.
        self._target = getattr(knobs.get("HandleAlgoKnobNumReceivedTokens"), "target", None)
        self._is_split = "HandleAlgoKnobSplitOperation" in knobs
        self._batch = None

    def dispatch_send_only(self, params):
        """Collective: sends the rows. Returns an output without tensors; `dispatch_recv_only` returns
        them."""
        if self._batch is not None:
            raise c.InvalidArgument(1, "the handle has dispatched before, expected a handle for each "
                                       "dispatch")
        fleet = self._fleet
        try:
            x, = params.x
        except Exception as problem:
            fleet.dispatcher.refuse_dispatch(fleet.layout, self._topk_ids, fleet.codec)
            raise c.InvalidArgument(1, "dispatch was not given one tensor, expected the tokens alone: the "
                                       "fleet quantizes them") from problem
        self._batch = fleet.dispatcher.send(fleet.layout, x, self._topk_ids, self._weights, fleet.codec)
        return DispatchOutput(expert_tensors=None, num_tokens=0)

    def dispatch_recv_only(self):
        """Collective: returns the rows that came. They are views of the fleet's memory, valid until the
        second next dispatch."""
        if self._batch is None:
            raise c.InvalidArgument(1, "dispatch_recv_only was called before dispatch_send_only")
        batch, layout = self._batch, self._fleet.layout
        try:
            batch.receive()
        finally:
            if batch.stage == "given up":
                self._batch = None
        rows, scales, counts, slots, target = batch.rows, batch.scales, batch.counts, {}, None
        ranks, most = self._fleet.dispatcher.comm.size, self._fleet.params.max_tokens_per_rank
        number = len(rows) if layout == "rank_major" else ranks * most
        if layout != "padded":
            ids = numpy.asarray(batch.slot_experts).astype(numpy.int64)
            slots = dict(recv_topk_idx=like(self._topk_ids, ids), recv_topk_weights=batch.slot_weights)
        if layout == "rank_major":
            rows, scales, counts = rows[None], None if scales is None else scales[None], None
            target = self._target
            if target is not None:
                target[0] = number
        return DispatchOutput(expert_tensors=rows, num_tokens=number, expert_counts=counts,
                              recv_total_counter=target, expert_scales=scales, **slots)

    def dispatch(self, params):
        """Collective: both halves. Returns a `DispatchOutput`."""
        self.dispatch_send_only(params)
        return self.dispatch_recv_only()

    def combine(self, params):
        """Collective: returns the sums of the outputs, `params.x[0]`, which has the shape of the rows
        that came. By rank they are those of a row's local experts, weighted and added."""
        if self._batch is None:
            raise c.InvalidArgument(1, "combine was called before dispatch")
        batch, out = self._batch, None
        try:
            outputs = params.x[0]
            if self._fleet.layout == "rank_major" and len(outputs.shape) == 3:
                outputs = outputs.reshape(-1, outputs.shape[2])
        except Exception as problem:
            batch.refuse_combine(problem)
        else:
            out = batch.send_back(outputs, params.out)
        if not self._is_split:
            self.complete()
        return CombineOutput(x=out)

    def complete(self):
        """Collective: completes a combine that is split. Does nothing otherwise."""
        batch = self._batch
        if batch is not None and (batch.stage == "sent back" or batch.stage == "given up" and batch.is_void):
            batch.finish()

    def destroy(self):
        """Does nothing: the memory is the fleet's."""


def register():
    """Lets `flashinfer.moe_ep` make fleets of the back end "peerbus"."""
    _BACKEND_REGISTRY["peerbus"] = PeerbusFleet

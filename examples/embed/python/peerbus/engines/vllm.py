# SPDX-License-Identifier: MIT
"""vLLM's expert parallelism over peerbus: the all-to-all manager and the modular prepare / finalize.

Written for vllm-project/vllm@003d383e (modular_kernel.py, all2all.py) and the registry of pull request
#50556. Where vLLM is not installed the classes stand alone, with the same methods. docs/engines.md.
"""

import collections
import dataclasses
import enum
import importlib.util
import os
import sys
import threading

import numpy

from .. import _library as c
from .. import Communicator
from .._bf16 import from_bf16, to_bf16
from .._tensors import is_torch, like
from ._token_dispatcher import Once, TokenDispatcher, Watch

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

_HANDLE = ("max_num_tokens_per_dp_rank", "token_hidden_size", "num_ep_ranks", "num_global_experts",
           "num_local_experts")


def is_batch_invariant():
    """Returns whether vLLM was asked for results that do not depend on the batch
    (VLLM_BATCH_INVARIANT)."""
    return os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0")


class All2AllManager(All2AllManagerBase):
    """The all-to-all manager of an expert-parallel group.

    `cpu_group` is the group's process group of torch, of any hosts, or a `peerbus.Communicator`.
    Collective. `dispatch` and `combine` move all tokens to all ranks, as vLLM's default does;
    prepare / finalize, which gets its memory by `get_handle`, moves a token to the ranks of its
    experts only. `relay` and `same_bits` as in `peerbus.Exchange`, for the latter.
    """

    def __init__(self, cpu_group, tcp_store_group=None, *, relay="automatic", same_bits=None,
                 timeout=None):
        if All2AllManagerBase is object:
            self.cpu_group, self.tcp_store_group = cpu_group, tcp_store_group
            self.dp_group = self.tp_group = None
        else:
            super().__init__(cpu_group, tcp_store_group)
        self.comm = Communicator.of_group(cpu_group, timeout)
        self._is_own = self.comm is not cpu_group
        self.rank, self.world_size = self.comm.rank, self.comm.size
        self.internode = len(self.comm.near_ranks) < self.world_size
        self._relay, self._timeout = relay, timeout
        self._same_bits = is_batch_invariant() if same_bits is None else same_bits
        self._handles, self._dp_comm = {}, None
        # (communicator, counts) of dispatches that are not yet combined. Far more than are under way.
        self._gathered = collections.deque(maxlen=8)
        self._watch = Watch()

    # --- all tokens to all ranks ---

    def _group(self, is_sequence_parallel):
        """Returns the communicator of the ranks whose tokens differ: all, or without sequence
        parallelism those of the data-parallel group."""
        group = self.dp_group
        if is_sequence_parallel or group is None or group.world_size == self.world_size:
            return self.comm
        if self._dp_comm is None:
            self._dp_comm = Communicator.of_group(group.cpu_group, self._timeout)
        return self._dp_comm

    def _counts(self, comm, tensors):
        """Returns the rows of each rank. Refuses on all ranks if the tensors of one differ in theirs."""
        shapes = [tuple(getattr(tensor, "shape", ())) for tensor in tensors]
        rows = {shape[0] if shape else -1 for shape in shapes}
        own = rows.pop() if len(rows) == 1 else -1
        counts = comm.all_gather(numpy.array([own], numpy.int64))[:, 0]
        if own < 0:
            raise c.InvalidArgument(1, f"the tensors have shapes {', '.join(map(str, shapes))}, expected "
                                       "one number of rows")
        if counts.min() < 0:
            raise c.Refused(8, f"rank {int(counts.argmin())} gave tensors of different numbers of rows")
        return counts.tolist()

    def _all_gather(self, tensors, is_sequence_parallel):
        comm = self._group(is_sequence_parallel)
        with self._watch:
            counts = self._counts(comm, tensors)
            gathered = [comm.all_gather_v(tensor, counts) for tensor in tensors]
        self._gathered.append((comm, counts))
        return gathered

    def dispatch_router_logits(self, hidden_states, router_logits, is_sequence_parallel=False,
                               extra_tensors=None):
        """Collective: returns (hidden_states, router_logits[, extra_tensors]) of all ranks, one rank's
        rows after another's."""
        tensors = self._all_gather([hidden_states, router_logits, *(extra_tensors or ())],
                                   is_sequence_parallel)
        return (*tensors[:2], tensors[2:]) if extra_tensors is not None else tuple(tensors)

    def dispatch(self, hidden_states, topk_weights, topk_ids, is_sequence_parallel=False,
                 extra_tensors=None):
        """Collective: returns (hidden_states, topk_weights, topk_ids[, extra_tensors]) of all ranks, one
        rank's rows after another's."""
        tensors = self._all_gather([hidden_states, topk_weights, topk_ids, *(extra_tensors or ())],
                                   is_sequence_parallel)
        return (*tensors[:3], tensors[3:]) if extra_tensors is not None else tuple(tensors)

    def combine(self, hidden_states, is_sequence_parallel=False):
        """Collective: returns this rank's rows of the sum of all ranks' `hidden_states`, in float32 in
        the order of ranks, rounded once. Its rows are those of the oldest dispatch of the same ranks that
        brought as many and was not combined; older ones are given up."""
        comm = self._group(is_sequence_parallel)
        rows = tuple(getattr(hidden_states, "shape", ()))[:1]
        for place, (of, counts) in enumerate(self._gathered):
            if of is comm and rows == (sum(counts),):
                break
        else:
            known = [sum(counts) for of, counts in self._gathered if of is comm]
            self._refuse(comm)
            raise c.InvalidArgument(1, f"combine was given {rows[0] if rows else 'no'} rows, expected those "
                                       f"of a dispatch before it: {', '.join(map(str, known)) or 'none'}")
        with self._watch:
            total = comm.reduce_scatter_v(hidden_states, counts)
        for _ in range(place + 1):
            self._gathered.popleft()
        return total

    @staticmethod
    def _refuse(comm):
        """Collective: makes the collective operation that the other ranks call fail there."""
        try:
            comm.reduce_scatter_v(None, [0] * comm.size)
        except (c.Error, TypeError):
            pass

    def all_gatherv(self, input_, dim=0, sizes=None):
        """Collective: returns a tensor, or each of a list of tensors, of all ranks, joined along
        dimension `dim`. `sizes` are the ranks' extents there, by default all equal."""
        if isinstance(input_, (list, tuple)):
            return [self.all_gatherv(tensor, dim, sizes) for tensor in input_]
        x = self._moved(input_, dim)
        with self._watch:
            return _moved(self.comm.all_gather_v(x, sizes or [len(x)] * self.world_size), 0, dim)

    def reduce_scatterv(self, input_, dim=-1, sizes=None):
        """Collective: returns this rank's part of the sum of all ranks' tensors, cut along dimension
        `dim` into parts of `sizes`, by default equal ones."""
        x = self._moved(input_, dim)
        with self._watch:
            equal = [len(x) // self.world_size] * self.world_size  # The call refuses a remainder.
            return _moved(self.comm.reduce_scatter_v(x, sizes or equal), 0, dim)

    def _moved(self, x, dim):
        try:
            return _moved(x, dim, 0)
        except Exception:
            self._refuse(self.comm)
            raise

    # --- memory of prepare / finalize ---

    def get_handle(self, kwargs):
        """Returns the `TokenDispatcher` for a size, the same one for the same five numbers, which are
        equal on all ranks."""
        if sorted(kwargs) != sorted(_HANDLE):
            raise TypeError(f"get_handle was given {', '.join(sorted(kwargs)) or 'nothing'}, expected "
                            f"{', '.join(_HANDLE)}")
        key = tuple(int(kwargs[name]) for name in _HANDLE)
        if key in self._handles:
            return self._handles[key]
        most, hidden, ranks, experts, local = key
        made = TokenDispatcher(self.comm, experts, hidden, most, relay=self._relay,
                               same_bits=self._same_bits, timeout=self._timeout,
                               watch=self._watch)
        if ranks != self.world_size or local not in (experts // ranks, made.local_experts):
            raise c.InvalidArgument(
                1, f"num_ep_ranks is {ranks} and num_local_experts {local}, expected "
                   f"{self.world_size} and {made.local_experts} of {experts} experts")
        self._handles[key] = made
        return made

    # --- state ---

    def query_fault(self):
        """Returns whether a call of this rank has failed because a rank died, did not answer or cannot be
        reached, after which calls of the same ranks raise `Poisoned`. A bool of the engine's kind of
        tensor."""
        failed = self._watch.fault is not None
        torch = sys.modules.get("torch")
        return numpy.bool_(failed) if torch is None else torch.tensor(failed)

    def set_num_sms(self, num_sms):
        """Does nothing: there are no SMs here."""

    def max_sms_used(self):
        """Returns 0."""
        return 0

    def clean_buffers(self):
        """Does nothing: memory needs no cleaning."""

    def commit_staged_state(self):
        """Does nothing: no state is staged."""

    def destroy(self):
        """Releases the handles, and the communicator unless it was given."""
        for handle in self._handles.values():
            handle.destroy()
        self._handles.clear()
        for comm in (self._dp_comm, self.comm if self._is_own else None):
            if comm is not None:
                comm.destroy()
        self._dp_comm = None


def _moved(x, source, target):
    """Returns a tensor with another order of dimensions."""
    return sys.modules["torch"].movedim(x, source, target) if is_torch(x) else \
        numpy.moveaxis(x, source, target)


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
    those that `prepare` returned or was given; of batches that nobody finalizes the memory is taken again.
    What `prepare` returns is valid until the second next batch. All ranks make calls in the same order.
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
        return FusedMoEActivationFormat.BatchedExperts if self._batched else \
            FusedMoEActivationFormat.Standard

    def topk_indices_dtype(self):
        """Returns None: int32 and int64 are taken."""
        return None

    def max_num_tokens_per_rank(self):
        return self._dispatcher.max_tokens

    def num_dispatchers(self):
        return self._dispatcher.comm.size

    def output_is_reduced(self):
        return True

    def supports_async(self):
        return True

    def supports_deferred_moe_finalize(self):
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
            self._dispatcher.refuse(self._layout, topk_ids, codec)
            raise
        batch = self._dispatcher.send(self._layout, a1, places, weights, codec)
        batch.ids, waiting = topk_ids, self._waiting()
        waiting.append(batch)

        def receive():
            try:
                batch.receive()
            except c.Refused:
                waiting.remove(batch)
                raise
        hook = Once(receive)

        def receiver():
            hook()
            return self._prepared(batch, topk_ids)
        return hook, Once(receiver)

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
        if batch is None:  # Copies of what prepare returned, or None.
            batch = waiting[0] if waiting else None
        if batch is None or batch.stage != "received":
            raise c.InvalidArgument(
                1, "finalize was called " + ("before prepare" if batch is None else
                                             f"on a batch that is {batch.stage}, expected the receiver "
                                             "of prepare_async before it"))
        weights = topk_weights if self._batched and not apply_router_weight_on_input else None
        try:
            if self._layout == "rank_major":
                fused_expert_output = self._reduced(batch, fused_expert_output, topk_weights, topk_ids,
                                                    apply_router_weight_on_input,
                                                    weight_and_reduce_impl)
            elif self._layout == "compact":  # One slot for each row, weighted at home.
                fused_expert_output = fused_expert_output.reshape(tuple(batch.outputs.shape))
        except Exception as problem:
            batch.refuse(problem)
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
        finish = Once(finish)
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


# --- choosing it ---

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

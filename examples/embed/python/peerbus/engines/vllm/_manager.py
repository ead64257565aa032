# SPDX-License-Identifier: MIT
"""The all-to-all manager of an expert-parallel group."""

import collections
import os
import sys
import threading

import numpy

from ... import Communicator
from ... import _library as c
from ..._tensors import is_torch
from .._token_dispatcher import TokenDispatcher, Watch
from ._framework import All2AllManagerBase

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
        self._own = []  # Communicators that were not given.
        self.comm = self._communicator(cpu_group, timeout)
        self.rank, self.world_size = self.comm.rank, self.comm.size
        self.internode = len(self.comm.near_ranks) < self.world_size
        self._relay, self._timeout = relay, timeout
        self._same_bits = is_batch_invariant() if same_bits is None else same_bits
        self._handles, self._dp_comm = {}, None
        # The counts of dispatches that are not yet combined, by thread and communicator: more than are
        # under way.
        self._gathered = collections.defaultdict(lambda: collections.deque(maxlen=8))
        self._watch = Watch()

    def _communicator(self, group, timeout):
        comm = Communicator.of_group(group, timeout)
        if comm is not group:
            self._own.append(comm)
        return comm

    # --- all tokens to all ranks ---

    def _group(self, is_sequence_parallel):
        """Returns the communicator of the ranks whose tokens differ: all, or without sequence
        parallelism those of the data-parallel group."""
        group = self.dp_group
        if is_sequence_parallel or group is None or group.world_size == self.world_size:
            return self.comm
        if self._dp_comm is None:
            self._dp_comm = self._communicator(group.cpu_group, self._timeout)
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

    def _all_gather(self, tensors, extra_tensors, is_sequence_parallel):
        """Returns what all ranks gave, as a tuple, and behind it the list of the extra tensors, if they
        were given."""
        comm, own = self._group(is_sequence_parallel), [*tensors, *(extra_tensors or ())]
        with self._watch:
            counts = self._counts(comm, own)
            gathered = [comm.all_gather_v(tensor, counts) for tensor in own]
        self._gathered[threading.get_ident(), comm].append(counts)
        extra = () if extra_tensors is None else (gathered[len(tensors):],)
        return (*gathered[:len(tensors)], *extra)

    def dispatch_router_logits(self, hidden_states, router_logits, is_sequence_parallel=False,
                               extra_tensors=None):
        """Collective: returns (hidden_states, router_logits[, extra_tensors]) of all ranks, one rank's
        rows after another's."""
        return self._all_gather([hidden_states, router_logits], extra_tensors, is_sequence_parallel)

    def dispatch(self, hidden_states, topk_weights, topk_ids, is_sequence_parallel=False,
                 extra_tensors=None):
        """Collective: returns (hidden_states, topk_weights, topk_ids[, extra_tensors]) of all ranks, one
        rank's rows after another's."""
        return self._all_gather([hidden_states, topk_weights, topk_ids], extra_tensors,
                                is_sequence_parallel)

    def combine(self, hidden_states, is_sequence_parallel=False):
        """Collective: returns this rank's rows of the sum of all ranks' `hidden_states`, in float32 in
        the order of ranks, rounded once. Its rows are those of the oldest dispatch of this thread to the
        same ranks that brought as many and was not combined; older ones are forgotten, and by
        `clean_buffers` all."""
        comm = self._group(is_sequence_parallel)
        waiting = self._gathered[threading.get_ident(), comm]
        rows = tuple(getattr(hidden_states, "shape", ()))[:1]
        if rows not in [(sum(counts),) for counts in waiting]:
            self._refuse(comm)
            known = ", ".join(str(sum(counts)) for counts in waiting) or "none"
            raise c.InvalidArgument(1, f"combine was given {rows[0] if rows else 'no'} rows, expected those "
                                       f"of a dispatch before it: {known}")
        while sum(waiting[0]) != rows[0]:
            waiting.popleft()
        with self._watch:
            total = comm.reduce_scatter_v(hidden_states, waiting[0])
        waiting.popleft()
        return total

    def _refuse(self, comm):
        """Collective: makes the collective operation that the other ranks call fail there, by an operand
        that none is."""
        with self._watch:
            try:
                comm.reduce_scatter_v(None, [0] * comm.size)
            except TypeError:
                pass

    def all_gatherv(self, input_, dim=0, sizes=None):
        """Collective: returns a tensor, or each of a list of tensors, of all ranks, joined along
        dimension `dim`. `sizes` are the ranks' extents there, by default all equal."""
        if isinstance(input_, (list, tuple)):
            return [self.all_gatherv(tensor, dim, sizes) for tensor in input_]
        x = self._rows_of(input_, dim)
        with self._watch:
            return _moved(self.comm.all_gather_v(x, sizes or [len(x)] * self.world_size), 0, dim)

    def reduce_scatterv(self, input_, dim=-1, sizes=None):
        """Collective: returns this rank's part of the sum of all ranks' tensors, cut along dimension
        `dim` into parts of `sizes`, by default equal ones."""
        x = self._rows_of(input_, dim)
        with self._watch:
            equal = [len(x) // self.world_size] * self.world_size  # The call refuses a remainder.
            return _moved(self.comm.reduce_scatter_v(x, sizes or equal), 0, dim)

    def _rows_of(self, x, dim):
        """Returns `x` with dimension `dim` first. Refuses on all ranks if it has none."""
        try:
            return _moved(x, dim, 0)
        except Exception:
            self._refuse(self.comm)
            raise

    # --- memory of prepare / finalize ---

    def get_handle(self, kwargs):
        """Returns the `TokenDispatcher` for a size, the same one for the same five numbers. They are equal
        on all ranks, except for `num_local_experts` where experts do not divide."""
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
        """Returns whether a rank has died or left and the group has not gone on yet, or a call of this rank
        has failed because a rank did not answer or cannot be reached, after which calls of the same ranks
        raise `Poisoned`. A bool of the engine's kind of tensor."""
        failed = self._watch.is_faulty(self.comm)
        torch = sys.modules.get("torch")
        return numpy.bool_(failed) if torch is None else torch.tensor(failed)

    def update_mask(self, rank, masked=True):
        """Lets prepare send nothing of this rank's tokens to `rank`, whose experts their sums then lack, or
        again if not `masked`. Local, from the next batch on; `rank` still takes part in all calls. Raises
        `ValueError` if it is this rank, none of the group, or one that is gone and not `masked`."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank is {rank}, expected 0 to {self.world_size - 1}")
        gone = frozenset(range(self.world_size)).difference(self.comm.view.members)
        ranks = self._watch.masked | gone
        self._watch.mask(self.comm, ranks | {rank} if masked else ranks - {rank})

    def continue_without_the_dead(self, timeout=None):
        """Collective among the living ranks of the group, all of one host, after a call has raised
        `PeerDead`: prepare / finalize work again, without the experts of the dead. Batches that were under
        way raise `ViewChanged`, and are prepared anew. `dispatch`, `combine`, `all_gatherv` and
        `reduce_scatterv` raise it too: they need a manager over `comm.survivors()`. `timeout` and errors
        as of `Communicator.continue_without_the_dead`."""
        self._watch.continue_without_the_dead(self.comm, timeout)

    def set_num_sms(self, num_sms):
        """Does nothing: there are no SMs here."""

    def max_sms_used(self):
        """Returns 0."""
        return 0

    def clean_buffers(self):
        """Forgets dispatches that were not combined. Memory needs no cleaning."""
        self._gathered.clear()

    def commit_staged_state(self):
        """Does nothing: no state is staged."""

    def destroy(self):
        """Releases the handles, and communicators that were not given."""
        self._watch.close()
        for each in (*self._handles.values(), *self._own):
            each.destroy()
        self._handles.clear()
        self._gathered.clear()
        self._own, self._dp_comm = [], None


def _moved(x, source, target):
    """Returns a tensor with another order of dimensions."""
    return sys.modules["torch"].movedim(x, source, target) if is_torch(x) else \
        numpy.moveaxis(x, source, target)

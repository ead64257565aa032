# SPDX-License-Identifier: MIT
"""vLLM's moves of expert weights over messages of peerbus: its communicator, and the function that rearranges
the weights of all layers.

Written for vllm/distributed/eplb/eplb_communicator.py and rebalance_execute.py as of November 2026. vLLM's own
rearrangement, also the asynchronous one, takes the communicator as well.
"""

import hashlib

import numpy

from .. import Communicator, Error, InvalidArgument
from .._operands import Operand
from .._tensors import array_of, empty_like, has_gaps, require_writable

try:
    from vllm.distributed.eplb.eplb_communicator import EplbCommunicator as _Base
except ImportError:
    _Base = object


class EplbCommunicator(_Base):
    """Sends and receives the tensors of experts between the ranks of `group`: a `peerbus.Communicator`, a
    process group of torch.distributed, or for None the ranks that a launcher started. Collective.

    Tensors are of torch on the CPU, or of numpy. Between two ranks, transfers of one `execute` are matched by
    their expert, so that ranks may add them in any order.
    """

    needs_profile_buffer_reservation = False
    receiver_initiated = False

    def __init__(self, group=None, timeout=None):
        self.comm = Communicator.of_group(group, timeout)
        self._channels = self.comm.channels()
        self._sends, self._recvs = [], []

    def add_send(self, tensors, dst_rank, expert_id=0):
        """Notes that the next `execute` sends the tensors of an expert to `dst_rank`. Older versions of vLLM
        pass one tensor, without its expert. The tensors are neither written nor freed until then."""
        self._sends.append((dst_rank, expert_id, _listed(tensors)))

    def add_recv(self, tensors, src_rank, expert_id=0):
        """Notes that the next `execute` fills tensors, which have no gaps, with those of an expert from
        `src_rank`."""
        self._recvs.append((src_rank, expert_id, _listed(tensors)))

    def execute(self, old_indices=None):
        """Makes the transfers that were added. The sources may then be written, and the targets are filled. A
        rank to which nothing was added need not call."""
        sends, recvs = ([(tensor, peer) for peer, _, tensors in sorted(added, key=lambda each: each[:2])
                         for tensor in tensors] for added in (self._sends, self._recvs))
        self._sends, self._recvs = [], []
        if sends or recvs:
            self._channels.batch_send_recv(sends, recvs)

    def set_transfer_context(self, old_indices, layer_idx, perf_context=None):
        """Does nothing: transfers are those that both ends add."""

    def set_stream(self, cuda_stream):
        """Does nothing: tensors are on the CPU."""


def _listed(tensors):
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def create_eplb_communicator(group_coordinator, backend=None, expert_weights=()):
    """Returns an `EplbCommunicator` of the `cpu_group` of vLLM's coordinator, for any backend. Collective."""
    return EplbCommunicator(group_coordinator.cpu_group)


def rearrange_expert_weights_inplace(old_global_expert_indices, new_global_expert_indices, expert_weights,
                                     expert_buffer=None, ep_group=None, communicator=None, is_profile=False,
                                     rank_mapping=None, enable_migration_batching=False):
    """Moves the weights of experts to the places of another map, in place. Collective. No batch is under way.

    The indices are the experts of places, [layers, physical experts], the same on all ranks: before, and as
    wanted; -1 is a vacant place, whose rows stay as they are. `expert_weights` are the tensors of each layer,
    [local experts, ...], and `expert_buffer` is memory for those of one layer, which is otherwise allocated.
    `communicator` is an `EplbCommunicator`; without one, the call makes one of `ep_group`. `rank_mapping`
    tells for each rank before a change of their number its rank afterwards, or -1. With `is_profile` nothing
    happens. Transfers are made at once, also with `enable_migration_batching`.

    If arguments are wrong on a rank, or tables or tensors differ between ranks, all ranks raise and nothing is
    written, except that a `communicator` of another kind is refused on its rank alone. If a rank dies
    meanwhile, the others raise; some layers have the new map then, and one may have neither. `ExpertWeights`
    moves so that the old map stands until all is there."""
    if is_profile:
        return
    if communicator is None:
        communicator = EplbCommunicator(ep_group)
    elif not isinstance(communicator, EplbCommunicator):
        raise TypeError(f"communicator is {type(communicator).__name__}, expected an EplbCommunicator")
    try:
        moves = _Moves(communicator.comm, old_global_expert_indices, new_global_expert_indices, rank_mapping,
                       expert_weights, expert_buffer)
    except Exception:
        _gather(communicator.comm, bytes(33))
        raise
    _agree(communicator.comm, moves)
    for layer in range(len(moves.old)):
        moves.carry_out(layer, communicator)


class _Moves:
    """The tables [layers, ranks, places of a rank] and tensors of a rearrangement. Raises if they are wrong."""

    def __init__(self, comm, old, new, rank_mapping, expert_weights, expert_buffer):
        old = array_of(old, numpy.int64, "old_global_expert_indices", 2)
        new = array_of(new, numpy.int64, "new_global_expert_indices", 2)
        if rank_mapping is not None:
            old, new = _mapped(old, new, rank_mapping, comm.size)
        self.weights = [list(tensors) for tensors in expert_weights]
        if old.shape != new.shape or len(old) != len(self.weights):
            raise InvalidArgument(1, f"old_global_expert_indices is {list(old.shape)}, new_global_expert_indices "
                                     f"{list(new.shape)} and expert_weights has {len(self.weights)} entries, "
                                     "expected [layers, physical experts] twice and layers")
        for layer, tensors in enumerate(self.weights):
            for tensor in tensors:
                if comm.size * tensor.shape[0] != old.shape[1]:
                    raise InvalidArgument(1, f"a tensor of layer {layer} has {tensor.shape[0]} rows on {comm.size} "
                                             f"ranks, expected {old.shape[1]} physical experts in all")
        self.rank = comm.rank
        self.old, self.new = (table.reshape(len(table), comm.size, -1) for table in (old, new))
        for layer, (before, after) in enumerate(zip(self.old, self.new)):
            missing = numpy.setdiff1d(after[after >= 0], before)
            if len(missing):
                raise InvalidArgument(1, f"expert {missing[0]} of layer {layer} is at no place of "
                                         "old_global_expert_indices, expected it at one to be moved")
        first = self.weights[0] if self.weights else []
        self.buffer = [empty_like(tensor, tensor.shape) for tensor in first] if expert_buffer is None else list(
            expert_buffer)
        expected = [_kind(tensor) for tensor in self.buffer]
        for layer, tensors in enumerate(self.weights):
            for tensor in (*tensors, *self.buffer):
                view = Operand(tensor, "expert_weights")
                require_writable(view, "expert_weights or expert_buffer")
                if has_gaps(view.tensor):
                    raise InvalidArgument(1, f"a tensor of layer {layer} or of expert_buffer has gaps, expected "
                                             "contiguous ones")
            if [_kind(tensor) for tensor in tensors] != expected:
                raise InvalidArgument(1, f"the tensors of layer {layer} are {[_kind(each) for each in tensors]}, "
                                         f"expected those of the buffer, {expected}")

    def digest(self):
        """Returns bytes that are equal on ranks that can carry out the same moves."""
        kinds = str([_kind(tensor) for tensor in self.buffer])
        return hashlib.sha256(self.old.tobytes() + self.new.tobytes() + kinds.encode()).digest()

    def carry_out(self, layer, communicator):
        """Moves the experts of a layer: into the buffer first, so that rows are read before they are written."""
        old, new, weights = self.old[layer], self.new[layer], self.weights[layer]
        own, wanted = old[self.rank].tolist(), new[self.rank].tolist()
        changed = [row for row, expert in enumerate(wanted) if expert not in (-1, own[row])]
        came = {wanted[row]: row for row in changed}  # An expert comes to one of its rows.
        communicator.set_transfer_context(old.reshape(-1), layer)
        for expert, source, target in _transfers(old, new):
            if source == self.rank:
                communicator.add_send(_rows(weights, own.index(expert)), target, expert)
            elif target == self.rank:
                communicator.add_recv(_rows(self.buffer, came[expert]), source, expert)
        communicator.execute()
        for expert, row in came.items():
            if expert in own:
                for tensor, buffer in zip(weights, self.buffer):
                    buffer[row] = tensor[own.index(expert)]
        for row in changed:
            for tensor, buffer in zip(weights, self.buffer):
                tensor[row] = buffer[came[wanted[row]]]


def _rows(tensors, row):
    """Returns views of a row of each tensor."""
    return [tensor[row:row + 1] for tensor in tensors]


def _kind(tensor):
    return str(tensor.dtype), tuple(tensor.shape)


def _transfers(old, new):
    """Yields (expert, source, target) for each expert that a rank wants and does not hold, by tables [ranks,
    places of a rank]. The ranks that hold an expert take turns."""
    for expert in numpy.unique(new[new >= 0]).tolist():
        holds, wants = ((table == expert).any(1) for table in (old, new))
        holders = holds.nonzero()[0].tolist()
        for i, target in enumerate((wants & ~holds).nonzero()[0].tolist()):
            yield expert, holders[(expert + i) % len(holders)], target


def _mapped(old, new, rank_mapping, ranks):
    """Returns both tables for `ranks` ranks: the new one by former ranks if some leave, otherwise the old one by
    new ranks. Places of other ranks are vacant."""
    kept = {before: after for before, after in rank_mapping.items() if after >= 0}
    if len(rank_mapping) == ranks:
        return old, _spread(new, {after: before for before, after in kept.items()}, len(kept), ranks)
    return _spread(old, kept, len(rank_mapping), ranks), new


def _spread(table, rank_of, before, after):
    """Returns a table of `before` ranks as one of `after`, in which rank r is `rank_of[r]`."""
    by_rank = table.reshape(len(table), before, -1)
    made = numpy.full((len(table), after, by_rank.shape[2]), -1, numpy.int64)
    for source, target in rank_of.items():
        made[:, target] = by_rank[:, source]
    return made.reshape(len(table), -1)


def _gather(comm, told):
    """Returns what all ranks tell: 1 and the digest of their moves, or zeros if they have none."""
    return comm.all_gather(numpy.frombuffer(told, numpy.uint8)).tolist()


def _agree(comm, moves):
    """Raises if another rank could not use its arguments, or if its moves differ."""
    own = moves.digest()
    for rank, (is_good, *digest) in enumerate(_gather(comm, b"\1" + own)):
        if not is_good:
            raise InvalidArgument(1, f"rearrange_expert_weights_inplace: rank {rank} could not use its arguments, "
                                     "and says why")
        if digest != list(own):
            raise Error(3, f"rearrange_expert_weights_inplace: the indices or tensors of rank {rank} differ from "
                           f"those of rank {comm.rank}, expected the same on all ranks")

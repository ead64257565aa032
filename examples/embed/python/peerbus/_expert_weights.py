# SPDX-License-Identifier: MIT
"""The weights of experts, and their moves to other ranks while exchanges go on."""

import contextlib
import ctypes
import math
import operator

import numpy

from . import _library as c
from ._exchange import Exchange
from ._experts import REPLICA_POLICIES, address_of, map_of, structure_of
from ._library import InvalidArgument
from ._tensors import view_of


class ExpertWeights(c.Object):
    """The tensors of the experts of an exchange, in memory from which they move to other ranks while
    batches go on. Collective, with equal arguments on all ranks. The content is zero.

    `tensors` has an entry for each tensor of an expert, such as weights and their scales: (dtype, shape), or
    a number of bytes. All tensors of an expert move together. `spare` is the number of experts that a rank can
    take in before it gives up others, each of which takes the memory of an expert; with more, moves take fewer
    rounds. `slice_bytes` are the most bytes of one put. If one of these is bad on a rank, all raise; something
    else than an exchange, or a bad `timeout`, is refused on this rank alone.

        weights.begin(physical_to_logical)  # then, while serving:
        weights.advance(1 << 20)            # after each batch
        weights.commit(exchange)            # on all ranks after the same batch

    docs/balancing.md explains rounds and what is guaranteed.
    """

    def __init__(self, comm, exchange, tensors, spare=1, slice_bytes=256 << 10, timeout=None):
        _require_exchange(exchange)
        limit, shape = c.nanoseconds(timeout), c.ExpertTensors()

        def make():
            return c.make("expert weights", c.lib.peerbus_expert_weights_create, comm, exchange,
                          ctypes.byref(shape), limit)
        try:
            self._types = [_type_of(tensor) for tensor in tensors]
            sizes = numpy.array([c.number(dtype.itemsize * math.prod(shape), "tensors")
                                 for dtype, shape in self._types], numpy.uint64)
            for name, value in (("spare", spare), ("slice_bytes", slice_bytes)):
                if c.number(value, name) == 0:
                    raise InvalidArgument(1, f"{name} is 0, expected 1 or more")
            shape.tensors, shape.bytes = len(sizes), address_of(sizes)
            shape.spare, shape.slice = spare, slice_bytes
        except Exception:
            with contextlib.suppress(c.Error):
                make()  # Without tensors, which all ranks refuse, so that no rank waits for this one.
            raise
        self._places = exchange.physical_experts
        super().__init__("expert_weights", make())

    def tensor(self, expert, i):
        """Returns tensor `i` of the local expert `expert`, one of this rank's places from 0 on, as an array of
        numpy over the memory. Valid until a `commit` has given another expert that place. From `begin` to
        the end of the moves it is only read. Not collective."""
        address = ctypes.c_void_p()
        c.check(c.lib.peerbus_expert_weights_tensor(self, c.number(expert, "expert"), c.number(i, "i"),
                                                    ctypes.byref(address)))
        return view_of(address.value, *self._types[i], self)

    @property
    def physical_to_logical(self):
        """The expert at each place now, or `VACANT`: uint32 [physical experts]."""
        table = numpy.empty(self._places, numpy.uint32)
        c.check(c.lib.peerbus_expert_weights_experts(
            self, table.ctypes.data_as(ctypes.POINTER(ctypes.c_uint32)), len(table)))
        return table

    def begin(self, physical_to_logical, timeout=None):
        """Collective: begins to move the experts to the places of a table, that of
        `Exchange.install_experts`, and returns the number of rounds, 0 if each rank has its experts already.
        An expert that stays at its rank keeps its place. Ranks that are gone give and get nothing. If the table
        is impossible on a rank, if tables differ, or if moves are under way, all ranks raise `Error`, mostly
        `InvalidArgument`, and nothing has begun."""
        limit, rounds = 0, ctypes.c_uint64()
        try:
            limit = c.nanoseconds(timeout)
            table = map_of(physical_to_logical)
        except Exception:
            c.check_refusal(c.lib.peerbus_expert_weights_begin(self, None, 0, limit, None))
            raise
        c.check(c.lib.peerbus_expert_weights_begin(self, address_of(table), len(table), limit,
                                                   ctypes.byref(rounds)))
        return rounds.value

    def advance(self, nbytes):
        """Sends up to `nbytes` bytes of the round that is under way. Returns whether this rank has sent all of
        it. Not collective."""
        all_sent = ctypes.c_int32()
        c.check(c.lib.peerbus_expert_weights_advance(self, c.number(nbytes, "nbytes"),
                                                     ctypes.byref(all_sent)))
        return all_sent.value == 1

    def commit(self, *exchanges, replicas=None):
        """Collective: ends the round if all ranks have received their experts. Gives each of `exchanges` the
        new map with `replicas`, as `Exchange.install_experts` does, and lets `tensor` return the new experts.
        Returns whether all rounds have ended, the same on all ranks. All batches of the exchanges are
        combined. If `replicas` is None, each exchange chooses as the first did before.

        If an expert came damaged, if a batch is not combined, or if `replicas` is bad on a rank, all ranks
        raise `Error`, and the experts stay where they are. After a damaged expert, `abandon` the moves. Of several
        exchanges some may have the new map then: give them that of `physical_to_logical` again, by
        `install_experts`.
        Arguments that are no exchanges are refused on this rank alone, before anything else."""
        for exchange in exchanges:
            _require_exchange(exchange)
        handles = (ctypes.c_void_p * len(exchanges))(*[each._as_parameter_ for each in exchanges])
        is_over = ctypes.c_int32()

        def call(structure):
            return c.lib.peerbus_expert_weights_commit(self, handles, len(handles), ctypes.byref(structure),
                                                       ctypes.byref(is_over))
        if not exchanges:
            c.check(call(c.ReplicaChoice()))  # Which says what is expected.
        try:
            first = exchanges[0]
            choice = first._choice_for_new_places(replicas)
            structure = structure_of(choice, self._places, first.experts, first._size)
        except Exception:
            c.check_refusal(call(c.ReplicaChoice(policy=len(REPLICA_POLICIES))))
            raise
        before = self.physical_to_logical
        c.check(call(structure))
        if not numpy.array_equal(before, self.physical_to_logical):  # Otherwise nothing was installed.
            for exchange in exchanges:
                exchange._choice = choice
        return is_over.value == 1

    @property
    def is_moving(self):
        """Whether a round is under way."""
        return c.lib.peerbus_expert_weights_is_moving(self.alive()) == 1

    def abandon(self, timeout=None):
        """Drops the round that is under way and those after it. The experts stay where they were before the
        round. Collective among the ranks of the view, also those where no round is under way, and also after
        `continue_without_the_dead` and the `resume` of exchanges."""
        c.check(c.lib.peerbus_expert_weights_abandon(self, c.nanoseconds(timeout)))


def _require_exchange(exchange):
    if not isinstance(exchange, Exchange):
        raise TypeError(f"exchange is {type(exchange).__name__}, expected a peerbus.Exchange")


def _type_of(tensor):
    """Returns the type of numpy and the shape of an entry of `tensors`."""
    try:
        dtype, shape = numpy.uint8, (operator.index(tensor),)
    except TypeError:
        dtype, shape = tensor
    dtype, shape = numpy.dtype(dtype), tuple(c.number(extent, "tensors") for extent in shape)
    if dtype.hasobject:
        raise TypeError(f"tensors has {dtype}, expected types of numbers")
    return dtype, shape

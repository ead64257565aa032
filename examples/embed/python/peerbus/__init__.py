# SPDX-License-Identifier: MIT
"""peerbus for Python: communicators, windows, exchanges and collectives over libpeerbus.so.

Processes are the ranks, on one host or several. torchrun, mpirun, srun or a script starts them, and
`Communicator()` joins them by the launcher's variables. docs/python.md explains the rest.

Errors are exceptions (`Error` and its subclasses) with the same texts as in C++. A call releases the
GIL, and Ctrl-C ends a call that waits (a put or a barrier between hosts may first wait until a peer
takes what was put); except in `Window.wait`, the communicator is then unusable.
In a child process by fork, calls of the parent's objects raise `InvalidArgument`.
"""

import ctypes
import operator
import os
import typing
import weakref

import numpy

from . import _library as c
from ._library import (ANY_RANK, CODECS, RELAYS, RELAY_SUMS, TRANSPORTS, Error, InvalidArgument,
                       OutOfMemory, PeerDead, Poisoned, Refused, TimedOut, Unreachable, ViewChanged)
from ._bf16 import from_bf16, to_bf16
from ._channels import Channels
from ._collective import ALGORITHMS, Collectives, Team
from ._exchange import LAYOUTS, LOST, Completed, CountedRows, Exchange, PendingBatch, Received
from ._expert_weights import ExpertWeights
from ._experts import REPLICA_POLICIES, VACANT, ReplicaChoice
from ._meeting import Meeting, all_gather_of, await_group, own_address
from ._operands import REDUCTIONS
from ._pending import Pending
from ._tensors import view_of

__all__ = ["ALGORITHMS", "ANY_RANK", "CODECS", "Channels", "Collectives", "Communicator",
           "Completed", "CountedRows", "Error", "Exchange", "ExpertWeights", "InvalidArgument",
           "LAYOUTS", "LOST", "LastSeen", "OutOfMemory", "PeerDead", "Pending", "PendingBatch",
           "Poisoned", "REDUCTIONS", "RELAYS", "RELAY_SUMS", "REPLICA_POLICIES", "Received",
           "Refused", "ReplicaChoice", "TRANSPORTS", "Team", "TimedOut", "Unreachable", "VACANT", "View",
           "ViewChanged", "Window", "from_bf16", "launched", "permit_private_reads", "to_bf16"]


def launched():
    """Returns whether a launcher has started this process as a rank."""
    return c.lib.peerbus_launched() == 1


def permit_private_reads():
    """Lets all processes of this user read the private memory of this one, where Yama restricts that
    (ptrace_scope 1, as on Ubuntu), so that large operands are copied once instead of twice. They may
    trace it in other ways too. Before the communicator is made. Returns whether the kernel knows
    such a restriction."""
    return c.lib.peerbus_permit_private_reads() == 1


def _refuse_unused(how, **given):
    """Raises if an argument is given that a communicator has no use for."""
    for name, value in given.items():
        if value is not None:
            raise TypeError(f"{name} was given, expected nothing {how}")


class View(typing.NamedTuple):
    """Who takes part in operations: the number of the view, 0 while no rank is gone, and the ranks in
    ascending order. Ranks keep their numbers."""

    number: int
    members: tuple


class LastSeen(typing.NamedTuple):
    """What a rank was last seen doing: its latest wait for other ranks. Seconds are exact to a few
    milliseconds. A rank is heard when it begins a wait, and every few milliseconds while that goes on."""

    operation: str  # such as "dispatch", "barrier" or "all_reduce"
    phase: str      # "counts", "rows", "outputs", "weights", or "" if the operation has none
    number: int     # of the operation, as in errors; 0 if it has none
    is_over: bool   # whether what it waited for has come
    since: float    # how many seconds ago the wait began
    heard: float    # how many seconds ago the rank was last heard


def _ranks(ranks, name):
    return (ctypes.c_uint64 * len(ranks))(*[c.number(rank, name) for rank in ranks])


class Communicator(c.Object, Collectives):
    """A group of ranks. Without arguments, the ranks are those that a launcher started.

    Collective. With `rank` and `size`, the processes of this host that pass equal `port` and `job`
    meet, and with a `secret` (16 bytes or more that nobody can guess) those of any hosts, at the
    `address` of rank 0's. With `group`, a process group of torch.distributed, its ranks meet; with
    `all_gather`, a function that gives the bytes of each rank to all and returns the list of them,
    the ranks that it connects. `host` names this rank's host, by default PEERBUS_HOST or as the kernel
    says.

    `transport` is one of `peerbus.TRANSPORTS`: by default shared memory, and between hosts
    libfabric, of which `provider` names the provider (tcp). `device` is its interface, or the RDMA
    device of verbs. `timeout` is the time limit of later calls in seconds, `meet_timeout` that of
    this one; the default of both is 30.

    With `present`, ranks in ascending order, only those of the `size` ranks are there. The others count as
    gone, and may come by `join`. With a `secret` the group has only the ranks that are there, in this order,
    and ranks that come get the slots of those that are not.

    With `trace`, the name of a file, all ranks record what they do, and rank 0 writes the file when the
    communicators are destroyed, which ui.perfetto.dev opens.
    """

    def __init__(self, rank=None, size=None, port=0, job=None, timeout=None, meet_timeout=None, *,
                 address=None, secret=None, host=None, group=None, all_gather=None,
                 transport="automatic", provider=None, device=None, present=None, trace=None):
        options = c.CommOptions(timeout_ns=c.nanoseconds(timeout),
                                meet_timeout_ns=c.nanoseconds(meet_timeout),
                                transport=c.place("transport", transport, TRANSPORTS),
                                provider=c.text(provider), device=c.text(device))
        if (rank is None) != (size is None):
            raise TypeError(f"rank is {rank} and size is {size}, expected both, or neither for the "
                            "ranks of a launcher")
        if present is not None and (rank is None or group or all_gather):
            raise TypeError("present needs a rank and a size, and neither group nor all_gather")
        unused = {"address": address, "secret": secret, "host": host, "all_gather": all_gather}
        if group is not None:
            del unused["address"], unused["host"]
            _refuse_unused("with a group", rank=rank, job=job, port=port or None, **unused)
            rank, size, gather = all_gather_of(group)
            await_group(group, meet_timeout)
            handle = Meeting(rank, size, gather, address or own_address(), host).communicator(options)
        elif rank is None:
            _refuse_unused("without a rank and a size", job=job, **unused)
            handle = c.make_by_meeting(c.lib.peerbus_comm_from_environment, ctypes.byref(options))
        elif all_gather is not None:
            _refuse_unused("with all_gather", job=job, port=port or None, secret=secret)
            handle = Meeting(rank, size, all_gather, address or own_address(),
                             host).communicator(options)
        else:
            place = c.Place(rank=rank, size=size, port=port, job=c.text(job), address=c.text(address),
                            secret=c.text(secret), host=c.text(host))
            if present is None:
                handle = c.make_by_meeting(c.lib.peerbus_comm_at, ctypes.byref(place), ctypes.byref(options))
            else:
                handle = c.make_by_meeting(c.lib.peerbus_comm_with_vacancies, ctypes.byref(place),
                                           _ranks(present, "present"), len(present), ctypes.byref(options))
        self._adopt(handle)
        if trace is not None:
            path = os.fsencode(trace)
            c.check(c.lib.peerbus_comm_start_trace(self, 0, c.nanoseconds(meet_timeout)))
            self._trace, self._traced_in = path, os.getpid()

    _trace = None
    _all = weakref.WeakSet()

    def _adopt(self, handle):
        self._own_team = None
        super().__init__("comm", handle)
        Communicator._all.add(self)
        c.let_handlers_run(self)

    @classmethod
    def _of(cls, handle):
        made = cls.__new__(cls)
        made._adopt(handle)
        return made

    @classmethod
    def of_group(cls, group=None, timeout=None):
        """Returns `group` if it is a communicator, otherwise a new one: of a process group of
        torch.distributed, or for None of the ranks that a launcher started. Making one is collective, and
        the caller destroys it."""
        if isinstance(group, cls):
            return group
        if group is not None:
            try:
                all_gather_of(group)
            except TypeError as problem:
                raise TypeError(f"{problem}, a peerbus.Communicator, or None") from None
        return cls(group=group, timeout=timeout)

    def subgroup(self, ranks, timeout=None):
        """Returns a communicator of `ranks`, which become ranks 0, 1, ... Collective over all ranks
        of this one, each with the list of its own group. Without a `timeout`, the time limit of later
        calls is that of this communicator."""
        options = c.CommOptions(timeout_ns=c.nanoseconds(timeout))
        return Communicator._of(c.make("comm", c.lib.peerbus_comm_subgroup, self, _ranks(ranks, "ranks"),
                                       len(ranks), ctypes.byref(options)))

    @property
    def rank(self):
        """The number of this process."""
        return c.lib.peerbus_comm_rank(self.alive())

    @property
    def size(self):
        """The number of ranks."""
        return c.lib.peerbus_comm_size(self.alive())

    @property
    def transport(self):
        """The name of the transport, as in `peerbus.TRANSPORTS`."""
        return c.lib.peerbus_comm_transport(self.alive()).decode()

    @property
    def near_ranks(self):
        """The ranks whose memory this one loads and stores, itself included: those of its host, unless
        the transport has requests only."""
        self.alive()
        return [rank for rank in range(self.size) if c.lib.peerbus_comm_is_near(self, rank)]

    def barrier(self, timeout=None):
        """Returns after all ranks have called it."""
        c.check(c.lib.peerbus_comm_barrier(self, c.nanoseconds(timeout)))

    @property
    def view(self):
        """The `View` of now."""
        self.alive()
        return View(c.lib.peerbus_comm_view(self),
                    tuple(rank for rank in range(self.size) if c.lib.peerbus_comm_is_member(self, rank)))

    def health(self):
        """Returns what is known of each rank now: "runs", "left" or "died", which covers failed. It
        changes by itself, and does not change who takes part."""
        self.alive()
        return [("runs", "left", "died")[c.lib.peerbus_comm_rank_state(self, rank)]
                for rank in range(self.size)]

    def last_seen(self, rank):
        """Returns the `LastSeen` of a rank; None if it has not waited for others yet, or shares no memory
        with this one, as on another host. It changes by itself, and changes no result."""
        seen = c.LastSeen()
        c.check(c.lib.peerbus_comm_last_seen(self, c.number(rank, "rank"), ctypes.byref(seen)))
        if not seen.is_known:
            return None
        return LastSeen(seen.operation.decode(), seen.phase.decode(), seen.number, bool(seen.is_over),
                        seen.since_ns / 1e9, seen.heard_ns / 1e9)

    def continue_without_the_dead(self, timeout=None):
        """Goes on without the ranks that have died or left since, and returns the new `View`. The living
        ranks call it when a call has raised `PeerDead`; it also works if more die meanwhile. No other call
        is under way. Ranks of several hosts must be a mesh (PEERBUS_MESH=1), and serve on by `survivors`
        alone. Raises `Unreachable` if so many ranks are out of reach, and may live, that too few are left.

        Afterwards the barrier, windows, and exchanges, teams and channels that are resumed
        (`Exchange.resume`, `Team.resume`, `Channels.resume`) work, new windows and exchanges can be made, and
        low-latency calls of a `deep_ep.Buffer` with `enable_shrink` go on by themselves. Other buffers,
        collectives of the communicator itself, and what is not resumed raise `ViewChanged`: make them from
        `survivors`. Raises `TimedOut` if a living rank does not call."""
        c.check(c.lib.peerbus_comm_continue(self, c.nanoseconds(timeout)))
        return self.view

    def continue_without(self, ranks, timeout=None):
        """Does as `continue_without_the_dead`, without `ranks` too, who may live, be stopped or out of reach.
        On one host their processes are ended as by `kill -9`. On several they get errors, and `ViewChanged`
        when they go on; who names one that is out of reach must know that it does not. All others call this,
        or that once a call of theirs has failed, again while it returns the view that they are in."""
        c.check(c.lib.peerbus_comm_continue_without(self, _ranks(ranks, "ranks"), len(ranks),
                                                    c.nanoseconds(timeout)))
        return self.view

    def survivors(self, timeout=None):
        """Returns a communicator of the ranks of the view, which become ranks 0, 1, ... in their order.
        Collective among them: all that live get it, or all raise. After `PeerDead` they call
        `continue_without_the_dead` and this again. `timeout` as in `subgroup`."""
        options = c.CommOptions(timeout_ns=c.nanoseconds(timeout))
        return Communicator._of(c.make("comm", c.lib.peerbus_comm_survivors, self, ctypes.byref(options)))

    @classmethod
    def join(cls, rank, size, port=0, job=None, timeout=None, meet_timeout=None, *, address=None,
             transport="automatic", secret=None, host=None):
        """Returns a communicator of a group that runs already, in which this process becomes
        `rank`, in place of one that is gone or was never there. Waits until its members `admit` it, with
        the same `port`, `job` and `address`. If they met over TCP, `secret` is theirs, `rank` is a slot,
        and `address` has the hosts where their lowest rank may be, with commas between them. Raises
        `Error` with the reason if they refuse it."""
        place = c.Place(rank=rank, size=size, port=port, job=c.text(job), address=c.text(address),
                        secret=c.text(secret), host=c.text(host))
        options = c.CommOptions(timeout_ns=c.nanoseconds(timeout), meet_timeout_ns=c.nanoseconds(meet_timeout),
                                transport=c.place("transport", transport, TRANSPORTS))
        return cls._of(c.make_by_meeting(c.lib.peerbus_comm_join, ctypes.byref(place), ctypes.byref(options)))

    def admit(self, port=0, job=None, timeout=None, *, address=None):
        """If processes wait in `join` at this place, returns a communicator of the ranks of the view and of
        them; else None. Collective among the ranks of the view, between two operations. This communicator
        stays until it is destroyed. If those who wait could not be taken in, returns None, and `refusal` is
        the reason."""
        place = c.Place(rank=self.rank, size=self.size, port=port, job=c.text(job), address=c.text(address))
        options = c.CommOptions(meet_timeout_ns=c.nanoseconds(timeout))
        handle = ctypes.c_void_p()
        c.check(c.lib.peerbus_comm_admit(self, ctypes.byref(place), ctypes.byref(options),
                                         ctypes.byref(handle)))
        return Communicator._of(handle) if handle else None

    @property
    def refusal(self):
        """Why the latest `admit` took in nobody who waited, or an empty text."""
        return c.lib.peerbus_comm_refusal(self.alive()).decode()

    def progress(self):
        """Does at once what this rank has to do for peers of other hosts: whoever gets from it, or waits
        until it takes what was put, waits until it makes a call. For ranks that wait for something else
        for long, such as another library's barrier. Raises `Unreachable` if a connection broke."""
        c.check(c.lib.peerbus_comm_progress(self))

    def window(self, nbytes, signals=0, timeout=None):
        """Collective: returns a `Window` with `nbytes` of memory and `signals` on each rank."""
        return Window(self, nbytes, signals, timeout)

    def exchange(self, **config):
        """Collective: returns an `Exchange`, which see for the arguments."""
        return Exchange(self, **config)

    def team(self, scratch_bytes=0, one_shot_bytes=0, window_bytes=0, timeout=None,
             algorithm="automatic", costs=None, may_reorder=False):
        """Collective: returns a `Team`, for collective operations of another thread or with other
        options than those of the communicator's own."""
        return Team(self, scratch_bytes, one_shot_bytes, window_bytes, timeout, algorithm, costs,
                    may_reorder)

    def channels(self, scratch_bytes=0, timeout=None):
        """Collective: returns `Channels`, through which ranks send each other arrays."""
        return Channels(self, scratch_bytes, timeout)

    def _team(self):
        if self._own_team is None:
            self._own_team = Team(self)
        return self._own_team

    def destroy(self):
        """Releases what the library holds. With a trace, writes that before, for which a rank waits for the
        others up to 10 seconds. Does nothing if that has happened before."""
        self._end(10)

    def __del__(self):
        if hasattr(self, "_destroy"):
            self._end(0)

    def __exit__(self, kind, value, traceback):
        self._end(10 if kind is None else 0)

    def _end(self, seconds):
        """Destroys the communicator. A trace of ranks that do not come within `seconds` is left to them."""
        if self._own_team is not None:
            self._own_team.destroy()
            self._own_team = None
        path, self._trace = self._trace, None
        try:
            if path is not None and os.getpid() == self._traced_in:
                code = c.lib.peerbus_comm_write_trace(self, path, c.nanoseconds(seconds))
                if seconds:
                    c.check(code)
        finally:
            super().destroy()


class Window(c.Object):
    """Memory that all ranks may write, with signals to wait for."""

    def __init__(self, comm, nbytes, signals=0, timeout=None):
        super().__init__("window", c.make("window", c.lib.peerbus_window_create, comm,
                                          c.number(nbytes, "nbytes"), c.number(signals, "signals"),
                                          c.nanoseconds(timeout)))
        self._size = comm.size

    def part(self, rank):
        """Returns the memory of `rank`, one of `Communicator.near_ranks`, as a writable uint8 array. It
        keeps the window alive. Views of
        this rank's own, such as `part(rank)[:4000].view("float32")`, are operands of the teams that
        `in_window` makes."""
        if not 0 <= rank < self._size:
            raise IndexError(f"rank {rank}, expected 0 to {self._size - 1}")
        start = c.lib.peerbus_window_part(self.alive(), rank)
        if not start:
            raise InvalidArgument(1, f"the part of rank {rank} is on another host, expected a rank of "
                                     "near_ranks; put and get reach all")
        return view_of(start, "uint8", [c.lib.peerbus_window_bytes(self.alive())], self)

    def put(self, peer, offset, source, signal=None, value=None):
        """Writes the bytes of `source` at byte `offset` of the peer's part. With `signal`, raises
        that signal there to `value` behind them."""
        memory = numpy.ascontiguousarray(source)
        if memory.dtype.hasobject:
            raise TypeError("source has Python objects, expected numbers or bytes")
        if (signal is None) != (value is None):
            raise TypeError(f"signal is {signal} and value is {value}, expected both or neither")
        peer, offset = c.number(peer, "peer"), c.number(offset, "offset")
        if signal is None:
            c.check(c.lib.peerbus_window_put(self, peer, offset, memory.ctypes.data, memory.nbytes))
        else:
            c.check(c.lib.peerbus_window_put_signal(
                self, peer, offset, memory.ctypes.data, memory.nbytes, c.number(signal, "signal"),
                c.number(value, "value")))
        c.check(c.lib.peerbus_window_flush(self, peer))  # `memory` may be a copy.

    def get(self, peer, offset, nbytes):
        """Returns `nbytes` bytes at byte `offset` of the peer's part as an uint8 array."""
        peer, offset = c.number(peer, "peer"), c.number(offset, "offset")
        target = numpy.empty(c.number(nbytes, "nbytes"), numpy.uint8)
        c.check(c.lib.peerbus_window_get(self, peer, offset, target.ctypes.data, target.nbytes))
        c.check(c.lib.peerbus_window_flush(self, peer))
        return target

    def fetch_add(self, peer, offset, addend):
        """Adds to the 64-bit word at byte `offset` of the peer's part. Returns its value before."""
        before = ctypes.c_uint64()
        peer, offset = c.number(peer, "peer"), c.number(offset, "offset")
        addend = operator.index(addend) % (1 << 64)  # A negative one subtracts.
        c.check(c.lib.peerbus_window_fetch_add(self, peer, offset, addend, ctypes.byref(before)))
        return before.value

    def signal(self, peer, signal, value):
        """Raises a signal of the peer to `value`, behind all earlier puts to that peer."""
        c.check(c.lib.peerbus_window_signal(self, c.number(peer, "peer"), c.number(signal, "signal"),
                                            c.number(value, "value")))

    def wait(self, signal, value, awaited=ANY_RANK, timeout=None):
        """Waits until this rank's own signal is at least `value`."""
        c.check(c.lib.peerbus_window_wait(self, c.number(signal, "signal"), c.number(value, "value"),
                                          c.number(awaited, "awaited"), c.nanoseconds(timeout)))

    def value(self, signal):
        """Returns the value of this rank's own signal."""
        return c.lib.peerbus_window_signal_value(self.alive(), c.number(signal, "signal"))

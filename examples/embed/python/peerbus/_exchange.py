# SPDX-License-Identifier: MIT
"""Exchanges: dispatch sends each token to the ranks of its experts, combine brings the sums home."""

import contextlib
import ctypes
import typing

import numpy

from . import _library as c
from ._experts import VACANT, address_of, choice_of, map_of, structure_of, table_of
from ._library import CODECS, RELAYS, RELAY_SUMS, InvalidArgument
from ._operands import Operand
from ._tensors import Given, array_of, contiguous, has_gaps, require_writable, view_of

LAYOUTS = ("compact", "padded", "rank_major", "slots", "expert_slots")
LOST = ("dropped", "renormalised", "refused")


class CountedRows(typing.NamedTuple):
    """The rows of each place by a dispatch, uint32 [physical experts], and whether they are those of all
    ranks. Otherwise they are those of this rank's places, and 0 elsewhere."""

    rows: numpy.ndarray
    of_all_ranks: bool


class Received:
    """The rows that a dispatch brought to this rank, as numpy arrays over memory of the exchange.

    bf16 is uint16, E4M3 is uint8. Row i of each array belongs together, gaps included. The rows of
    block b (a local expert; by rank, the rank) from source r, a rank (with relay the place of the one
    that handed on among its near ranks), are `counts[b, r]` rows from
    `first_rows[b, r]` on. The arrays keep the exchange alive, and are overwritten by the
    `in_flight`th next dispatch.
    """

    def __init__(self, exchange, raw, count):
        capacity, blocks, ranks = raw.row_capacity, raw.blocks, raw.ranks
        hidden, top_k = exchange.hidden, exchange.top_k

        def view(address, dtype, shape):
            return view_of(address, dtype, shape, exchange) if address else None

        dtype = {"bf16": "uint16", "int8_per_token": "int8"}.get(exchange.codec, "uint8")
        columns = raw.row_bytes // numpy.dtype(dtype).itemsize
        scales = "uint8" if exchange.codec == "fp8_ue8m0" else "float32"
        scale_columns = raw.scale_bytes // numpy.dtype(scales).itemsize
        self._exchange, self._count, self.ticket = exchange, count, raw.ticket
        self.rows, self.end, self.by_rank = raw.rows, raw.end, raw.by_rank
        self.expert_ids = view_of(raw.expert_ids, "uint32", [raw.experts], exchange)
        self.first_rows = view_of(raw.first_rows, "uint32", [blocks, ranks], exchange)
        self.counts = view_of(raw.counts, "uint32", [blocks, ranks], exchange)
        self.row_data = view(raw.row_data, dtype, [capacity, columns])
        self.scales = view(raw.scales, scales, [capacity, scale_columns])
        self.outputs = view(raw.outputs, "uint16", [capacity, hidden])
        self.attachments = [view(address, "uint8", [capacity, nbytes])
                            for address, nbytes in zip(raw.attachments, exchange.attachments)]
        self.origins = view(raw.origins, [("token", "u4"), ("rank", "u2"), ("slot", "u2")],
                            [capacity])
        self.slot_experts = view(raw.slot_experts, "int32", [capacity, top_k])
        self.slot_weights = view(raw.slot_weights, "float32", [capacity, top_k])

    def count_rows(self):
        """Returns the `CountedRows` of the dispatch, from which a planner learns which experts need
        replicas. In layouts compact and padded without relay they are those of all ranks; in others their sum over
        ranks is. By rank a row counts for each of its experts. Not collective. Raises `InvalidArgument`
        when the arrays are overwritten or the experts have other places."""
        rows, of_all = numpy.empty(self._exchange.physical_experts, numpy.uint32), ctypes.c_int32()
        c.check(c.lib.peerbus_exchange_count_rows(
            self._exchange, self.ticket, rows.ctypes.data_as(ctypes.POINTER(ctypes.c_uint32)), len(rows),
            ctypes.byref(of_all)))
        return CountedRows(rows, of_all.value == 1)


class PendingBatch:
    """The second half of a dispatch or a combine. The rank may compute between the halves. Until `finish`
    has returned, tokens and attachments must not change and `out` must not be accessed; the exchange
    keeps them alive. All halves are finished, with relay those of dispatches in the order in which they
    were started. Made by `Exchange.start_dispatch` and `Exchange.start_combine` only."""

    def __init__(self, started_by, finish, timeout, is_refusal=False):
        self._started_by, self._finish, self._limit = started_by, finish, c.nanoseconds(timeout)
        self.is_refusal = is_refusal  # `finish` raises what this rank has found wrong.

    @property
    def is_done(self):
        """Whether `finish` has done the rest, or failed to."""
        return self._finish is None

    def finish(self, timeout=None):
        """Does the rest of the operation, and returns or raises what the whole operation would. `timeout`
        None stands for that of the first half. A call in a wrong order, which raises `InvalidArgument`,
        counts as not made."""
        if self._finish is None:
            raise InvalidArgument(1, f"finish was called before, expected it once after each "
                                     f"{self._started_by}")
        finish, limit = self._finish, c.nanoseconds(timeout) or self._limit
        try:
            outcome = finish(limit)
        except InvalidArgument:
            raise
        except BaseException:
            self._finish = None
            raise
        self._finish = None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class Completed(typing.NamedTuple):
    """How far all ranks of a view have come with an exchange, in batches since it was made."""

    received: int
    combined: int


class Exchange(c.Object):
    """Dispatch and combine for one configuration. Collective, with equal arguments on all ranks.

    `codec` is one of `peerbus.CODECS`, `layout` one of `peerbus.LAYOUTS`. `attachments` are the bytes
    per token of up to four further tensors. `relay` is one of `peerbus.RELAYS`: whether a token for
    several ranks of another host crosses once, and is handed on there. On one host "always" is refused.
    `same_bits` refuses what would let a token's result depend on other ranks or tokens. `distrust_peers`
    checks every number that other ranks write before it is used: docs/security.md. With relay,
    `weights_at_combine` (refused in layouts by rank) lets combines give weights, and `relay_sums`, one of `peerbus.RELAY_SUMS`, is the
    type in which sums cross between hosts: "f32" rounds only results, for twice the bytes. `between` is
    a hint for the stores of this rank: the bytes that it reads and writes between two operations, such
    as a layer's weights.

    `physical_to_logical` is the expert at each place, -1 for none, numbered through the ranks: a row of the
    physical_to_logical_map of EPLB, vLLM or SGLang. An expert has one or more places, its replicas, at
    most one at a rank. `experts_of_rank` are the places of each rank, by default dealt out equally.
    `replicas` is this rank's `ReplicaChoice`, or its policy, one of `peerbus.REPLICA_POLICIES`; ranks may
    differ in it. docs/balancing.md explains them.
    """

    def __init__(self, comm, *, experts, hidden, top_k, max_tokens, codec="bf16", layout="compact",
                 in_flight=1, alignment=1, attachments=(), relay="never", same_bits=False,
                 timeout=None, physical_to_logical=None, experts_of_rank=None, replicas="nearest",
                 distrust_peers=False, weights_at_combine=False, relay_sums="bf16", between=0):
        self.codec, self.hidden, self.top_k = codec, hidden, top_k
        self.attachments = list(attachments) + [0] * (4 - len(attachments))
        if len(attachments) > 4:
            raise InvalidArgument(1, f"attachments has {len(attachments)} entries, expected at most 4")
        config = c.ExchangeConfig(
            codec=c.place("codec", codec, CODECS), layout=c.place("layout", layout, LAYOUTS),
            experts=experts, hidden=hidden,
            top_k=top_k, max_tokens=max_tokens, in_flight=in_flight, alignment=alignment,
            same_bits=int(same_bits), distrust_peers=int(distrust_peers),
            weights_at_combine=int(weights_at_combine), attachments=(ctypes.c_uint64 * 4)(
                *[c.number(nbytes, "attachments") for nbytes in self.attachments]))
        # What the library may still read, by ticket, even if nobody finishes the batch.
        self._size, self._sent = comm.size, {}
        self._weights_at_combine = bool(weights_at_combine)
        limit = c.nanoseconds(timeout)

        def make():
            return c.make("exchange", c.lib.peerbus_exchange_create, comm, ctypes.byref(config), limit)
        try:
            tables = self._place(config, physical_to_logical, experts_of_rank, replicas)
            config.relay = c.place("relay", relay, RELAYS)
            config.relay_sums = c.place("relay_sums", relay_sums, RELAY_SUMS)
            config.between = c.number(between, "between")
        except Exception:
            # All ranks refuse so many places without a table, and no rank waits for this one.
            config.physical_to_logical, config.physical_experts = None, experts + 1
            with contextlib.suppress(c.Error):
                make()
            raise
        super().__init__("exchange", make())
        del tables  # Nobody reads them any more.

    def _place(self, config, physical_to_logical, experts_of_rank, replicas):
        """Sets the places of the experts of a configuration, and the choice among them. Returns the tables,
        which keep it valid."""
        self.experts = self.physical_experts = config.experts
        tables = [table_of(experts_of_rank, "experts_of_rank", self._size, "ranks")]
        config.experts_of_rank = address_of(tables[0])
        if physical_to_logical is not None:
            tables.append(map_of(physical_to_logical))
            self.physical_experts = config.physical_experts = len(tables[1])
            if self.physical_experts < self.experts:  # The library takes 0 for as many as experts.
                raise InvalidArgument(1, f"physical_to_logical has {self.physical_experts} entries, expected "
                                         f"at least experts, {self.experts}")
            config.physical_to_logical = address_of(tables[1])
        self._choice = choice_of(replicas)
        tables.append(structure_of(self._choice, self.physical_experts, self.experts, self._size))
        config.replicas = ctypes.addressof(tables[-1])
        return tables

    def install_experts(self, physical_to_logical, replicas=None, timeout=None):
        """Collective: gives the experts other places, between two batches, with the same table on all ranks.
        `physical_to_logical` and `replicas` are those of the constructor. Each rank keeps its number of
        places. If `replicas` is None, the choice is as before, unless it names places.

        The caller moves the weights. What earlier dispatches returned is not used any more. No
        window is made anew. If the table or the choice is impossible on a rank, if tables differ, or if a
        batch is not combined yet, all ranks raise `Error`, mostly `InvalidArgument`, and the experts
        stay where they are."""
        limit = 0
        try:
            limit = c.nanoseconds(timeout)
            table = map_of(physical_to_logical)
            choice = self._choice_for_new_places(replicas)
            structure = structure_of(choice, len(table), self.experts, self._size)
        except Exception:
            c.check_refusal(c.lib.peerbus_exchange_install_experts(self, None, 0, None, limit))
            raise
        c.check(c.lib.peerbus_exchange_install_experts(self, address_of(table), len(table),
                                                       ctypes.byref(structure), limit))
        self._choice = choice

    def plan_experts(self, loads, least_gain=0.01, most_moves=None, fixed_slots=0):
        """Returns a table for `install_experts` or `ExpertWeights.begin` that balances `loads` [experts], and how
        many places get another expert: like `peerbus.eplb.plan_incremental`, but for the places
        that this exchange has. Vacant ones are filled where that helps, ranks that are gone keep theirs.
        Not collective; ranks that give equal arguments get equal plans."""
        loads = array_of(loads, numpy.float64, "loads", 1)
        if len(loads) != self.experts:
            raise InvalidArgument(1, f"loads has {len(loads)} entries, expected {self.experts} experts")
        table, moves = numpy.empty(self.physical_experts, numpy.uint32), ctypes.c_uint64()
        c.check(c.lib.peerbus_exchange_plan_experts(
            self, address_of(loads), least_gain, c.at_most(most_moves, "most_moves"),
            c.number(fixed_slots, "fixed_slots"), table.ctypes.data_as(ctypes.POINTER(ctypes.c_uint32)),
            len(table), ctypes.byref(moves)))
        return numpy.where(table == VACANT, -1, table.astype(numpy.int64)), moves.value

    def _choice_for_new_places(self, replicas):
        """Returns the `ReplicaChoice` of an argument, for which None stands for the choice until now."""
        choice = self._choice if replicas is None else choice_of(replicas)
        if replicas is None and (choice.quotas is not None or choice.chosen is not None):
            raise InvalidArgument(1, f"replicas is None, but the choice is {choice.policy}, for places "
                                     "that experts leave: expected a choice for the new ones")
        return choice

    def resume(self, lost="dropped", timeout=None):
        """Goes on in the present view of the communicator, after its `continue_without_the_dead`.
        Collective among its ranks. No other call of the exchange is under way.

        Batches that all of them have received, and not all have combined, can be combined now, also by a
        rank that had, if `awaits_combine` says so. Other batches are void, and their tokens are dispatched
        anew. Returns the
        `Completed` batches, the same on all ranks. `lost` says what becomes of slots whose expert was
        at a rank that is gone: "dropped" with their weight, "renormalised", so that the other weights
        grow to the same sum, or "refused" on all ranks."""
        found = c.Completed()
        c.check(c.lib.peerbus_exchange_resume(self, c.place("lost", lost, LOST), c.nanoseconds(timeout),
                                              ctypes.byref(found)))
        self._sent.clear()  # Nobody reads what was under way any more.
        return Completed(found.received, found.combined)

    def awaits_combine(self, received):
        """Returns whether the batch of `received` is not combined yet. After `resume` the same on all ranks."""
        return c.lib.peerbus_awaits_combine(self.alive(), received.ticket) == 1

    @property
    def nbytes(self):
        """The window memory of the exchange on each rank."""
        return c.lib.peerbus_exchange_bytes(self.alive())

    def _input(self, tokens, experts, weights, attachments, limit):
        """Returns the arguments of a dispatch, with the views that keep them valid."""
        views = [contiguous(tokens, "tokens"), contiguous(experts, "experts"),
                 contiguous(weights, "weights")]
        views += [contiguous(extra, "attachments", Operand) for extra in attachments]
        x, ids, factors = (view.tensor for view in views[:3])
        _require_dispatch(self, x, ids, factors, views[3:])
        args = c.DispatchArgs(
            expert_id_bits=ids.dtype_bits, count=x.shape[0], tokens=views[0].address,
            experts=views[1].address, weights=views[2].address, timeout_ns=limit)
        for i, extra in enumerate(views[3:]):
            args.attachments[i] = extra.address
        return args, views

    def _begin(self, call, tokens, experts, weights, attachments, timeout, outcome):
        """Calls a function of the library that begins a dispatch. Returns its arguments, and the views that
        keep them valid. An argument that is bad here is refused on all ranks."""
        limit = 0
        try:
            limit = c.nanoseconds(timeout)
            args, views = self._input(tokens, experts, weights, attachments, limit)
        except Exception:
            refusal = c.DispatchArgs(refuse=1, timeout_ns=limit)
            c.check_refusal(call(self, ctypes.byref(refusal), ctypes.byref(outcome)))
            raise
        c.check(call(self, ctypes.byref(args), ctypes.byref(outcome)))
        return args, views

    def dispatch(self, tokens, experts, weights, attachments=(), timeout=None):
        """Collective: sends each token to its experts and returns a `Received`.

        `tokens` is [count, hidden], bfloat16 (or uint16 with its bits; uint8 for codec
        fp8_as_given), `experts` [count, top_k] int32 or int64, -1 for none, `weights`
        [count, top_k] float32. Each of `attachments` is of any type and has `count` times its
        configured bytes. Other arrays are refused on all ranks: `Refused` elsewhere.
        """
        raw = c.Received()
        args, _ = self._begin(c.lib.peerbus_dispatch, tokens, experts, weights, attachments, timeout, raw)
        return Received(self, raw, args.count)

    def start_dispatch(self, tokens, experts, weights, attachments=(), timeout=None):
        """Collective: the first half of `dispatch`. Returns a `PendingBatch` whose `finish()` returns the
        `Received`. Waits for no rank, unless an argument is bad here: then it raises when all ranks know.
        Up to `in_flight` batches may be between this call and the end of their combine."""
        ticket = ctypes.c_uint64()
        args, views = self._begin(c.lib.peerbus_dispatch_send, tokens, experts, weights, attachments,
                                  timeout, ticket)
        self._sent[ticket.value], count = views, args.count

        def finish(limit):
            raw = c.Received()
            code = c.lib.peerbus_dispatch_recv(self, ticket, None, limit, ctypes.byref(raw))
            if code in (0, c.CONSTANTS["PEERBUS_REFUSED"]):  # It is over, and nobody reads them.
                del self._sent[ticket.value]
            c.check(code)
            return Received(self, raw, count)
        return PendingBatch("start_dispatch", finish, timeout)

    def refuse_dispatch(self, timeout=None):
        """Collective: makes the dispatch that the other ranks call fail there, because this rank has found
        an error before it could call it. Waits for them. The exchange works on."""
        refusal = c.DispatchArgs(refuse=1, timeout_ns=c.nanoseconds(timeout))
        _check_refusal(c.lib.peerbus_dispatch_send(self, ctypes.byref(refusal),
                                                   ctypes.byref(ctypes.c_uint64())))

    def _output(self, received, count, out, weights, timeout):
        """Returns the arguments of a combine, the views that keep them valid, and the result."""
        args = c.CombineArgs(timeout_ns=c.nanoseconds(timeout), count=c.number(count, "count"))
        if count != received._count:
            raise InvalidArgument(1, f"count is {count}, expected that of the dispatch, "
                                     f"{received._count}")
        if out is None:
            out = numpy.empty([count, self.hidden], numpy.uint16)
        view = Given(out, "out")
        tensor = view.tensor
        if (has_gaps(tensor) or tensor.dtype_bits != 16
                or list(tensor.shape[:tensor.ndim]) != [count, self.hidden]):
            raise InvalidArgument(1, f"out is {tensor.shape[:tensor.ndim]} of {tensor.dtype_bits} "
                                     f"bits{' with gaps' * has_gaps(tensor)}, expected a contiguous "
                                     f"array [{count}, {self.hidden}] of bfloat16 or uint16")
        require_writable(view, "out")
        _require_aligned(view, "out", 2)
        args.out, views = view.address, [view]
        if weights is not None:
            views.append(contiguous(weights, "weights"))
            _require_slots(self, count, "weights", views[1].tensor, ((2, 32),), "float32")
            _require_aligned(views[1], "weights", 4)
            relays = received.counts.shape[1] != self._size
            if received.by_rank or relays and not self._weights_at_combine:
                raise InvalidArgument(1, "weights were given in a layout by rank or with relay, expected "
                                         "those of the dispatch, which are applied before rows come home, "
                                         "or a layout by expert and, with relay, weights_at_combine=True")
            args.weights = views[1].address
        return args, views, out

    def _require_own(self, received):
        if received._exchange is not self:
            raise InvalidArgument(1, "combine was given the rows of another exchange, expected those "
                                     "of its own dispatch")

    def combine(self, received, count, out=None, timeout=None, weights=None):
        """Collective: returns the weighted sums of the outputs, uint16 [count, hidden], in `out` if
        that is given. `count` is the number of tokens of the dispatch. `weights`, float32
        [count, top_k], replace those of the dispatch, in layouts by expert, with relay only if
        `weights_at_combine` is true. Other arguments are refused on all ranks, which may then call again.
        `received` of another exchange is refused on this rank only."""
        self._require_own(received)
        try:
            args, views, out = self._output(received, count, out, weights, timeout)
        except Exception as problem:
            return self.refuse_combine(received, problem, timeout).finish()  # Raises it.
        c.check(c.lib.peerbus_combine(self, received.ticket, ctypes.byref(args)))
        del views
        return out

    def start_combine(self, received, count, out=None, timeout=None, weights=None):
        """Collective: the first half of `combine`, after which the outputs must not change. Returns a
        `PendingBatch` whose `finish()` returns the sums, or raises what is wrong with the arguments, except
        that `received` of another exchange is refused at once. Waits for no rank."""
        self._require_own(received)
        try:
            args, views, out = self._output(received, count, out, weights, timeout)
        except Exception as problem:
            return self.refuse_combine(received, problem, timeout)
        c.check(c.lib.peerbus_combine_send(self, received.ticket, ctypes.byref(args)))

        def finish(limit, _views=views):
            args.timeout_ns = limit
            c.check(c.lib.peerbus_combine_recv(self, received.ticket, ctypes.byref(args)))
            return out
        return PendingBatch("start_combine", finish, timeout)

    def refuse_combine(self, received, problem, timeout=None):
        """Collective: the first half of a combine that happens on no rank, because this one has found
        `problem`, an exception. Returns a `PendingBatch` whose `finish()` raises it; the other ranks raise
        `Refused`. All may then combine again. Waits for no rank."""
        self._require_own(received)
        refusal = c.CombineArgs(refuse=1)
        c.check(c.lib.peerbus_combine_send(self, received.ticket, ctypes.byref(refusal)))

        def finish(limit):
            out = numpy.empty([received._count, self.hidden], numpy.uint16)
            args = c.CombineArgs(timeout_ns=limit, count=received._count, out=out.ctypes.data)
            _check_refusal(c.lib.peerbus_combine_recv(self, received.ticket, ctypes.byref(args)))
            return problem
        limit = timeout if isinstance(timeout, (int, float)) else None  # That may be what is wrong.
        return PendingBatch("refuse_combine", finish, limit, is_refusal=True)


def _require_aligned(view, name, nbytes):
    if view.address % nbytes:
        raise InvalidArgument(1, f"{name} lies at address {view.address:#x}, expected a multiple of "
                                 f"{nbytes}")


def _check_refusal(code):
    """Raises unless the library refused what this rank asked it to refuse."""
    if code != 1 or b"its caller refuses" not in c.lib.peerbus_last_error():
        c.check(code)


def _require_slots(exchange, count, name, tensor, codes, types):
    """Requires the shape and the type of an array that has an entry for each slot of each token."""
    shape = list(tensor.shape[:tensor.ndim])
    if shape != [count, exchange.top_k]:
        raise InvalidArgument(1, f"{name} are {shape}, expected [{count}, {exchange.top_k}]")
    if (tensor.dtype_code, tensor.dtype_bits) not in codes:
        raise InvalidArgument(1, f"{name} have another type, expected {types}")


def _require_dispatch(exchange, x, ids, weights, extras):
    """Requires the shapes and the types of the arguments of a dispatch."""
    bits = 8 if exchange.codec == "fp8_as_given" else 16
    if x.ndim != 2 or x.shape[1] != exchange.hidden or x.dtype_bits != bits:
        raise InvalidArgument(1, f"tokens are {x.shape[:x.ndim]} of {x.dtype_bits} bits, expected "
                                 f"[count, {exchange.hidden}] of {bits} bits")
    _require_slots(exchange, x.shape[0], "experts", ids, ((0, 32), (0, 64)), "int32 or int64")
    _require_slots(exchange, x.shape[0], "weights", weights, ((2, 32),), "float32")
    if len(extras) > len(exchange.attachments):
        raise InvalidArgument(1, f"{len(extras)} attachments were given, expected at most "
                                 f"{len(exchange.attachments)}")
    for i, extra in enumerate(extras):
        given = extra.count * extra.tensor.dtype_bits // 8
        wanted = x.shape[0] * exchange.attachments[i]
        if given != wanted:
            raise InvalidArgument(1, f"attachment {i} has {given} bytes, expected tokens x configured, "
                                     f"{wanted}")

# SPDX-License-Identifier: MIT
"""Exchanges: dispatch sends each token to the ranks of its experts, combine brings the sums home."""

import ctypes

import numpy

from . import _library as c
from ._library import CODECS, RELAYS, InvalidArgument
from ._operands import Operand
from ._tensors import Given, contiguous, has_gaps, require_writable, view_of

LAYOUTS = ("compact", "padded", "rank_major", "slots", "expert_slots")


class Received:
    """The rows that a dispatch brought to this rank, as numpy arrays over memory of the exchange.

    bf16 is uint16, E4M3 is uint8. Row i of each array belongs together, gaps included. The rows of
    block b (a local expert; by rank, the rank) from source r, a rank (with relay the place of the one
    that handed on among its near ranks), are `counts[b, r]` rows from
    `first_rows[b, r]` on. The arrays keep the exchange alive, and are overwritten by the
    `in_flight`th next dispatch.
    """

    def __init__(self, exchange, raw):
        capacity, blocks, ranks = raw.row_capacity, raw.blocks, raw.ranks
        hidden, top_k = exchange.hidden, exchange.top_k

        def view(address, dtype, shape):
            return view_of(address, dtype, shape, exchange) if address else None

        dtype = {"bf16": "uint16", "int8_per_token": "int8"}.get(exchange.codec, "uint8")
        columns = raw.row_bytes // numpy.dtype(dtype).itemsize
        scales = "uint8" if exchange.codec == "fp8_ue8m0" else "float32"
        scale_columns = raw.scale_bytes // numpy.dtype(scales).itemsize
        self._exchange, self.ticket = exchange, raw.ticket
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


class PendingBatch:
    """The second half of a dispatch or a combine. The rank may compute between the halves. Arrays that
    are sent are kept alive and must not change, and `out` must not be accessed, until `finish` has
    returned. Halves of a kind are finished in the order in which they were started, and all are
    finished. Made by `Exchange.start_dispatch` and `Exchange.start_combine` only."""

    def __init__(self, started_by, finish, views):
        self._started_by, self._finish, self._views = started_by, finish, views

    def finish(self, timeout=None):
        """Does the rest of the operation, and returns or raises what the whole operation would. After
        `TimedOut` or any other failure it cannot be called again."""
        limit = c.nanoseconds(timeout)  # A wrong one gives nothing up.
        finish, self._finish = self._finish, None
        if finish is None:
            raise c.InvalidArgument(1, f"finish was called before, expected it once after each "
                                       f"{self._started_by}")
        try:
            return finish(limit)
        finally:
            self._views = None


class Exchange(c.Object):
    """Dispatch and combine for one configuration. Collective, with equal arguments on all ranks.

    `codec` is one of `peerbus.CODECS`, `layout` one of `peerbus.LAYOUTS`. `attachments` are the bytes
    per token of up to four further tensors. `relay` is one of `peerbus.RELAYS`: whether a token for
    several ranks of another host crosses once, and is handed on there. On one host "always" is refused.
    `same_bits` refuses what would let a token's result depend on other ranks or tokens.
    """

    def __init__(self, comm, *, experts, hidden, top_k, max_tokens, codec="bf16", layout="compact",
                 in_flight=1, alignment=1, attachments=(), relay="never", same_bits=False,
                 timeout=None):
        self.codec, self.hidden, self.top_k = codec, hidden, top_k
        self.attachments = list(attachments) + [0] * (4 - len(attachments))
        if len(attachments) > 4:
            raise InvalidArgument(1, f"attachments has {len(attachments)} entries, expected at most 4")
        config = c.ExchangeConfig(
            codec=c.place("codec", codec, CODECS), layout=c.place("layout", layout, LAYOUTS),
            experts=experts, hidden=hidden,
            top_k=top_k, max_tokens=max_tokens, in_flight=in_flight, alignment=alignment,
            relay=c.place("relay", relay, RELAYS), same_bits=int(same_bits),
            attachments=(ctypes.c_uint64 * 4)(
                *[c.number(nbytes, "attachments") for nbytes in self.attachments]))
        super().__init__("exchange", c.make("exchange", c.lib.peerbus_exchange_create, comm,
                                            ctypes.byref(config), c.nanoseconds(timeout)))

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

    def _begin(self, call, tokens, experts, weights, attachments, timeout, *outcome):
        """Calls a function of the library that begins a dispatch. Returns the views that keep its
        arguments valid. An argument that is bad here is refused on all ranks."""
        limit = 0
        try:
            limit = c.nanoseconds(timeout)
            args, views = self._input(tokens, experts, weights, attachments, limit)
        except Exception:
            refusal = c.DispatchArgs(refuse=1, timeout_ns=limit)
            c.check_refusal(call(self, ctypes.byref(refusal), *outcome))
            raise
        c.check(call(self, ctypes.byref(args), *outcome))
        return views

    def dispatch(self, tokens, experts, weights, attachments=(), timeout=None):
        """Collective: sends each token to its experts and returns a `Received`.

        `tokens` is [count, hidden], bfloat16 (or uint16 with its bits; uint8 for codec
        fp8_as_given), `experts` [count, top_k] int32 or int64, -1 for none, `weights`
        [count, top_k] float32. Each of `attachments` is of any type and has `count` times its
        configured bytes. Other arrays are refused on all ranks: `Refused` elsewhere.
        """
        raw = c.Received()
        self._begin(c.lib.peerbus_dispatch, tokens, experts, weights, attachments, timeout,
                    ctypes.byref(raw))
        return Received(self, raw)

    def start_dispatch(self, tokens, experts, weights, attachments=(), timeout=None):
        """Collective: the first half of `dispatch`. Returns a `PendingBatch` whose `finish()` returns the
        `Received`. Waits for no rank, unless an argument is bad here. Up to `in_flight` batches may be
        between this call and the end of their combine."""
        ticket = ctypes.c_uint64()
        views = self._begin(c.lib.peerbus_dispatch_send, tokens, experts, weights, attachments,
                            timeout, ctypes.byref(ticket))

        def finish(limit):
            raw = c.Received()
            c.check(c.lib.peerbus_dispatch_recv(self, ticket, None, limit, ctypes.byref(raw)))
            return Received(self, raw)
        return PendingBatch("start_dispatch", finish, views)

    def refuse_dispatch(self):
        """Collective: makes the dispatch that the other ranks call fail there, because this rank has found
        an error before it could call it. Waits for them. The exchange works on."""
        c.check_refusal(c.lib.peerbus_dispatch_send(
            self, ctypes.byref(c.DispatchArgs(refuse=1)), ctypes.byref(ctypes.c_uint64())))

    def _output(self, call, received, count, out, weights, timeout):
        """Calls a function of the library that begins a combine. Returns its arguments, the views that
        keep them valid, and the result. An argument that is bad here is refused on all ranks."""
        if received._exchange is not self:
            raise c.InvalidArgument(1, "combine was given the rows of another exchange, expected those "
                                       "of its own dispatch")
        args = c.CombineArgs()
        try:
            args.timeout_ns, args.count = c.nanoseconds(timeout), c.number(count, "count")
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
            args.out, views = view.address, [view]
            if weights is not None:
                views.append(contiguous(weights, "weights"))
                _require_slots(self, count, "weights", views[1].tensor, ((2, 32),), "float32")
                args.weights = views[1].address
        except Exception:
            self.refuse_combine(received)
            raise
        c.check(call(self, received.ticket, ctypes.byref(args)))
        return args, views, out

    def refuse_combine(self, received):
        """Collective: makes the combine of `received` that the other ranks call fail there, because this
        rank has found an error before it could call it. All ranks may then call again. Waits for
        them."""
        c.check_refusal(c.lib.peerbus_combine(self, received.ticket,
                                              ctypes.byref(c.CombineArgs(refuse=1))))

    def combine(self, received, count, out=None, timeout=None, weights=None):
        """Collective: returns the weighted sums of the outputs, uint16 [count, hidden], in `out` if
        that is given. `count` is the number of tokens of the dispatch. `weights`, float32
        [count, top_k], replace those of the dispatch (in layouts by expert, without relay). An `out` of another form is
        refused on all ranks, which may then call again. `received` of another exchange is refused on
        this rank only."""
        return self._output(c.lib.peerbus_combine, received, count, out, weights, timeout)[2]

    def start_combine(self, received, count, out=None, timeout=None, weights=None):
        """Collective: the first half of `combine`, after which the outputs must not change. Returns a
        `PendingBatch` whose `finish()` returns the sums. Waits for no rank."""
        args, views, out = self._output(c.lib.peerbus_combine_send, received, count, out, weights,
                                        timeout)

        def finish(limit):
            args.timeout_ns = limit or args.timeout_ns
            c.check(c.lib.peerbus_combine_recv(self, received.ticket, ctypes.byref(args)))
            return out
        return PendingBatch("start_combine", finish, views)


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

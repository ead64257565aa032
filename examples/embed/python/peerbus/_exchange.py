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
        problem = _problem(self, x, ids, factors, views[3:])
        if problem:
            raise InvalidArgument(1, problem)
        args = c.DispatchArgs(
            expert_id_bits=ids.dtype_bits, count=x.shape[0], tokens=views[0].address,
            experts=views[1].address, weights=views[2].address, timeout_ns=limit)
        for i, extra in enumerate(views[3:]):
            args.attachments[i] = extra.address
        return args, views

    def dispatch(self, tokens, experts, weights, attachments=(), timeout=None):
        """Collective: sends each token to its experts and returns a `Received`.

        `tokens` is [count, hidden], bfloat16 (or uint16 with its bits; uint8 for codec
        fp8_as_given), `experts` [count, top_k] int32 or int64, -1 for none, `weights`
        [count, top_k] float32. Each of `attachments` is of any type and has `count` times its
        configured bytes. Other arrays are refused on all ranks: `Refused` elsewhere.
        """
        raw, limit = c.Received(), 0
        try:
            limit = c.nanoseconds(timeout)
            args, views = self._input(tokens, experts, weights, attachments, limit)
        except Exception:
            refusal = c.DispatchArgs(refuse=1, timeout_ns=limit)
            c.check_refusal(c.lib.peerbus_dispatch(self, ctypes.byref(refusal), ctypes.byref(raw)))
            raise
        c.check(c.lib.peerbus_dispatch(self, ctypes.byref(args), ctypes.byref(raw)))
        del views
        return Received(self, raw)

    def combine(self, received, count, out=None, timeout=None):
        """Collective: returns the weighted sums of the outputs, uint16 [count, hidden], in `out` if
        that is given. `count` is the number of tokens of the dispatch. An `out` of another form is
        refused on all ranks, which may then call again. `received` of another exchange is refused on
        this rank only."""
        if received._exchange is not self:
            raise InvalidArgument(1, "combine was given the rows of another exchange, expected those "
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
                raise InvalidArgument(1, f"out is no contiguous array [{count}, {self.hidden}] of "
                                         "bfloat16 or uint16")
            require_writable(view, "out")
            args.out = view.address
        except Exception:
            args.refuse = 1
            c.check_refusal(c.lib.peerbus_combine(self, received.ticket, ctypes.byref(args)))
            raise
        c.check(c.lib.peerbus_combine(self, received.ticket, ctypes.byref(args)))
        return out


def _problem(exchange, x, ids, weights, extras):
    """Returns what is wrong with the shapes and types of a dispatch, or None."""
    bits = 8 if exchange.codec == "fp8_as_given" else 16
    if x.ndim != 2 or x.shape[1] != exchange.hidden or x.dtype_bits != bits:
        return (f"tokens are {x.shape[:x.ndim]} of {x.dtype_bits} bits, expected "
                f"[count, {exchange.hidden}] of {bits} bits")
    for name, tensor, codes in (("experts", ids, ((0, 32), (0, 64))),
                                ("weights", weights, ((2, 32),))):
        shape = [tensor.shape[d] for d in range(tensor.ndim)]
        if shape != [x.shape[0], exchange.top_k]:
            return f"{name} are {shape}, expected [{x.shape[0]}, {exchange.top_k}]"
        if (tensor.dtype_code, tensor.dtype_bits) not in codes:
            return f"{name} have another type, expected " + (
                "int32 or int64" if name == "experts" else "float32")
    if len(extras) > len(exchange.attachments):
        return f"{len(extras)} attachments were given, expected at most {len(exchange.attachments)}"
    for i, extra in enumerate(extras):
        given = extra.count * extra.tensor.dtype_bits // 8
        wanted = x.shape[0] * exchange.attachments[i]
        if given != wanted:
            return f"attachment {i} has {given} bytes, expected tokens x configured, {wanted}"
    return None

# SPDX-License-Identifier: MIT
"""What back ends of engines share: tokens to the ranks of their experts, and outputs back."""

import numpy

from .. import _library as c
from .._bf16 import from_bf16, to_bf16
from .._exchange import Exchange
from .._tensors import bits_of, empty_like, like, view_like

# The types of rows, as codes of the library, by codec.
_kinds = {"bf16": (4, 16), "int8_per_token": (0, 8)}
_E4M3 = (10, 8)


class Watch:
    """A context for calls that keeps, as `fault`, the first failure after which a group cannot go on: a
    rank that died, or did not answer in time."""

    fault = None

    def __enter__(self):
        return self

    def __exit__(self, kind, problem, _):
        if self.fault is None and isinstance(problem, (c.PeerDead, c.TimedOut, c.Poisoned)):
            self.fault = problem


class TokenDispatcher:
    """Dispatches tokens of up to `max_tokens` per rank to `experts` experts, in any layout.

    Rank r of `comm` has E // R experts, the first E % R ranks one more, in order. `in_flight`
    micro-batches may be under way at once. `relay` and `same_bits` as in `peerbus.Exchange`. The
    memory of a layout is taken in the first `send` that names it, which all ranks call alike. `watch`
    is the `Watch` that keeps failures.
    """

    def __init__(self, comm, experts, hidden, max_tokens, in_flight=2, relay="automatic",
                 same_bits=False, timeout=None, watch=None):
        self.comm, self.experts, self.hidden, self.max_tokens = comm, experts, hidden, max_tokens
        self.same_bits, self.timeout = same_bits, timeout
        self._options = dict(experts=experts, hidden=hidden, max_tokens=max_tokens,
                             in_flight=in_flight, relay=relay, same_bits=same_bits, timeout=timeout)
        self._exchanges = {}
        few, more = divmod(experts, comm.size)
        self.first_expert = comm.rank * few + min(comm.rank, more)
        self.local_experts = few + (comm.rank < more)
        self.watch = watch or Watch()

    def send(self, layout, x, topk_ids, topk_weights, codec="bf16"):
        """Collective: begins a dispatch and returns a `Batch`. Waits for no rank, unless an argument is
        bad here, which all ranks then refuse.

        `x` is [T, H] bfloat16, `topk_ids` [T, K] int32 or int64 (-1: none), `topk_weights` [T, K]
        float32. `layout` and `codec` are those of `peerbus.Exchange`. `x` must not change until
        `receive` has returned.
        """
        with self.watch:
            exchange = self._exchange(layout, topk_ids, codec)
            pending = exchange.start_dispatch(x, topk_ids, topk_weights, timeout=self.timeout)
        return Batch(self, exchange, layout, x, topk_weights, pending)

    def refuse(self, layout, topk_ids, codec="bf16"):
        """Collective: makes the `send` that the other ranks call fail there, because this rank has found
        an error before it could call it."""
        with self.watch:
            self._exchange(layout, topk_ids, codec).refuse_dispatch()

    def _exchange(self, layout, topk_ids, codec):
        if self._exchanges is None:
            raise c.InvalidArgument(1, "the TokenDispatcher was destroyed")
        shape = getattr(topk_ids, "shape", ())
        top_k = shape[1] if len(shape) == 2 else 1  # The exchange refuses other shapes.
        key = layout, codec, top_k
        if key not in self._exchanges:
            self._exchanges[key] = Exchange(self.comm, layout=layout, codec=codec, top_k=top_k,
                                            **self._options)
        return self._exchanges[key]

    def destroy(self):
        """Releases the memory of the library. Arrays of batches must not be read after. Does nothing if
        that has happened before."""
        exchanges, self._exchanges = self._exchanges, None
        for exchange in (exchanges or {}).values():
            exchange.destroy()


class Batch:
    """A micro-batch, from its dispatch to the end of its combine: `receive`, `send_back`, `finish`.

    After `receive`, arrays are of torch if the tokens were, and those of rows are views of the
    library's memory, overwritten by the `in_flight`th next dispatch of the layout:

    - `rows`, of the codec's type, and `scales` or None: [L, R * B, H] with `padded`, [R, B, H] with
      `slots`, otherwise [N, H]; L local experts, R ranks, B = `max_tokens`.
    - `counts`, int32: rows of each local expert [L]; with `slots`, of each source rank [R].
    - `slot_experts` and `slot_weights` [N, K], in layouts by rank: the local expert of each slot of a
      row, or -1, and its weight. [R * B, K] with `slots`, unset where no row is.
    - `row_experts` [N], with `compact`: the local expert of each row.
    - `outputs`: bfloat16 in the shape of `rows`, from where ranks read without a copy.
    """

    def __init__(self, dispatcher, exchange, layout, x, weights, pending):
        self._dispatcher, self._exchange, self._layout = dispatcher, exchange, layout
        self._x, self._pending, self.stage = x, pending, "sent"
        self.count = x.shape[0]
        self._weights = _plain(weights).copy()  # The caller's may change.

    def _step(self, name, before, after):
        if self.stage != before:
            raise c.InvalidArgument(1, f"{name} was called on a batch that is {self.stage}, expected "
                                       f"it to be {before}: send, receive, send_back, finish is the order")
        self.stage = after

    def receive(self):
        """Collective: completes the dispatch."""
        self._step("receive", "sent", "given up")
        with self._dispatcher.watch:
            self._received = received = self._pending.finish()
        self.stage = "received"
        ranks, most = self._dispatcher.comm.size, self._dispatcher.max_tokens
        sums = received.counts.sum(1, dtype=numpy.int32)
        if self._layout == "padded":
            lead = [len(received.expert_ids), ranks * most]
        elif self._layout == "slots":
            lead, sums = [ranks, most], received.counts[0].astype(numpy.int32)
        else:
            lead = [received.end]
        self._end = received.end if len(lead) == 1 else lead[0] * lead[1]

        def shaped(values):
            return values[:self._end].reshape(lead + [values.shape[1]])

        self.rows = view_like(self._x, shaped(received.row_data),
                              _kinds.get(self._exchange.codec, _E4M3))
        self.outputs = view_like(self._x, shaped(received.outputs), _kinds["bf16"])
        self.scales = None if received.scales is None else like(self._x, shaped(received.scales))
        if received.by_rank:
            self._slot_experts = received.slot_experts[:self._end]
            self.slot_experts = like(self._x, self._slot_experts)
            self.slot_weights = like(self._x, received.slot_weights[:self._end])
            if self._layout != "slots":
                sums = self._per_expert(self._slot_experts)
        elif self._layout == "compact":
            self.row_experts = like(self._x, numpy.repeat(
                numpy.arange(len(sums), dtype=numpy.int64), sums))
        self.counts = like(self._x, sums)
        return self

    def _per_expert(self, slot_experts):
        """Returns how many slots name each local expert."""
        used = slot_experts[slot_experts >= 0]
        return numpy.bincount(used, minlength=self._dispatcher.local_experts).astype(numpy.int32)

    def reduced(self, outputs, weights=None):
        """Returns the weighted sums over the local experts of each row, [N, H], that combine adds in
        layouts by rank. `outputs` [N, K, H] or [N * K, H] has one for each slot of a row; what it has in
        slots of other ranks' experts is not read. In float32, rounded once. `weights` [N, K] stand in
        for `slot_weights`."""
        rows, slots = self._slot_experts.shape
        shape = [rows, slots, self._dispatcher.hidden]
        if list(outputs.shape) == [rows * slots, shape[2]]:
            outputs = outputs.reshape(shape)
        given = bits_of(outputs, "outputs", shape)
        weights = _plain(self.slot_weights if weights is None else weights)
        total = numpy.zeros([rows, self._dispatcher.hidden], numpy.float32)
        for slot in range(slots):
            local = self._slot_experts[:, slot] >= 0
            total[local] += weights[local, slot, None] * from_bf16(given[local, slot])
        return view_like(self._x, to_bf16(total), (4, 16))

    def send_back(self, outputs=None, out=None, weights=None):
        """Collective: begins the combine, and returns where the sums will be. `outputs`, bfloat16 in the shape of `rows`, are copied to
        `outputs` of the batch; None if the experts wrote there. `finish` writes the sums to `out`
        [T, H], if that is given. `weights` [T, K] stand in for those of the dispatch, in layouts by
        expert. Waits for no rank; arguments that are bad here are refused on all."""
        self._step("send_back", "received", "received")
        out = empty_like(self._x, [self.count, self._exchange.hidden]) if out is None else out
        with self._dispatcher.watch:
            try:
                if outputs is not None:
                    self._place(bits_of(outputs, "outputs", self.outputs.shape))
                if weights is not None and numpy.array_equal(_plain(weights), self._weights):
                    weights = None
            except Exception:
                self.refuse()
                raise
            self._pending = self._exchange.start_combine(
                self._received, self.count, out, self._dispatcher.timeout, weights)
        self.stage = "sent back"
        return out

    def refuse(self):
        """Collective: makes the combine that the other ranks begin by `send_back` fail there, because
        this rank has found an error before it could. All ranks may then send back again."""
        self._exchange.refuse_combine(self._received)

    def _place(self, given):
        """Copies the outputs of rows that arrived to where their home ranks read them."""
        place = self._received.outputs[:self._end].reshape(given.shape)
        if given.ctypes.data == place.ctypes.data:
            return
        if given.ndim == 2:
            place[...] = given
        else:
            for block, rows in enumerate(numpy.asarray(self.counts)):
                place[block, :rows] = given[block, :rows]

    def finish(self):
        """Collective: completes the combine and returns the sums [T, H] of this rank's tokens. If that
        raises `Refused`, all ranks may send back again."""
        self._step("finish", "sent back", "given up")
        with self._dispatcher.watch:
            try:
                out = self._pending.finish()
            except c.Refused:
                self.stage = "received"
                raise
        self.stage = "finished"
        return out


def _plain(values):
    """Returns float32 values of a tensor of torch, or of another array, as numpy's."""
    return numpy.asarray(values.detach() if hasattr(values, "detach") else values, numpy.float32)

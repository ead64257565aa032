# SPDX-License-Identifier: MIT
"""What back ends of engines share: tokens to the ranks of their experts, and outputs back."""

import functools
import threading
import time

import numpy

from .. import _library as c
from .._bf16 import from_bf16, to_bf16
from .._exchange import Exchange
from .._tensors import bits_of, empty_like, like, view_like

LAYOUTS = ("padded", "compact", "rank_major", "slots")
# The types of rows, as codes of the library, by codec.
_BF16, _INT8, _E4M3 = (4, 16), (0, 8), (10, 8)
_KINDS = {"bf16": _BF16, "int8_per_token": _INT8, "fp8_f32": _E4M3, "fp8_rounded": _E4M3,
          "fp8_ue8m0": _E4M3}


class Watch:
    """What the dispatchers over a communicator share.

    A context for calls that keeps, as `fault`, the first failure after which a group cannot go on: a
    rank died, did not answer in time, or the connection to it broke. `exchanges` has the view in which
    each exchange is used, in the order in which they were made; `masked` the ranks to which this one
    sends nothing.
    """

    def __init__(self):
        self.fault, self.exchanges, self.masked = None, {}, frozenset()
        # A window in which ranks say how many exchanges they have, and whom they mask.
        self._said = None

    def __enter__(self):
        return self

    def __exit__(self, kind, problem, _):
        if self.fault is None and isinstance(problem, (c.PeerDead, c.TimedOut, c.Unreachable,
                                                       c.Poisoned)):
            self.fault = problem

    def is_faulty(self, comm):
        """Returns whether a call has failed, a rank of the view has died or left, or an exchange is not
        resumed."""
        view, health = comm.view, comm.health()
        return self.fault is not None or any(health[rank] != "runs" for rank in view.members) or \
            any(used_in != view.number for used_in in self.exchanges.values())

    def mask(self, comm, ranks):
        """Sets `masked`. Local. Raises `ValueError` if `ranks` has this one, or lacks one that is gone, as
        ranks do not come back."""
        if comm.rank in ranks:
            raise ValueError(f"rank {comm.rank} would mask itself, expected it to be active")
        back = set(range(comm.size)).difference(comm.view.members, ranks)
        if back:
            raise ValueError(f"rank {min(back)} would be active, which is gone")
        self.masked = frozenset(ranks)

    def continue_without_the_dead(self, comm, timeout=None):
        """Collective among the living: goes on without the ranks that have died or left, also if more do
        so meanwhile, and resumes the exchanges. Returns their batches as `resume` does. Errors as of
        `Communicator.continue_without_the_dead`."""
        while True:
            comm.continue_without_the_dead(timeout)
            try:
                return self.resume(comm, timeout)
            except c.PeerDead:
                pass

    def continue_without_the_masked(self, comm, timeout=None):
        """Collective among the living: as `continue_without_the_dead`, and goes on without the ranks that
        others mask, too. They raise `ViewChanged`, and their caller then destroys `comm`, for which the
        others wait. Of ranks that mask each other the lowest stays. Forgets `masked`."""
        combined = {}
        while True:
            combined.update(self.continue_without_the_dead(comm, timeout))
            try:
                leaving = self._leaving(comm, timeout)
            except c.PeerDead:
                continue
            if comm.rank in leaving:
                raise c.ViewChanged(12, f"rank {comm.rank} was masked by rank {leaving[comm.rank]}, and the "
                                        "others go on without it")
            if not leaving:
                self.masked = frozenset()
                return combined
            self._await_end(comm, leaving, 30 if timeout is None else timeout)

    def _leaving(self, comm, timeout):
        """Collective, after `resume`: returns the ranks of the view that leave, the same on all, with the
        lowest rank that masks them. What a rank masks that leaves because of a lower one counts for
        nothing, so that the lowest rank always stays."""
        def masks(rank):
            return self._said.part(rank)[8:8 + comm.size]

        self.prepare(comm, timeout)
        masks(comm.rank)[:] = [rank in self.masked for rank in range(comm.size)]
        comm.barrier(timeout)
        # Nobody writes again before all have read: `resume` comes first.
        leaving, members = {}, comm.view.members
        for by in members:
            if by not in leaving:
                for rank in numpy.flatnonzero(masks(by)).tolist():
                    if rank in members:
                        leaving.setdefault(rank, by)
        return leaving

    @staticmethod
    def _await_end(comm, leaving, limit):
        """Waits until all that are leaving have left, or another rank of the view has ended."""
        end = time.monotonic() + limit
        while True:
            health = comm.health()
            ended = {rank for rank in comm.view.members if health[rank] != "runs"}
            if not ended <= leaving.keys() or ended >= leaving.keys():
                return
            if time.monotonic() > end:
                raise c.TimedOut(5, f"rank {min(leaving.keys() - ended)} was masked, but has not left")
            time.sleep(0.0005)

    def resume(self, comm, timeout=None):
        """Collective: resumes the exchanges in the present view. Returns how many batches all ranks have
        combined, by exchange. Forgets `fault`."""
        for exchange in list(self.exchanges)[self._common(comm, timeout):]:
            self.forget(exchange)
        combined, number = {}, comm.view.number
        for exchange, used_in in self.exchanges.items():
            if used_in != number:
                combined[exchange] = exchange.resume(timeout=timeout).combined
                self.exchanges[exchange] = number
        self.fault = None
        return combined

    def prepare(self, comm, timeout=None):
        """Collective, before an exchange is made: takes the memory that `resume` needs, once."""
        if self._said is None and len(comm.near_ranks) == comm.size:
            self._said = comm.window(8 + comm.size, timeout=timeout)

    def _common(self, comm, timeout):
        """Collective: returns how many exchanges all ranks have. When a rank dies while one is made, some
        others may have it and some not, and so with the window: those who have it read 0 of the others."""
        def said(rank):
            return self._said.part(rank)[:8].view(numpy.int64)

        if self._said is not None:
            said(comm.rank)[0] = 1 + len(self.exchanges)
        comm.barrier(timeout)
        if self._said is None:
            return len(self.exchanges)
        least = min(int(said(rank)[0]) for rank in comm.view.members)
        if least == 0:
            self.close()
        return max(least - 1, 0)

    def forget(self, exchange):
        """Destroys an exchange."""
        self.exchanges.pop(exchange, None)
        exchange.destroy()

    def close(self):
        """Releases what `prepare` took."""
        if self._said is not None:
            self._said.destroy()
            self._said = None


class Once:
    """A function that is carried out once, by whichever thread calls first. Later calls return what that
    returned, or raise what it raised. An error after which `is_made()` is false counts as not made."""

    def __init__(self, function, is_made):
        self._function, self._is_made = function, is_made
        self._lock, self._outcome = threading.Lock(), None

    def __call__(self):
        with self._lock:
            if self._function is not None:
                try:
                    self._outcome = self._function()
                except BaseException as problem:
                    if not self._is_made():
                        raise
                    self._outcome = problem
                self._function = None
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


def dealt(experts, ranks):
    """Returns how many experts each rank has if they are dealt out equally: the first ranks have one more if
    they do not divide."""
    few, more = divmod(experts, ranks)
    return [few + (rank < more) for rank in range(ranks)]


class TokenDispatcher:
    """Dispatches tokens of up to `max_tokens` per rank to `experts` experts.

    Rank r of `comm` has `experts_of_rank[r]` experts, in order, by default as `dealt` says. `in_flight`
    micro-batches of a layout and codec may be under way at once. `relay` and `same_bits` as in
    `peerbus.Exchange`, except that the layout slots is never relayed. `timeout` is the time limit of each
    call, by default that of `comm`. `watch` is the `Watch` of `comm`, by default one of its own.
    `attachments` are the bytes of up to four further tensors that travel with each token.
    """

    def __init__(self, comm, experts, hidden, max_tokens, in_flight=2, relay="automatic",
                 same_bits=False, timeout=None, watch=None, experts_of_rank=None, attachments=()):
        self.comm, self.experts, self.hidden, self.max_tokens = comm, experts, hidden, max_tokens
        self.in_flight, self.same_bits, self.timeout = in_flight, same_bits, timeout
        self._relay, self._attachments = relay, attachments
        self._exchanges = {}
        self._experts_of_rank = experts_of_rank
        places = numpy.asarray(dealt(experts, comm.size) if experts_of_rank is None else experts_of_rank)
        self._owners = numpy.repeat(numpy.arange(comm.size), places)
        self.first_expert, self.local_experts = int(places[:comm.rank].sum()), int(places[comm.rank])
        self.watch, self._owns_watch = watch or Watch(), watch is None

    def send(self, layout, x, topk_ids, topk_weights, codec="bf16", attachments=()):
        """Collective: begins a dispatch and returns a `Batch`.

        `x` is [T, H] bfloat16, `topk_ids` [T, K] int32 or int64 (-1: none), `topk_weights` [T, K]
        float32; K is that of the first batch. Each of `attachments` is of any type and has T times its bytes.
        Other arguments are refused on all ranks. `layout` is
        padded, compact, rank_major or slots, `codec` bf16, int8_per_token, fp8_f32, fp8_rounded or
        fp8_ue8m0. `x` must not change until `receive` has returned.

        Ids of experts of ranks that `watch` masks count as -1. Waits for no rank, except when an argument
        is bad here, and in the first batch of a layout and codec, for which all ranks take memory.
        """
        with self.watch:
            exchange = self._exchange(layout, topk_ids, codec)
            pending = exchange.start_dispatch(x, self._unmasked(topk_ids), topk_weights,
                                              attachments, timeout=self.timeout)
        return Batch(self, exchange, layout, x, topk_weights, pending)

    def refuse_dispatch(self, layout, topk_ids, codec="bf16"):
        """Collective: makes the `send` that the other ranks call fail there, because this rank has found
        an error before it could call it. Waits for them."""
        with self.watch:
            self._exchange(layout, topk_ids, codec).refuse_dispatch(self.timeout)

    def _unmasked(self, topk_ids):
        """Returns the ids with -1 for experts of ranks that are masked."""
        if not self.watch.masked:
            return topk_ids
        try:
            ids = numpy.asarray(topk_ids)
            experts = numpy.flatnonzero(numpy.isin(self._owners, list(self.watch.masked)))
            return like(topk_ids, numpy.where(numpy.isin(ids, experts), -1, ids).astype(ids.dtype))
        except Exception:
            return topk_ids  # The exchange refuses them on all ranks.

    def resume(self, timeout=None):
        """Collective: goes on in the present view, after `Communicator.continue_without_the_dead`, with
        all dispatchers of the `watch`. Batches from before are void: their calls raise `ViewChanged`, and
        their tokens are sent anew. Returns how many batches all ranks have combined, the same on all, by
        layout and codec: ranks that have combined more send again those behind."""
        combined = self.watch.resume(self.comm, timeout)
        return {key: combined[exchange] for key, exchange in self._exchanges.items()
                if exchange in combined}

    def _exchange(self, layout, topk_ids, codec):
        if self._exchanges is None:
            raise c.InvalidArgument(1, "the TokenDispatcher was destroyed")
        c.place("layout", layout, LAYOUTS)
        c.place("codec", codec, tuple(_KINDS))
        key = layout, codec
        if self._exchanges.get(key) not in self.watch.exchanges:
            self.watch.prepare(self.comm, self.timeout)
            shape = getattr(topk_ids, "shape", ())
            self._exchanges[key] = made = Exchange(
                self.comm, layout=layout, codec=codec, experts=self.experts, hidden=self.hidden,
                top_k=shape[1] if len(shape) == 2 else 1,  # Other ranks have others: all refuse.
                max_tokens=self.max_tokens, in_flight=self.in_flight, same_bits=self.same_bits,
                relay="never" if layout == "slots" else self._relay, timeout=self.timeout,
                experts_of_rank=self._experts_of_rank, attachments=self._attachments)
            self.watch.exchanges[made] = self.comm.view.number
        return self._exchanges[key]

    def destroy(self):
        """Releases the memory of the library. Arrays of batches must not be read after. Does nothing if
        that has happened before."""
        exchanges, self._exchanges = self._exchanges, None
        for exchange in (exchanges or {}).values():
            self.watch.forget(exchange)
        if self._owns_watch:
            self.watch.close()


class Batch:
    """A micro-batch, from its dispatch to the end of its combine: `receive`, `send_back`, `finish`.
    `stage` is "sent", "received", "sent back", "finished", or "given up" after a failure.

    After `receive`, arrays are of torch if the tokens were, and those of rows are views of the
    library's memory, overwritten by the `in_flight`th next dispatch of the layout and codec:

    - `rows`, of the codec's type, and `scales` or None: [L, R * B, H] with padded, [R, B, H] with
      slots, otherwise [N, H]; L local experts, R ranks, B = `max_tokens`.
    - `counts`, int32: rows of each local expert [L]; with slots, of each source rank [R].
    - `slot_experts` int32 and `slot_weights` [N, K], in layouts by rank: the local expert of each slot of
      a row, or -1, and its weight. With slots copies [R * B, K], made when they are first read, with -1
      where no row is.
    - `attachments`: of each row, uint8 of numpy in the shape of `rows`.
    - `row_experts` int64 [N], with compact: the local expert of each row.
    - `outputs`: bfloat16 in the shape of `rows`, from where ranks read without a copy.
    """

    def __init__(self, dispatcher, exchange, layout, x, weights, pending):
        self._dispatcher, self._exchange, self._layout = dispatcher, exchange, layout
        self._x, self._pending, self.stage = x, pending, "sent"
        self._sent_in = dispatcher.watch.exchanges[exchange]
        self.count = x.shape[0]
        self._weights = _plain(weights).copy()  # The caller's may change.

    @property
    def is_void(self):
        """Whether ranks have gone on without others since the batch was sent, so that it is lost."""
        owner = self._dispatcher
        return owner._exchanges is not None and owner.watch.exchanges.get(self._exchange) != self._sent_in

    def _require(self, name, stage):
        if self.is_void:
            raise c.ViewChanged(12, f"{name} was called on a batch of view {self._sent_in}, before ranks "
                                    "went on without others: dispatch its tokens again")
        if self.stage != stage:
            raise c.InvalidArgument(1, f"{name} was called on a batch that is {self.stage}, expected "
                                       f"it to be {stage}: send, receive, send_back, finish is the order")

    def _complete(self, name, before, after):
        """Does the second half of what made the batch `before`, and makes it `after`."""
        self._require(name, before)
        with self._dispatcher.watch:
            try:
                outcome = self._pending.finish()
            except BaseException as problem:
                if isinstance(problem, c.InvalidArgument) and not self._pending.is_done:
                    raise  # A wrong order, which counts as not made.
                again = self._pending.is_refusal or isinstance(problem, c.Refused)
                self.stage = "received" if again and before == "sent back" else "given up"
                raise
        self.stage = after
        return outcome

    def receive(self):
        """Collective: completes the dispatch. With relay batches are received in the order in which they
        were sent. Returns the batch."""
        self._received = received = self._complete("receive", "sent", "received")
        ranks, most = self._dispatcher.comm.size, self._dispatcher.max_tokens
        sums = received.counts.sum(1, dtype=numpy.int32)

        def shaped(values):
            columns = values.shape[1]
            if self._layout == "padded":  # With relay blocks may lie further apart than their rows.
                own = len(received.expert_ids)
                apart = int(received.first_rows[1, 0]) if own > 1 else ranks * most
                return values[:own * apart].reshape(own, apart, columns)[:, :ranks * most]
            if self._layout == "slots":
                return values[:ranks * most].reshape(ranks, most, columns)
            return values[:received.end]

        self.rows = view_like(self._x, shaped(received.row_data), _KINDS[self._exchange.codec])
        self._outputs = shaped(received.outputs)
        self.outputs = view_like(self._x, self._outputs, _BF16)
        self.scales = None if received.scales is None else like(self._x, shaped(received.scales))
        self.attachments = [shaped(each) for each in received.attachments if each is not None]
        if received.by_rank:
            if self._layout == "slots":
                sums = received.counts[0].astype(numpy.int32)
            else:
                used = self._slot_experts[self._slot_experts >= 0]
                sums = numpy.bincount(used, minlength=self._dispatcher.local_experts).astype(numpy.int32)
        elif self._layout == "compact":
            self.row_experts = like(self._x, numpy.repeat(
                numpy.arange(len(sums), dtype=numpy.int64), sums))
        self._sums, self.counts = sums, like(self._x, sums)
        return self

    @functools.cached_property
    def _slot_experts(self):
        return self._of_slots(self._received.slot_experts, numpy.int32(-1))

    @functools.cached_property
    def slot_experts(self):
        return like(self._x, self._slot_experts)

    @functools.cached_property
    def slot_weights(self):
        return like(self._x, self._of_slots(self._received.slot_weights, numpy.float32(0)))

    def _of_slots(self, values, missing):
        """Returns the values of the slots of rows, with slots `missing` where no row is."""
        if self._layout != "slots":
            return values[:self._received.end]
        most = self._dispatcher.max_tokens
        came = (numpy.arange(most) < self._sums[:, None]).reshape(-1, 1)
        return numpy.where(came, values[:len(came)], missing)

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
        return view_like(self._x, to_bf16(total), _BF16)

    def send_back(self, outputs=None, out=None, weights=None):
        """Collective: begins the combine, and returns where the sums will be. `outputs`, bfloat16 in the
        shape of `rows`, are copied to `outputs` of the batch; None if the experts wrote there. `finish`
        writes the sums to `out` [T, H], if that is given. `weights` [T, K] stand in for those of the
        dispatch, in layouts by expert without relay. Waits for no rank: what is wrong with arguments is
        raised by `finish`."""
        self._require("send_back", "received")
        out = empty_like(self._x, [self.count, self._exchange.hidden]) if out is None else out
        with self._dispatcher.watch:
            try:
                if outputs is not None:
                    self._place(bits_of(outputs, "outputs", self._outputs.shape))
                if weights is not None and numpy.array_equal(_plain(weights), self._weights,
                                                             equal_nan=True):
                    weights = None
            except Exception as problem:
                self.refuse_combine(problem)
                return out
            self._pending = self._exchange.start_combine(
                self._received, self.count, out, self._dispatcher.timeout, weights)
        self.stage = "sent back"
        return out

    def refuse_combine(self, problem):
        """Collective: stands for `send_back` on a rank that has found `problem`, an exception, before it
        could send outputs: `finish` raises it here and `Refused` on the others. All ranks may then send
        back again."""
        self._require("refuse_combine", "received")
        with self._dispatcher.watch:
            self._pending = self._exchange.refuse_combine(self._received, problem,
                                                          self._dispatcher.timeout)
        self.stage = "sent back"

    def _place(self, given):
        """Copies the outputs of rows that arrived to where their home ranks read them."""
        if given.ctypes.data == self._outputs.ctypes.data:
            return
        if given.ndim == 2:
            self._outputs[...] = given
        else:
            for block, rows in enumerate(self._sums):
                self._outputs[block, :rows] = given[block, :rows]

    def finish(self):
        """Collective: completes the combine and returns the sums [T, H] of this rank's tokens. If that
        raises `Refused`, or what was wrong here, all ranks may send back again."""
        return self._complete("finish", "sent back", "finished")

    def give_up(self):
        """Collective: does the second half of what was begun, so that the memory can be taken again. What
        comes is lost."""
        try:
            if self.is_void:
                pass
            elif self.stage == "sent":
                self.receive()
            elif self.stage == "sent back":
                self.finish()
        except c.Refused:
            pass
        except Exception:
            if self.stage != "received":
                raise


def _plain(values):
    """Returns float32 values of a tensor of torch, or of another array, as numpy's."""
    return numpy.asarray(values.detach() if hasattr(values, "detach") else values, numpy.float32)

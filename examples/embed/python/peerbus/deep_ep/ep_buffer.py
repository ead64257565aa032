# SPDX-License-Identifier: MIT
"""Version 2.5's EPBuffer."""

import ctypes

import numpy

from .. import _library as c
from .._tensors import (as_numpy, empty_like, given, given_to_write, is_torch, like,
                        pointer, result)
from .allocator import BufferAllocator
from .buffer_base import BufferBase, ranks_of
from .calls import Target, element_of, has_dropped, is_narrow
from .ep_handle import EPHandle
from .event import EventOverlap, forget, wait_for
from .everywhere import told_to_all
from .expanded import Expansion, fold_rows, fold_weights
from .raw import as_moved
from .results import Result, combined_of, copy, lengthened, scales_of
from .weights import WeightMover
from .words import Words


class EPBuffer(BufferBase):
    """DeepEP's EPBuffer of version 2.5 with its names.

    `group` as in `Buffer`. Sizes in bytes, queue pairs, service levels and times of GPUs are accepted
    and have no meaning here; `num_bytes` is DeepEP's figure unless it is given. Order is always
    deterministic. With `allow_multiple_reduction` an expanded dispatch sends a token once to each rank,
    which adds up its rows of the token and rounds the sum to bfloat16, as DeepEP does; without it the
    rows travel singly and are added up once, at home; the first dispatch compares what ranks have said.
    Results own their memory. The tensors of a
    `BufferAllocator` in `lb_allocation_plan_or_num_bytes` lie in memory of the buffer.
    The buffer takes memory for each form of dispatch, and more when a call has a greater
    `num_max_tokens_per_rank`, or states none and some rank has more tokens than before. `target` as in
    `Buffer`; it sees dispatches and combines. `relay` and `between` as in `peerbus.Exchange`.
    """

    def __init__(self, group=None, num_bytes=None, num_max_tokens_per_rank=0, hidden=0, num_topk=0,
                 use_fp8_dispatch=False, lb_allocation_plan_or_num_bytes=0, deterministic=False,
                 allow_hybrid_mode=True, allow_multiple_reduction=True,
                 prefer_overlap_with_compute=True, sl_idx=None, num_allocated_qps=0,
                 num_cpu_timeout_secs=300, num_gpu_timeout_secs=100, explicitly_destroy=False, *,
                 target=None, relay="never", between=0):
        super().__init__(explicitly_destroy)
        self._target = Target(target)
        self._relay = c.place("relay", relay, c.RELAYS)
        self._between = c.number(between, "between")
        plan = lb_allocation_plan_or_num_bytes
        is_plan = isinstance(plan, BufferAllocator)
        if is_plan:
            plan._require_open()
        self._join(group, num_cpu_timeout_secs)
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_bytes = num_bytes if num_bytes is not None else self.get_buffer_size_hint(
            self.num_ranks, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch,
            allow_hybrid_mode, allow_multiple_reduction)
        self.num_lb_bytes = plan.num_bytes if is_plan else plan
        self.deterministic, self.allow_hybrid_mode = deterministic, allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        # As many as DeepEP takes by itself.
        self.num_allocated_qps = num_allocated_qps or (65 if allow_hybrid_mode else 17)
        self._asked = dict(no_multiple_reduction=not allow_multiple_reduction,
                           sl_idx=sl_idx is not None)
        self._num_qps = num_allocated_qps
        self._buffers = {}  # kind: buffer of the library
        self._latest = "buffer"  # The kind that the latest call was made of.
        self._mover, self._agrees = None, False
        if is_plan:
            plan.materialize_in(self.comm)

    def destroy(self):
        """Ends the use of the buffer. Its memory is released when no handle refers to it."""
        super().destroy()
        for owner in (self._buffers or {}).values():
            forget(owner)
        self._buffers, self._mover = None, None

    @staticmethod
    def get_buffer_size_hint(group, num_max_tokens_per_rank, hidden, num_topk=0,
                             use_fp8_dispatch=False, allow_hybrid_mode=True,
                             allow_multiple_reduction=True):
        """Returns the bytes that DeepEP asks for within one NVLink domain."""
        return c.lib.peerbus_ep_buffer_size_hint(
            c.number(ranks_of(group), "group"),
            c.number(num_max_tokens_per_rank, "num_max_tokens_per_rank"),
            c.number(hidden, "hidden"), c.number(num_topk, "num_topk"), bool(use_fp8_dispatch),
            bool(allow_multiple_reduction))

    def get_theoretical_num_sms(self, num_experts, num_topk, num_scaleout_topk=0, rdma_gbs=0,
                                nvlink_gbs=0, sm_read_gbs=0, sm_write_gbs=0):
        """Returns 0, the automatic number: there are no SMs here."""
        return 0

    def get_theoretical_num_qps(self, num_sms):
        """Returns 0, the automatic number."""
        return 0

    def lb_get_theoretical_num_sms(self):
        """Returns 0, the automatic number."""
        return 0

    @staticmethod
    def _unpack_handle(handle=None):
        return (None,) * 10 if handle is None else tuple(getattr(handle, name) for name in (
            "num_recv_tokens", "num_expanded_tokens", "num_recv_tokens_per_expert_list",
            "psum_num_recv_tokens_per_scaleup_rank", "psum_num_recv_tokens_per_expert",
            "num_unaligned_recv_tokens_per_expert", "dst_buffer_slot_idx",
            "token_metadata_at_forward", "recv_src_metadata", "channel_linked_list"))

    @staticmethod
    def _unpack_bias(bias):
        biases = tuple(bias) if isinstance(bias, (tuple, list)) else (bias, None)
        if len(biases) != 2:
            raise c.InvalidArgument(1, f"bias has {len(biases)} tensors, expected one or a tuple of 2")
        return biases

    def dispatch(self, x, topk_idx=None, topk_weights=None,
                 cumulative_local_expert_recv_stats=None, num_experts=None,
                 num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0,
                 previous_event=None, async_with_compute_stream=False,
                 allocate_on_comm_stream=False, handle=None, do_handle_copy=False, do_cpu_sync=None,
                 do_expand=False, do_zero_padding=False, use_tma_aligned_col_major_sf=False,
                 defer_epilogue=False):
        """Collective: returns (recv_x or (recv_x, scales), recv_topk_idx, recv_topk_weights, handle,
        event), or with `defer_epilogue` an event whose wait returns them.

        Without `do_expand`: a row per (token, rank), by source rank, then by token. With it: a row
        per (token, local expert), by expert; recv_topk_idx is None and the weights are [M]. Rows are
        of any type; combine takes bfloat16. A false `do_cpu_sync` gives tensors of the greatest
        possible size; rows behind the received ones are -1 in recv_topk_idx and unset elsewhere.
        With `handle`, the routing is that of its dispatch, `topk_idx` must be None and `do_cpu_sync`
        not true, results have as many rows as those of its dispatch, and the same handle is returned.
        """
        call = "EPBuffer.dispatch"
        _require_async(call, defer_epilogue, async_with_compute_stream)
        everything = self._dispatch(
            call, x, topk_idx, topk_weights, cumulative_local_expert_recv_stats, num_experts,
            num_max_tokens_per_rank, expert_alignment, handle, do_cpu_sync, do_expand,
            do_zero_padding, use_tma_aligned_col_major_sf, previous_event, None,
            is_copied=do_handle_copy, do_handle_copy=do_handle_copy, num_sms=num_sms,
            num_qps=num_qps, async_finish=async_with_compute_stream,
            allocate_on_comm_stream=allocate_on_comm_stream)
        if defer_epilogue:
            return EventOverlap(results=everything)
        return (*everything, EventOverlap())

    def combine(self, x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0,
                previous_event=None, async_with_compute_stream=False,
                allocate_on_comm_stream=False, defer_epilogue=False):
        """Collective: returns (combined_x, combined_topk_weights, event), or with `defer_epilogue`
        an event whose wait returns (combined_x, combined_topk_weights). Sums are unweighted.
        `topk_weights` are [N, K], or [M] of an expanded dispatch."""
        call = "EPBuffer.combine"
        _require_async(call, defer_epilogue, async_with_compute_stream)
        combined, weights, event = self._combine(
            call, x, handle, topk_weights, bias, previous_event, None, num_sms=num_sms,
            num_qps=num_qps, async_finish=async_with_compute_stream,
            allocate_on_comm_stream=allocate_on_comm_stream)
        if defer_epilogue:
            return EventOverlap(event, results=(combined, weights))
        return combined, weights, event

    def lb_prefetch_weights(self, redundant_expert_weights, expert_weights, redundancy_mapping,
                            num_sms=0, previous_event=None):
        """Collective: fills each rank's spare slots with the weights of other ranks' experts, and
        returns an event. `redundancy_mapping` is int32 [ranks, spare slots], equal on all ranks:
        owner rank * experts of a rank + the expert's index there, or -1. The tensors are
        [spare slots, ...] and [experts of a rank, ...], or sequences of such tensors, of any types;
        an expert has whole 32 bytes in each. Ranks whose mapping, number of experts or sizes differ
        from those of rank 0 are named on all ranks, and nothing is written."""
        self._alive()
        if self._target.wanted:
            self._target.see(operation="EPBuffer.lb_prefetch_weights", ranks=self.num_ranks,
                             num_sms=num_sms, previous_event=previous_event is not None)
        wait_for(previous_event)
        self._weight_mover().move(redundant_expert_weights, expert_weights, redundancy_mapping)
        return EventOverlap()

    def lb_reduce_grads(self, redundant_expert_grads, expert_grads, redundancy_mapping, num_sms=0,
                        previous_event=None):
        """Collective: adds the gradients of spare slots to those of their experts' owners, by rank,
        then by slot, and returns an event. `redundancy_mapping` as in `lb_prefetch_weights`; the
        tensors are float32 [spare slots, any] and [experts of a rank, any], with whole 32 bytes a
        row. What differs between ranks is refused on all of them, and nothing is added."""
        self._alive()
        if self._target.name == "ascend_950":
            raise c.Error(9, "ascend_950 refuses EPBuffer.lb_reduce_grads: it is not implemented there")
        wait_for(previous_event)
        self._weight_mover().reduce(redundant_expert_grads, expert_grads, redundancy_mapping)
        return EventOverlap()

    def _weight_mover(self):
        if self._mover is None:
            self._mover = WeightMover(self.comm)
        return self._mover

    # --- what the buffers of 2.1 and 2.5 share. `options` are those that the target looks at. ---

    @told_to_all
    def _dispatch(self, call, x, topk_idx, topk_weights, stats, num_experts, most, alignment, handle,
                  do_cpu_sync, do_expand, do_zero_padding, by_column, previous_event, later_event, *,
                  is_copied, num_sms, num_qps, **options):
        """Returns (recv_x or (recv_x, scales), recv_topk_idx, recv_topk_weights, handle)."""
        self._agree(call)
        self._refusing = self._latest
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        if handle is not None:
            _require_cached(call, handle, topk_idx, do_cpu_sync, do_expand, num_experts=num_experts,
                            expert_alignment=alignment, num_max_tokens_per_rank=most)
            handle._check(call)
            topk_idx, num_experts = handle._topk_idx, handle.num_experts
            alignment, most = handle.expert_alignment, handle._most
            do_expand = handle.do_expand
        elif topk_idx is None or num_experts is None:
            raise c.InvalidArgument(1, f"{call}: topk_idx and num_experts, or a handle, are needed")
        elif is_copied:
            topk_idx = copy(topk_idx)
        if handle is None:
            most = most or self.num_max_tokens_per_rank  # 0: any number.
        alignment = alignment or 1
        if self._target.wanted:
            self._target.see(
                operation="EPBuffer.dispatch", ranks=self.num_ranks, tokens=tokens.shape[0],
                max_tokens=most or tokens.shape[0], hidden=tokens.shape[1], top_k=topk_idx.shape[1],
                experts=num_experts, element=element_of(tokens), dropped=has_dropped(topk_idx),
                num_sms=num_sms, num_qps=num_qps or self._num_qps, expert_alignment=alignment,
                handle=handle is not None, do_expand=do_expand, narrow_topk_idx=is_narrow(topk_idx),
                previous_event=previous_event is not None, **options, **self._asked)
        self._wait_for(call, previous_event, later_event, options["allocate_on_comm_stream"])
        self._turn_to(do_expand)
        form = self._dispatch_by_rank if not do_expand else \
            self._dispatch_folded if self.allow_multiple_reduction else self._dispatch_expanded
        tokens, restored = as_moved(tokens)
        (recv_x, recv_scales, recv_idx, recv_weights), members = form(
            tokens, scales, topk_idx, topk_weights, stats, num_experts, most, alignment,
            do_zero_padding)
        if handle is not None:
            handle._left = members["_left"]
        else:
            handle = EPHandle(topk_idx, is_copied, self.num_ranks, do_expand=do_expand,
                              num_experts=num_experts, expert_alignment=alignment,
                              num_sms=num_sms, _most=most, **members)
            if do_cpu_sync is not None and not do_cpu_sync:
                self._forget_counts(handle)
        recv_scales = scales_of(recv_scales, scales)
        rows = handle.num_expanded_tokens if do_expand else handle.num_recv_tokens
        recv_x, recv_scales, recv_weights = (
            lengthened(array, rows) for array in (recv_x, recv_scales, recv_weights))
        recv_x = restored(recv_x)
        if by_column:
            recv_scales = _by_column(recv_scales)
        return (recv_x if scales is None else (recv_x, recv_scales), lengthened(recv_idx, rows, -1),
                None if topk_weights is None else recv_weights, handle)

    @told_to_all
    def _combine(self, call, x, handle, topk_weights, bias, previous_event, later_event, *, num_sms,
                 num_qps, **options):
        """Returns (combined_x, combined_topk_weights, event)."""
        self._refusing = self._latest if self._agrees else None
        if not isinstance(handle, EPHandle):
            raise TypeError(f"handle is {type(handle).__name__}, expected one that a dispatch returned")
        handle._check(call)
        bias = self._unpack_bias(bias)
        if self._target.wanted:
            self._target.see(
                operation="EPBuffer.combine", ranks=self.num_ranks,
                tokens=handle._topk_idx.shape[0], max_tokens=handle.num_max_tokens_per_rank,
                hidden=x.shape[1], top_k=handle._topk_idx.shape[1], experts=handle.num_experts,
                element=element_of(x), num_sms=num_sms, num_qps=num_qps or self._num_qps,
                bias=bias != (None, None), do_expand=handle.do_expand,
                previous_event=previous_event is not None, **options, **self._asked)
        self._wait_for(call, previous_event, later_event, options["allocate_on_comm_stream"])
        self._turn_to(handle.do_expand)
        rows, slots = handle._rows, handle._slots_of_rows
        # Without do_cpu_sync the tensors are longer.
        x, weights = x[:rows], None if topk_weights is None else topk_weights[:rows]
        if slots is not None:
            x, weights = fold_rows(call, x, slots, rows), fold_weights(call, weights, slots, rows)
        is_async = options["async_finish"]
        function, args = (
            (c.lib.peerbus_normal_combine, c.NormalCombineArgs(async_finish=is_async))
            if slots is not None or not handle.do_expand else
            (c.lib.peerbus_ep_combine, c.EpCombineArgs(async_with_compute_stream=is_async)))
        args.handle = handle._left._as_parameter_
        return combined_of(self._begin(function), handle._left.owner, args, x, weights, bias,
                           is_async)

    def _agree(self, call):
        """Collective in the first dispatch: raises on all ranks if they have made the buffer with
        different options. Such ranks would use different memory, and wait for each other there."""
        if not self._agrees:
            Words(self.comm).agree(call, "the values of allow_multiple_reduction",
                                   lambda: (str(bool(self.allow_multiple_reduction)), None))
            self._agrees = True

    def _turn_to(self, do_expand):
        """Collective if the library's buffer for calls of this form is not that of the call before:
        raises on all ranks unless they all turn to it."""
        kind = "ep_buffer" if do_expand and not self.allow_multiple_reduction else "buffer"
        if kind == self._latest:
            return
        turn = getattr(c.lib, f"peerbus_{self._latest}_call_other_form")
        c.check(self._begin(turn)(self._buffer(self._latest), 0))
        self._latest = self._refusing = kind

    def _begin(self, function):
        """Returns `function` as one whose refusals the library tells the other ranks itself."""
        def call(*args):
            self._refusing = None
            return function(*args)
        return call

    def _wait_for(self, call, previous_event, later_event, allocate_on_comm_stream):
        """Waits for what a call is to wait for, under the rule of versions 2.1 and 2.5: a call that
        waits for an event must not use memory of the stream that computes."""
        if previous_event is not None and not allocate_on_comm_stream:
            raise c.InvalidArgument(1, f"{call}: previous_event is given, expected "
                                       "allocate_on_comm_stream with it")
        noted, self._refusing = self._refusing, None  # What an event raises is of an earlier call.
        wait_for(previous_event)
        wait_for(later_event)
        self._refusing = noted

    # --- the forms of a dispatch: ((rows, scales, idx, weights), members of the handle) ---

    def _buffer(self, kind):
        known = self._buffers.get(kind)
        if known is None:
            options = {"buffer": c.BufferOptions, "ep_buffer": c.EpBufferOptions}[kind](
                relay=self._relay, between=self._between)
            known = self._buffers[kind] = c.Object(kind, c.make(
                kind, getattr(c.lib, f"peerbus_{kind}_create"), self.comm, ctypes.byref(options)))
        return known

    def _dispatch_expanded(self, tokens, scales, topk_idx, topk_weights, stats, num_experts, most,
                           alignment, do_zero_padding):
        owner = self._buffer("ep_buffer")
        views = {name: given(value, name) for name, value in dict(
            x=tokens, x_scales=scales, topk_idx=topk_idx, topk_weights=topk_weights).items()}
        counter = "cumulative_local_expert_recv_stats"
        views[counter] = given_to_write(stats, counter)
        args = c.EpDispatchArgs(do_zero_padding=do_zero_padding, num_experts=num_experts,
                                expert_alignment=alignment, num_max_tokens_per_rank=most,
                                **{name: pointer(view) for name, view in views.items()})
        raw = c.EpReceived()
        c.check(self._begin(c.lib.peerbus_ep_dispatch)(owner, ctypes.byref(args), ctypes.byref(raw)))
        left = Result(owner, raw)
        arrays = {name: copy(result(getattr(raw, name), left, is_torch(tokens))) for name in (
            "recv_x", "recv_x_scales", "recv_topk_weights", "num_recv_tokens_per_expert_list",
            "psum_num_recv_tokens_per_scaleup_rank", "psum_num_recv_tokens_per_expert",
            "num_unaligned_recv_tokens_per_expert", "recv_src_metadata")}
        members = {name: arrays[name] for name in list(arrays)[4:]}
        members.update(
            num_recv_tokens=raw.num_recv_tokens, num_expanded_tokens=raw.num_expanded_tokens,
            num_max_tokens_per_rank=raw.num_max_tokens_per_rank,
            num_recv_tokens_per_expert_list=arrays["num_recv_tokens_per_expert_list"].tolist(),
            _left=left, _rows=raw.num_expanded_tokens, _slots_of_rows=None)
        return (arrays["recv_x"], arrays["recv_x_scales"], None,
                arrays["recv_topk_weights"]), members

    def _dispatch_by_rank(self, tokens, scales, topk_idx, topk_weights, stats, num_experts, most,
                          alignment, _):
        results, members, local_ids = self._exchange(
            tokens, scales, topk_idx, topk_weights, stats, num_experts, most, alignment)
        recv_x, recv_scales, recv_weights = map(copy, results)
        local_ids = copy(local_ids, str(topk_idx.dtype).rpartition(".")[2])
        return (recv_x, recv_scales, local_ids, recv_weights), members

    def _dispatch_folded(self, tokens, scales, topk_idx, topk_weights, stats, num_experts, most,
                         alignment, do_zero_padding):
        """Sends a row per (token, rank), and copies it here to each of its experts. Its combine adds
        the copies' outputs up and sends one row back."""
        (recv_x, recv_scales, recv_weights), members, local_ids = self._exchange(
            tokens, scales, topk_idx, topk_weights, stats, num_experts, most, alignment)
        local = len(members["num_recv_tokens_per_expert_list"])
        made = Expansion(as_numpy(local_ids), local, alignment)
        prefix = members["psum_num_recv_tokens_per_scaleup_rank"]
        as_numpy(members["recv_src_metadata"])[:, 2:] = made.slots
        members.update(
            psum_num_recv_tokens_per_expert=like(prefix, made.ends.astype(numpy.int32)),
            _rows=made.size, _slots_of_rows=made.slots)
        recv_scales = copy(recv_scales)  # One-byte scales arrive in whole words, with gaps.
        return (made.rows_of(recv_x, do_zero_padding), made.rows_of(recv_scales, do_zero_padding),
                None, made.weights_of(recv_weights, do_zero_padding)), members

    def _exchange(self, tokens, scales, topk_idx, topk_weights, stats, num_experts, most, alignment):
        """Sends a row per (token, rank). Returns (rows, scales, weights) and the local ids, which are
        views, and between them the members of the handle."""
        owner = self._buffer("buffer")
        local = num_experts // self.num_ranks + (self.rank_idx < num_experts % self.num_ranks)
        _require_counters(stats, local)
        ids = given(topk_idx, "topk_idx")
        counts = self._layout(owner, ids, topk_idx.shape[0], num_experts)
        if topk_weights is None:  # The library sends them together with the ids.
            topk_weights = like(topk_idx, numpy.ones(topk_idx.shape, numpy.float32))
        views = [given(tokens, "x"), given(scales, "x_scales"), given(topk_weights, "topk_weights")]
        args = c.NormalDispatchArgs(
            x=pointer(views[0]), x_scales=pointer(views[1]), num_tokens_per_rank=counts[0].pointer,
            is_token_in_rank=counts[1].pointer, num_tokens_per_expert=counts[2].pointer,
            topk_idx=pointer(ids), topk_weights=pointer(views[2]), expert_alignment=alignment,
            num_max_tokens_per_rank=most)
        raw = c.NormalReceived()
        c.check(self._begin(c.lib.peerbus_normal_dispatch)(owner, ctypes.byref(args),
                                                           ctypes.byref(raw)))
        left = Result(owner, raw)
        recv_x, recv_scales, recv_idx, recv_weights, prefix, sources = (
            result(getattr(raw, name), left, is_torch(tokens)) for name in (
                "recv_x", "recv_x_scales", "recv_topk_idx", "recv_topk_weights", "rank_prefix",
                "recv_src_idx"))
        aligned = result(raw.num_recv_tokens_per_expert_list, left, False)
        if aligned is None:  # A rank without experts.
            aligned = numpy.empty(0, numpy.int32)
        here, prefix = as_numpy(recv_idx), copy(prefix)
        unaligned = numpy.bincount(here[here >= 0], minlength=len(aligned)).astype(numpy.int32)
        if stats is not None:
            stats += like(stats, unaligned)
        ends = as_numpy(prefix)
        ranks = numpy.repeat(numpy.arange(self.num_ranks), numpy.diff(ends, prepend=0))
        metadata = numpy.full([len(ranks), topk_idx.shape[1] + 2], -1, numpy.int32)
        metadata[:, 0] = ranks * raw.num_max_tokens_per_rank + as_numpy(sources)
        if len(ranks):
            metadata[:, 1] = ranks * topk_idx.shape[1] + (here >= 0).argmax(axis=1)
        members = dict(
            psum_num_recv_tokens_per_scaleup_rank=prefix,
            psum_num_recv_tokens_per_expert=like(prefix, aligned.cumsum(dtype=numpy.int32)),
            num_unaligned_recv_tokens_per_expert=like(prefix, unaligned),
            recv_src_metadata=like(prefix, metadata), num_recv_tokens=len(ranks),
            num_max_tokens_per_rank=raw.num_max_tokens_per_rank,
            num_expanded_tokens=int(aligned.sum()), num_recv_tokens_per_expert_list=aligned.tolist(),
            _left=left, _rows=len(ranks), _slots_of_rows=None)
        return (recv_x, recv_scales, recv_weights), members, recv_idx

    def _layout(self, owner, ids, tokens, num_experts):
        """Returns views of num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert. Of ids
        that no rank may dispatch they are zeros: the dispatch looks at the ids first, and makes all
        ranks refuse them."""
        layout = c.DispatchLayout()
        try:
            c.check(c.lib.peerbus_get_dispatch_layout(
                owner, ids.pointer, c.number(num_experts, "num_experts"), ctypes.byref(layout)))
        except c.InvalidArgument as problem:
            if "num_experts is" in str(problem):
                raise
            counts = (numpy.zeros(self.num_ranks, numpy.int32),
                      numpy.zeros([tokens, self.num_ranks], numpy.bool_),
                      numpy.zeros(num_experts, numpy.int32))
        else:
            kept = Result(owner, layout)
            counts = [result(array, kept, False) for array in (
                layout.num_tokens_per_rank, layout.is_token_in_rank, layout.num_tokens_per_expert)]
        return [given(array, "topk_idx") for array in counts]

    def _forget_counts(self, handle):
        """Makes the handle one of a dispatch that does not know how many rows came."""
        most, top_k = self.num_ranks * handle.num_max_tokens_per_rank, handle._topk_idx.shape[1]
        local = len(handle.num_unaligned_recv_tokens_per_expert)
        rows = most * min(top_k, local) + (handle.expert_alignment - 1) * local
        handle.num_recv_tokens = most
        handle.num_expanded_tokens = -(-rows // handle.expert_alignment) * handle.expert_alignment
        handle.num_recv_tokens_per_expert_list = []
        handle.recv_src_metadata = lengthened(handle.recv_src_metadata, most, -1)


def _require_async(call, defer_epilogue, is_async):
    if defer_epilogue and not is_async:
        raise c.InvalidArgument(1, f"{call}: defer_epilogue is true, expected "
                                   "async_with_compute_stream with it")


def _require_cached(call, handle, topk_idx, do_cpu_sync, do_expand, **known):
    """Requires that nothing beside a handle says something else."""
    if not isinstance(handle, EPHandle):
        raise TypeError(f"handle is {type(handle).__name__}, expected one that a dispatch returned")
    if topk_idx is not None:
        raise c.InvalidArgument(1, f"{call}: topk_idx was given beside a handle, which has it")
    if do_cpu_sync:
        raise c.InvalidArgument(1, f"{call}: do_cpu_sync is true beside a handle, which knows the "
                                   "counts; expected false or None")
    if do_expand and not handle.do_expand:
        raise c.InvalidArgument(1, f"{call}: do_expand is true, but the handle is of a dispatch "
                                   "without it")
    for name, value in known.items():
        if value is not None and value != getattr(handle, name):
            raise c.InvalidArgument(1, f"{call}: {name} is {value} beside a handle, expected None or "
                                       f"the handle's, {getattr(handle, name)}")


def _require_counters(stats, local):
    """Requires counters of `local` experts, before anything is sent."""
    if stats is None:
        return
    view = given_to_write(stats, "cumulative_local_expert_recv_stats").tensor
    if view.ndim != 1 or view.shape[0] != local or (view.dtype_code, view.dtype_bits) != (0, 32):
        raise c.InvalidArgument(1, f"cumulative_local_expert_recv_stats is {stats.dtype} "
                                   f"{list(stats.shape)}, expected int32 [{local}]")


def _by_column(scales):
    """Returns scales column by column, each column of whole 16 bytes, as TMA reads them."""
    if scales is None:
        return None
    rows = len(scales)
    columns = empty_like(scales, [scales.shape[1], -(-rows // 4) * 4])
    view = columns.T[:rows]
    view[:] = scales
    return view

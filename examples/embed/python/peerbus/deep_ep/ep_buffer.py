# SPDX-License-Identifier: MIT
"""Version 2.5's EPBuffer."""

import ctypes

import numpy

from .. import _library as c
from .._tensors import (as_numpy, empty_like, given, given_to_write, is_torch, like, pointer,
                        result)
from .calls import Target, element_of, has_dropped, is_narrow
from .event import EventHandle, EventOverlap, Stream, wait_for
from .results import Result, check_stream_arguments, combined_of, copy, join, scales_of
from .weights import WeightMover


class EPHandle:
    """The routing and the counts of a dispatch, with DeepEP's names. `topk_idx` is held by reference
    and must not change as long as the handle is used. Rows of `recv_src_metadata` are, for each
    received token: source rank * num_max_tokens_per_rank + token; source rank * K + its first slot
    here; and the expanded row of each slot, or -1."""

    def __init__(self, **members):
        self.__dict__.update(members)

    def _check(self, call):
        same = self.topk_idx._version == self._seen if isinstance(self._seen, int) \
            else bool((self.topk_idx == self._seen).all())
        if not same:
            raise c.InvalidArgument(1, f"{call}: handle.topk_idx was changed after its dispatch; "
                                       "dispatch anew, or keep a copy")


class EPBuffer:
    """DeepEP's EPBuffer of version 2.5 with its names.

    `group` as in `Buffer`. Sizes in bytes, queue pairs, service levels and times of GPUs are accepted
    and have no meaning here. Order is always deterministic. Rows of a token are added up once, at
    home: `allow_multiple_reduction` allows more rounding than takes place. Results own their memory.
    The buffer takes memory for each form of dispatch and each value of `num_max_tokens_per_rank` that
    its calls use. `target` as in `Buffer`; it sees dispatches and combines.
    """

    def __init__(self, group=None, num_bytes=None, num_max_tokens_per_rank=0, hidden=0, num_topk=0,
                 use_fp8_dispatch=False, lb_allocation_plan_or_num_bytes=0, deterministic=False,
                 allow_hybrid_mode=True, allow_multiple_reduction=True,
                 prefer_overlap_with_compute=True, sl_idx=None, num_allocated_qps=0,
                 num_cpu_timeout_secs=300, num_gpu_timeout_secs=100, explicitly_destroy=False, *,
                 target=None):
        self._target = Target(target)
        self.comm, self.group = join(group, num_cpu_timeout_secs), group
        self.rank_idx, self.num_ranks = self.comm.rank, self.comm.size
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.explicitly_destroy = explicitly_destroy
        self._asked = dict(no_multiple_reduction=not allow_multiple_reduction,
                           sl_idx=sl_idx is not None)
        self._num_allocated_qps = num_allocated_qps
        self._buffers = {}  # (kind, most tokens of a rank): buffer of the library
        self._mover = None

    def destroy(self):
        """Ends the use of the buffer. Its memory is released when no handle refers to it."""
        self._buffers, self._mover = None, None

    @staticmethod
    def get_buffer_size_hint(group, num_max_tokens_per_rank, hidden, num_topk=0,
                             use_fp8_dispatch=False, allow_hybrid_mode=True,
                             allow_multiple_reduction=True):
        """Returns the bytes that DeepEP asks for within one NVLink domain."""
        if group is None or isinstance(group, int):
            ranks = group or 1
        else:
            ranks = group.size() if callable(group.size) else group.size
        return c.lib.peerbus_ep_buffer_size_hint(ranks, num_max_tokens_per_rank, hidden, num_topk,
                                                 use_fp8_dispatch, allow_multiple_reduction)

    @staticmethod
    def capture():
        """Returns an event for what this rank has called so far, all of which has ended."""
        return EventOverlap(EventHandle())

    def get_comm_stream(self):
        """Returns a stream on which nothing ever runs."""
        return Stream()

    def get_theoretical_num_sms(self, *_, **__):
        """Returns 0, the automatic number: there are no SMs here."""
        return 0

    def get_theoretical_num_qps(self, *_, **__):
        """Returns 0, the automatic number."""
        return 0

    def get_physical_domain_size(self):
        """Returns (1, ranks): every rank reaches every other by loads and stores."""
        return 1, self.num_ranks

    get_logical_domain_size = get_physical_domain_size

    def barrier(self, use_comm_stream=True, with_cpu_sync=False, sequential=True):
        """Collective: returns after all ranks have called it."""
        self._alive()
        self.comm.barrier()

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
        per (token, local expert), by expert; recv_topk_idx is None and the weights are [M].
        `do_cpu_sync=False` gives tensors of the greatest possible size; rows behind the received
        ones are -1 in recv_topk_idx and unset elsewhere. With `handle`, the routing is that of its
        dispatch and `topk_idx` must be None.
        """
        call = "EPBuffer.dispatch"
        self._alive()
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        if handle is not None:
            if topk_idx is not None or num_experts not in (None, handle.num_experts):
                raise c.InvalidArgument(1, f"{call}: topk_idx or num_experts was given beside a "
                                           "handle, which has them")
            handle._check(call)
            topk_idx, num_experts = handle.topk_idx, handle.num_experts
            expert_alignment = expert_alignment or handle.expert_alignment
            num_max_tokens_per_rank = handle.num_max_tokens_per_rank
            do_expand = do_expand or handle.do_expand
        elif topk_idx is None or num_experts is None:
            raise c.InvalidArgument(1, f"{call}: topk_idx and num_experts, or a handle, are needed")
        elif do_handle_copy:
            topk_idx = copy(topk_idx)
        most = num_max_tokens_per_rank or self.num_max_tokens_per_rank or 4096
        alignment = expert_alignment or 1
        if self._target.wanted:
            self._target.see(
                operation=call, ranks=self.num_ranks, tokens=tokens.shape[0], max_tokens=most,
                hidden=tokens.shape[1], top_k=topk_idx.shape[1], experts=num_experts,
                element=element_of(tokens), dropped=has_dropped(topk_idx), num_sms=num_sms,
                num_qps=num_qps or self._num_allocated_qps, expert_alignment=alignment,
                handle=handle is not None, do_expand=do_expand, do_handle_copy=do_handle_copy,
                narrow_topk_idx=is_narrow(topk_idx),
                previous_event=previous_event is not None, async_finish=async_with_compute_stream,
                allocate_on_comm_stream=allocate_on_comm_stream, **self._asked)
        check_stream_arguments(call, previous_event, async_with_compute_stream,
                               allocate_on_comm_stream)
        wait_for(previous_event)
        seen = _mark(topk_idx)
        form = self._dispatch_expanded if do_expand else self._dispatch_by_rank
        results, members = form(tokens, scales, topk_idx, topk_weights,
                                cumulative_local_expert_recv_stats, num_experts, most, alignment,
                                do_zero_padding)
        made = EPHandle(do_expand=do_expand, num_experts=num_experts, expert_alignment=alignment,
                        num_max_tokens_per_rank=most, num_sms=num_sms, topk_idx=topk_idx,
                        _seen=seen, **members)
        recv_x, recv_scales, recv_idx, recv_weights = results
        recv_scales = scales_of(recv_scales, scales)
        if do_cpu_sync is False:
            made.num_recv_tokens_per_expert_list = []
            rows = self._worst_rows(made, topk_idx.shape[1])
            recv_x, recv_scales, recv_weights = (
                _lengthened(array, rows) for array in (recv_x, recv_scales, recv_weights))
            recv_idx = _lengthened(recv_idx, rows, -1)
        if use_tma_aligned_col_major_sf:
            recv_scales = _by_column(recv_scales)
        if handle is not None:
            recv_idx = None
        everything = (recv_x if scales is None else (recv_x, recv_scales), recv_idx,
                      None if topk_weights is None else recv_weights, made)
        if defer_epilogue:
            return EventOverlap(results=everything)
        return (*everything, EventOverlap())

    def combine(self, x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0,
                previous_event=None, async_with_compute_stream=False,
                allocate_on_comm_stream=False, defer_epilogue=False):
        """Collective: returns (combined_x, combined_topk_weights, event), or with `defer_epilogue`
        an event whose wait returns (combined_x, combined_topk_weights). Sums are unweighted.
        `topk_weights` are [N, K], or [M] of an expanded dispatch, which can be combined once."""
        call = "EPBuffer.combine"
        self._alive()
        if not isinstance(handle, EPHandle):
            raise TypeError("handle is not one that EPBuffer.dispatch returned")
        handle._check(call)
        if self._target.wanted:
            self._target.see(
                operation=call, ranks=self.num_ranks, tokens=handle.topk_idx.shape[0],
                max_tokens=handle.num_max_tokens_per_rank, hidden=x.shape[1],
                top_k=handle.topk_idx.shape[1], experts=handle.num_experts, element=element_of(x),
                num_sms=num_sms, num_qps=num_qps or self._num_allocated_qps,
                bias=bias is not None, do_expand=handle.do_expand,
                previous_event=previous_event is not None, async_finish=async_with_compute_stream,
                allocate_on_comm_stream=allocate_on_comm_stream, **self._asked)
        check_stream_arguments(call, previous_event, async_with_compute_stream,
                               allocate_on_comm_stream)
        wait_for(previous_event)
        rows = handle._rows  # Without do_cpu_sync the tensors are longer.
        weights = None if topk_weights is None else topk_weights[:rows]
        is_async = async_with_compute_stream or defer_epilogue
        function, args = (
            (c.lib.peerbus_ep_combine, c.EpCombineArgs(async_with_compute_stream=is_async))
            if handle.do_expand else
            (c.lib.peerbus_normal_combine, c.NormalCombineArgs(async_finish=is_async)))
        args.handle = handle._left._as_parameter_
        combined, combined_weights, event = combined_of(
            function, handle._left.owner, args, x[:rows], weights, bias, is_async)
        if defer_epilogue:
            return EventOverlap(event, results=(combined, combined_weights))
        return combined, combined_weights, event

    def lb_prefetch_weights(self, redundant_expert_weights, expert_weights, redundancy_mapping,
                            num_sms=0, previous_event=None):
        """Collective: fills each rank's spare slots with the weights of other ranks' experts, and
        returns an event. `redundancy_mapping` is int32 [ranks, spare slots], equal on all ranks:
        owner rank * experts of a rank + the expert's index there, or -1. The tensors are
        [spare slots, ...] and [experts of a rank, ...], of one type; an expert has whole 32 bytes.
        Ranks whose mapping, number of experts, size or type differ from those of rank 0 are named on
        all ranks, and nothing is written."""
        self._alive()
        if self._target.wanted:
            self._target.see(operation="EPBuffer.lb_prefetch_weights", ranks=self.num_ranks,
                             num_sms=num_sms, previous_event=previous_event is not None)
        wait_for(previous_event)
        if self._mover is None:
            self._mover = WeightMover(self.comm)
        self._mover.move(redundant_expert_weights, expert_weights, redundancy_mapping)
        return EventOverlap()

    def lb_reduce_grads(self, *_, **__):
        """Refused: gradients of redundant experts are not added up here."""
        raise c.Error(9, "lb_reduce_grads: this module has no training of redundant experts")

    # --- the two forms of a dispatch: ((rows, scales, idx, weights), members of the handle) ---

    def _alive(self):
        if self._buffers is None:
            raise c.InvalidArgument(1, "the EPBuffer was destroyed")

    def _buffer(self, kind, most):
        known = self._buffers.get((kind, most))
        if known is None:
            structure = c.EpBufferOptions if kind == "ep_buffer" else c.BufferOptions
            options = structure(num_max_tokens_per_rank=most)
            known = self._buffers[kind, most] = c.Object(kind, c.make(
                kind, getattr(c.lib, f"peerbus_{kind}_create"), self.comm, ctypes.byref(options)))
        return known

    def _dispatch_expanded(self, tokens, scales, topk_idx, topk_weights, stats, num_experts, most,
                           alignment, do_zero_padding):
        owner = self._buffer("ep_buffer", most)
        views = {name: given(value, name) for name, value in dict(
            x=tokens, x_scales=scales, topk_idx=topk_idx, topk_weights=topk_weights).items()}
        counter = "cumulative_local_expert_recv_stats"
        views[counter] = given_to_write(stats, counter)
        args = c.EpDispatchArgs(do_zero_padding=do_zero_padding, num_experts=num_experts,
                                expert_alignment=alignment,
                                **{name: pointer(view) for name, view in views.items()})
        raw = c.EpReceived()
        c.check(c.lib.peerbus_ep_dispatch(owner, ctypes.byref(args), ctypes.byref(raw)))
        left = Result(owner, raw)
        arrays = {name: copy(result(getattr(raw, name), left, is_torch(tokens))) for name in (
            "recv_x", "recv_x_scales", "recv_topk_weights", "num_recv_tokens_per_expert_list",
            "psum_num_recv_tokens_per_scaleup_rank", "psum_num_recv_tokens_per_expert",
            "num_unaligned_recv_tokens_per_expert", "recv_src_metadata")}
        members = {name: arrays[name] for name in list(arrays)[4:]}
        members.update(
            num_recv_tokens=raw.num_recv_tokens, num_expanded_tokens=raw.num_expanded_tokens,
            num_recv_tokens_per_expert_list=arrays["num_recv_tokens_per_expert_list"].tolist(),
            _left=left, _rows=raw.num_expanded_tokens)
        return (arrays["recv_x"], arrays["recv_x_scales"], None,
                arrays["recv_topk_weights"]), members

    def _dispatch_by_rank(self, tokens, scales, topk_idx, topk_weights, stats, num_experts, most,
                          alignment, _):
        owner = self._buffer("buffer", most)
        ids = given(topk_idx, "topk_idx")
        counts = self._layout(owner, ids, topk_idx.shape[0], num_experts)
        if topk_weights is None:  # The library sends them together with the ids.
            topk_weights = like(topk_idx, numpy.ones(topk_idx.shape, numpy.float32))
        views = [given(tokens, "x"), given(scales, "x_scales"), given(topk_weights, "topk_weights")]
        args = c.NormalDispatchArgs(
            x=pointer(views[0]), x_scales=pointer(views[1]), num_tokens_per_rank=counts[0].pointer,
            is_token_in_rank=counts[1].pointer, num_tokens_per_expert=counts[2].pointer,
            topk_idx=pointer(ids), topk_weights=pointer(views[2]), expert_alignment=alignment)
        raw = c.NormalReceived()
        c.check(c.lib.peerbus_normal_dispatch(owner, ctypes.byref(args), ctypes.byref(raw)))
        left = Result(owner, raw)
        recv_x, recv_scales, recv_idx, recv_weights, prefix, sources = (
            copy(result(getattr(raw, name), left, is_torch(tokens))) for name in (
                "recv_x", "recv_x_scales", "recv_topk_idx", "recv_topk_weights", "rank_prefix",
                "recv_src_idx"))
        aligned = result(raw.num_recv_tokens_per_expert_list, left, False)
        if aligned is None:  # A rank without experts.
            aligned = numpy.empty(0, numpy.int32)
        here = as_numpy(recv_idx)
        unaligned = numpy.bincount(here[here >= 0], minlength=len(aligned)).astype(numpy.int32)
        if stats is not None:
            stats += like(stats, unaligned)
        ends = as_numpy(prefix)
        ranks = numpy.repeat(numpy.arange(self.num_ranks), numpy.diff(ends, prepend=0))
        metadata = numpy.full([len(ranks), topk_idx.shape[1] + 2], -1, numpy.int32)
        metadata[:, 0] = ranks * most + as_numpy(sources)
        if len(ranks):
            metadata[:, 1] = ranks * topk_idx.shape[1] + (here >= 0).argmax(axis=1)
        members = dict(
            psum_num_recv_tokens_per_scaleup_rank=prefix,
            psum_num_recv_tokens_per_expert=like(prefix, aligned.cumsum(dtype=numpy.int32)),
            num_unaligned_recv_tokens_per_expert=like(prefix, unaligned),
            recv_src_metadata=like(prefix, metadata), num_recv_tokens=len(ranks),
            num_expanded_tokens=0, num_recv_tokens_per_expert_list=aligned.tolist(), _left=left,
            _rows=len(ranks))
        return (recv_x, recv_scales, recv_idx, recv_weights), members

    def _layout(self, owner, ids, tokens, num_experts):
        """Returns views of num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert. Of ids
        that no rank may dispatch they are zeros: the dispatch looks at the ids first, and makes all
        ranks refuse them."""
        layout = c.DispatchLayout()
        try:
            c.check(c.lib.peerbus_get_dispatch_layout(owner, ids.pointer, num_experts,
                                                      ctypes.byref(layout)))
        except c.InvalidArgument:
            counts = (numpy.zeros(self.num_ranks, numpy.int32),
                      numpy.zeros([tokens, self.num_ranks], numpy.bool_),
                      numpy.zeros(num_experts, numpy.int32))
        else:
            kept = Result(owner, layout)
            counts = [result(array, kept, False) for array in (
                layout.num_tokens_per_rank, layout.is_token_in_rank, layout.num_tokens_per_expert)]
        return [given(array, "topk_idx") for array in counts]

    def _worst_rows(self, handle, top_k):
        """Returns the rows of a dispatch that does not know how many came."""
        rows = self.num_ranks * handle.num_max_tokens_per_rank
        if not handle.do_expand:
            return rows
        local = len(handle.num_unaligned_recv_tokens_per_expert)
        rows = rows * min(top_k, local) + (handle.expert_alignment - 1) * local
        return -(-rows // handle.expert_alignment) * handle.expert_alignment


def _mark(topk_idx):
    """Returns a value that tells later whether the ids have changed: the version that torch counts,
    or a copy of ids that have none, which are numpy arrays and tensors of the inference mode."""
    if is_torch(topk_idx) and not topk_idx.is_inference():
        return topk_idx._version
    return copy(topk_idx)


def _lengthened(array, rows, fill=None):
    if array is None:
        return None
    longer = empty_like(array, [rows, *array.shape[1:]])
    longer[:len(array)] = array
    if fill is not None:
        longer[len(array):] = fill
    return longer


def _by_column(scales):
    """Returns scales column by column, each column of whole 16 bytes, as TMA reads them."""
    if scales is None:
        return None
    rows = len(scales)
    columns = empty_like(scales, [scales.shape[1], -(-rows // 4) * 4])
    view = columns.T[:rows]
    view[:] = scales
    return view

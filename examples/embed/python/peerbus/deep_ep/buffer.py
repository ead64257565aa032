# SPDX-License-Identifier: MIT
"""DeepEP's Buffer."""

import ctypes
import os

import numpy

from .. import Communicator, _library as c
from .._tensors import (as_numpy, empty_like, given, given_to_write, is_torch, like, pointer,
                        result)
from .calls import Target, element_of, has_dropped, has_gaps, is_narrow
from .config import Config
from .event import EventHandle, EventOverlap, comm_stream, forget, wait_for
from .everywhere import refused_everywhere, tell
from .raw import as_moved
from .results import (Handle, Result, biases_of, check_stream_arguments, combined_of, copy,
                      refuse, result_of, scales_of)
from .runtime import Runtime
from .strict import Guard


class Buffer:
    """DeepEP's Buffer with its names.

    `group` is a process group of torch.distributed, of one host or several; a
    `peerbus.Communicator`; or None, for the processes that a launcher started. Sizes in bytes,
    modes, queue pairs and links are kept as attributes and have no meaning here: the shape of each
    call says how much memory it needs. `check` and `target` compare `low_latency_mode` and the
    sizes with the calls. Two low-latency results of a shape are valid at a time; those of
    normal mode are copies.

    `num_max_tokens_per_rank` is how many tokens of a rank a normal dispatch first takes memory for; if
    a rank has more, all ranks take more in that call. `zero_copy=False` saves memory
    if no combine uses it. `target` (or the variable PEERBUS_TARGET) names a platform whose refusals
    are raised here. `strict` (or PEERBUS_STRICT=1) makes all ranks refuse a low-latency dispatch
    that would overwrite a result which some rank still refers to; making the buffer is then
    collective. `relay` and `between` as in `peerbus.Exchange`. `same_bits` refuses normal dispatches and
    relay "always", by which a token's result would depend on other ranks or tokens.
    """

    num_sms = 20

    def __init__(self, group=None, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False,
                 num_qps_per_rank=24, allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False,
                 explicitly_destroy=False, enable_shrink=False, comm=None, *,
                 num_max_tokens_per_rank=4096, zero_copy=True, target=None, strict=None,
                 relay="never", same_bits=False, timeout=None, between=0):
        self._target = Target(target)
        self._made_with = {"no_low_latency_mode": not low_latency_mode,
                           "num_nvl_bytes": num_nvl_bytes, "num_rdma_bytes": num_rdma_bytes}
        refuse("Buffer", "give the process group as `group`", comm=comm)
        self.comm, self.group = Communicator.of_group(group, timeout), group
        self.rank, self.group_size = self.comm.rank, self.comm.size
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.enable_shrink = low_latency_mode, enable_shrink
        self.explicitly_destroy = explicitly_destroy
        self.nvshmem_qp_depth = int(os.environ.get("NVSHMEM_QP_DEPTH", "1024"))
        self.runtime = Runtime(self.rank, self.group_size)
        self._nodes = self.runtime.get_num_rdma_ranks()
        options = c.BufferOptions(zero_copy=int(zero_copy), enable_shrink=int(enable_shrink),
                                  num_max_tokens_per_rank=num_max_tokens_per_rank,
                                  relay=c.place("relay", relay, c.RELAYS), same_bits=int(same_bits),
                                  between=c.number(between, "between"),
                                  skip_other_ids=int(self._target.is_v1))
        # Results hold it too, so that their memory stays valid after `destroy`.
        self._owner = c.Object("buffer", c.make("buffer", c.lib.peerbus_buffer_create, self.comm,
                                                ctypes.byref(options)))
        self._as_parameter_ = self._owner._as_parameter_
        if strict is None:
            strict = os.environ.get("PEERBUS_STRICT", "0") == "1"
        self._guard = Guard(self.comm) if strict else None

    def destroy(self):
        """Ends the use of the buffer. Its memory is released when no result refers to it, and this rank has
        then left the group, unless that was given as a communicator."""
        forget(self._owner)
        self._owner, self._as_parameter_, self._guard = None, ctypes.c_void_p(), None
        self.runtime = None
        if self.comm is not self.group:
            self.comm.destroy()

    # --- sizes, streams and settings ---

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks,
                                       num_experts):
        """Returns the bytes that DeepEP asks for."""
        return c.lib.peerbus_low_latency_rdma_size_hint(
            c.number(num_max_dispatch_tokens_per_rank, "num_max_dispatch_tokens_per_rank"),
            c.number(hidden, "hidden"), c.number(num_ranks, "num_ranks"),
            c.number(num_experts, "num_experts"))

    @staticmethod
    def get_dispatch_config(num_ranks):
        """Returns a `Config`. DeepEP's is tuned to the number of ranks; there is nothing to tune."""
        return Config(Buffer.num_sms)

    get_combine_config = get_dispatch_config

    @staticmethod
    def set_num_sms(new_num_sms):
        """Keeps the number for `get_dispatch_config`. There are no SMs here."""
        Buffer.num_sms = Config(new_num_sms)._members.num_sms

    @staticmethod
    def is_sm90_compiled():
        """Returns True: fp8 and the low-latency mode are there."""
        return True

    @staticmethod
    def capture():
        """Returns an event for what this rank has called so far, all of which has ended."""
        return EventOverlap(EventHandle())

    def get_comm_stream(self):
        """Returns the stream whose `synchronize` completes the results of asynchronous calls."""
        return comm_stream

    def get_local_buffer_tensor(self, dtype, size=None, offset=0, use_rdma_buffer=False):
        """Refused: there is no buffer of raw bytes."""
        raise c.Error(9, "get_local_buffer_tensor: there is no buffer of raw bytes; results are "
                         "tensors of their own")

    # --- low-latency mode ---

    @refused_everywhere(low_latency=True)
    def low_latency_dispatch(self, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts,
                             cumulative_local_expert_recv_stats=None,
                             dispatch_wait_recv_cost_stats=None, use_fp8=True, round_scale=False,
                             use_ue8m0=False, async_finish=False, return_recv_hook=False,
                             topk_weights=None):
        """Collective: returns (recv_x or (recv_x, scales), recv_count, handle, event, hook), and
        with `topk_weights` also the weight and the source rank of each row, [L, R*B]. The arrays
        are views of the buffer, valid until the second next dispatch of the same shape, whatever its
        `num_max_dispatch_tokens_per_rank`."""
        views = (given(x, "x"), given(topk_idx, "topk_idx"),
                 given_to_write(cumulative_local_expert_recv_stats,
                                "cumulative_local_expert_recv_stats"),
                 given_to_write(dispatch_wait_recv_cost_stats, "dispatch_wait_recv_cost_stats"),
                 given(topk_weights, "topk_weights"))
        if self._target.wanted:
            self._target.see(
                operation="low_latency_dispatch", ranks=self.group_size, tokens=x.shape[0],
                max_tokens=num_max_dispatch_tokens_per_rank, hidden=x.shape[1],
                top_k=topk_idx.shape[1], experts=num_experts, element=element_of(x),
                dropped=has_dropped(topk_idx), narrow_topk_idx=is_narrow(topk_idx),
                use_fp8=use_fp8, round_scale=round_scale,
                use_ue8m0=use_ue8m0, async_finish=async_finish, return_recv_hook=return_recv_hook,
                cumulative_statistics=cumulative_local_expert_recv_stats is not None,
                wait_statistics=dispatch_wait_recv_cost_stats is not None,
                topk_weights=topk_weights is not None, **self._made_with)
        shape = None
        if self._guard is not None:
            shape = (bool(use_fp8), bool(round_scale), bool(use_ue8m0), x.shape[1],
                     topk_idx.shape[1], num_experts, topk_weights is not None)
            self._begun = True  # On all ranks, which leave the guard alike.
            self._guard.before(shape)
        args = c.LowLatencyDispatchArgs(
            use_fp8=use_fp8, round_scale=round_scale, use_ue8m0=use_ue8m0,
            async_finish=async_finish, return_recv_hook=return_recv_hook,
            x=pointer(views[0]), topk_idx=pointer(views[1]),
            cumulative_local_expert_recv_stats=pointer(views[2]),
            dispatch_wait_recv_cost_stats=pointer(views[3]),
            num_max_dispatch_tokens_per_rank=num_max_dispatch_tokens_per_rank,
            num_experts=num_experts, topk_weights=pointer(views[4]))
        raw = c.LowLatencyReceived()
        self._begun = True
        c.check(c.lib.peerbus_low_latency_dispatch(self, ctypes.byref(args), ctypes.byref(raw)))
        left = Result(self._owner, raw, views if async_finish or return_recv_hook else None)
        if shape is not None:
            self._guard.add(shape, left)
        like_torch = is_torch(x)
        recv_x = result(raw.recv_x, left, like_torch)
        scales = result(raw.recv_x_scales, left, like_torch)
        handle = Handle((result(raw.src_info, left, like_torch),
                         result(raw.layout_range, left, like_torch),
                         num_max_dispatch_tokens_per_rank, x.shape[1], num_experts), left)
        made = ((recv_x, scales) if use_fp8 else recv_x, result(raw.recv_count, left, like_torch),
                handle, EventOverlap(left if async_finish else None),
                left.wait if return_recv_hook else None)
        if topk_weights is None:
            return made
        return (*made, result(raw.recv_topk_weights, left, like_torch),
                result(raw.recv_rank_info, left, like_torch))

    @refused_everywhere(low_latency=True)
    def low_latency_combine(self, x, topk_idx, topk_weights, handle, use_logfmt=False,
                            zero_copy=False, async_finish=False, return_recv_hook=False, out=None,
                            combine_wait_recv_cost_stats=None):
        """Collective: returns (combined_x, event, hook). `combined_x` is `out`, or a view of the
        buffer that is valid as long as the results of the dispatch; that of a further combine of the
        handle owns its memory. With `zero_copy`, the outputs are those in
        `get_next_low_latency_combine_buffer(handle)`, and `x` only has their shape."""
        dispatched = result_of(handle)
        if out is None and dispatched.is_combined:
            out = empty_like(x, [topk_idx.shape[0], handle[3]])
        if self._target.wanted:
            self._target.see(
                operation="low_latency_combine", ranks=self.group_size, tokens=topk_idx.shape[0],
                max_tokens=handle[2], hidden=handle[3], top_k=topk_idx.shape[1], experts=handle[4],
                element=element_of(x), dropped=has_dropped(topk_idx),
                narrow_topk_idx=is_narrow(topk_idx), gaps_in_x=has_gaps(x), use_logfmt=use_logfmt,
                zero_copy=zero_copy, out=out is not None, async_finish=async_finish,
                return_recv_hook=return_recv_hook,
                wait_statistics=combine_wait_recv_cost_stats is not None, **self._made_with)
        if zero_copy:  # DeepEP takes the outputs from their place, wherever x is.
            place = self.get_next_low_latency_combine_buffer(handle)
            if x.shape == place.shape and x.dtype == place.dtype:
                x = place
        views = (given(x, "x"), given(topk_idx, "topk_idx"), given(topk_weights, "topk_weights"),
                 given_to_write(out, "out"),
                 given_to_write(combine_wait_recv_cost_stats, "combine_wait_recv_cost_stats"))
        args = c.LowLatencyCombineArgs(
            zero_copy=zero_copy, use_logfmt=use_logfmt, async_finish=async_finish,
            return_recv_hook=return_recv_hook, handle=dispatched._as_parameter_,
            x=pointer(views[0]), topk_idx=pointer(views[1]), topk_weights=pointer(views[2]),
            out=pointer(views[3]),
            combine_wait_recv_cost_stats=pointer(views[4]))
        raw = c.Combined()
        self._begun = True
        c.check(c.lib.peerbus_low_latency_combine(self, ctypes.byref(args), ctypes.byref(raw)))
        left = Result(self._owner, raw, views if async_finish or return_recv_hook else None)
        dispatched.is_combined = True
        if self._guard is not None and out is None:
            self._guard.add_to(dispatched, left)
        combined = out if out is not None else result(raw.combined_x, left, is_torch(x))
        return (combined, EventOverlap(left if async_finish else None),
                left.wait if return_recv_hook else None)

    def get_next_low_latency_combine_buffer(self, handle):
        """Returns the place for outputs of a `zero_copy` combine, [L, R*B, H]."""
        raw, left = c.Array(), result_of(handle)
        c.check(c.lib.peerbus_low_latency_combine_buffer(self, left, ctypes.byref(raw)))
        return result(raw, left, is_torch(handle[0]))

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank, hidden, num_experts):
        """Collective: returns after all ranks have called it. Nothing needs cleaning, and results
        stay valid."""
        if self._owner is None:
            raise c.InvalidArgument(1, "the buffer was destroyed")
        c.check(c.lib.peerbus_low_latency_barrier(self, 0))

    def low_latency_update_mask_buffer(self, rank_to_mask, mask=False):
        """Masks or unmasks a rank for calls of this rank. Needs `enable_shrink`. A rank that has died or left
        is masked by the low-latency call that finds out, which goes on without it, and stays masked."""
        c.check(c.lib.peerbus_low_latency_mask(self, c.number(rank_to_mask, "rank_to_mask"),
                                               int(bool(mask))))

    def low_latency_query_mask_buffer(self, mask_status):
        """Writes the masks of all ranks to `mask_status`, int32 [R]."""
        view = given_to_write(mask_status, "mask_status")
        c.check(c.lib.peerbus_low_latency_masks(self, pointer(view)))

    def low_latency_clean_mask_buffer(self):
        """Unmasks all ranks but those that are gone."""
        for rank in range(self.group_size):
            self.low_latency_update_mask_buffer(rank, False)

    # --- normal mode ---

    def get_dispatch_layout(self, topk_idx, num_experts, previous_event=None, async_finish=False,
                            allocate_on_comm_stream=False):
        """Returns (num_tokens_per_rank, num_tokens_per_rdma_rank, num_tokens_per_expert,
        is_token_in_rank, event). The second is None if `runtime` counts one node. Ids outside
        0 to `num_experts` - 1 are skipped; a `target` other than DeepEP's refuses those above."""
        check_stream_arguments("get_dispatch_layout", previous_event, async_finish,
                               allocate_on_comm_stream)
        wait_for(previous_event)
        view, raw = given(topk_idx, "topk_idx"), c.DispatchLayout()
        c.check(c.lib.peerbus_get_dispatch_layout(
            self, pointer(view), c.number(num_experts, "num_experts"), ctypes.byref(raw)))
        left = Result(self._owner, raw)
        per_rank, per_expert, in_rank = (result(array, left, is_torch(topk_idx)) for array in (
            raw.num_tokens_per_rank, raw.num_tokens_per_expert, raw.is_token_in_rank))
        return per_rank, self._per_node(in_rank), per_expert, in_rank, EventOverlap()

    @refused_everywhere(low_latency=False)
    def dispatch(self, x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None,
                 is_token_in_rank=None, num_tokens_per_expert=None, topk_idx=None,
                 topk_weights=None, expert_alignment=1, num_worst_tokens=0, config=None,
                 previous_event=None, async_finish=False, allocate_on_comm_stream=False):
        """Collective: returns (recv_x or (recv_x, scales), recv_topk_idx, recv_topk_weights,
        num_recv_tokens_per_expert_list, handle, event). The arrays are copies. Rows are of any type;
        combine takes bfloat16. With `handle`, the
        routing is that of its dispatch: all results but recv_x and the event are None, and the
        counts, `expert_alignment` and `num_worst_tokens` have no effect. All results have the
        `num_worst_tokens` rows of the handle's dispatch, if it had that."""
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        _check_config("dispatch", config)
        check_stream_arguments("dispatch", previous_event, async_finish, allocate_on_comm_stream)
        if handle is not None:  # It has the routing, and no list comes back.
            num_tokens_per_rank = num_tokens_per_rdma_rank = is_token_in_rank = None
            num_tokens_per_expert, expert_alignment, num_worst_tokens = None, 1, 0
        self._check_per_node(num_tokens_per_rdma_rank, is_token_in_rank)
        # A cached call has the routing of its handle.
        routed = result_of(handle).call if handle is not None else {
            "tokens": tokens.shape[0], "top_k": 0 if topk_idx is None else topk_idx.shape[1],
            "experts": 0 if num_tokens_per_expert is None else len(num_tokens_per_expert),
            "dropped": self._target.wanted and has_dropped(
                topk_idx, None if num_tokens_per_expert is None else len(num_tokens_per_expert)),
            "narrow_topk_idx": is_narrow(topk_idx)}
        # Without the tensors of a layout or a handle the library refuses the call, whose sizes these
        # are not.
        if self._target.wanted and (handle is not None or num_tokens_per_expert is not None):
            self._target.see(
                operation="dispatch", ranks=self.group_size, hidden=tokens.shape[1],
                element=element_of(tokens), handle=handle is not None,
                expert_alignment=expert_alignment, num_worst_tokens=num_worst_tokens,
                config=config is not None, previous_event=previous_event is not None,
                async_finish=async_finish, allocate_on_comm_stream=allocate_on_comm_stream, **routed,
                **self._made_with)
        self._wait_for(previous_event)
        tokens, restored = as_moved(tokens)
        values = dict(x=tokens, x_scales=scales, num_tokens_per_rank=num_tokens_per_rank,
                      is_token_in_rank=is_token_in_rank,
                      num_tokens_per_expert=num_tokens_per_expert, topk_idx=topk_idx,
                      topk_weights=topk_weights)
        views = {name: given(value, name) for name, value in values.items()}
        args = c.NormalDispatchArgs(
            handle=None if handle is None else result_of(handle)._as_parameter_,
            expert_alignment=expert_alignment, num_worst_tokens=num_worst_tokens,
            **{name: pointer(view) for name, view in views.items()})
        raw = c.NormalReceived()
        self._begun = True
        c.check(c.lib.peerbus_normal_dispatch(self, ctypes.byref(args), ctypes.byref(raw)))
        left = Result(self._owner, raw)
        left.call = routed

        def taken(name, dtype=None):
            return copy(result(getattr(raw, name), left, is_torch(tokens)), dtype)

        recv_x = restored(taken("recv_x"))
        if scales is not None:
            recv_x = (recv_x, scales_of(taken("recv_x_scales"), scales))
        if handle is not None:
            return recv_x, None, None, None, None, EventOverlap()
        counts = taken("num_recv_tokens_per_expert_list")
        members = self._members(taken("rank_prefix"), taken("recv_src_idx"),
                                taken("is_token_in_rank"))
        return (recv_x, taken("recv_topk_idx", "int32" if is_narrow(topk_idx) else None),
                taken("recv_topk_weights"), [] if counts is None else counts.tolist(),
                Handle(members, left), EventOverlap())

    @refused_everywhere(low_latency=False)
    def combine(self, x, handle, topk_weights=None, bias=None, config=None, previous_event=None,
                async_finish=False, allocate_on_comm_stream=False):
        """Collective: returns (combined_x, combined_topk_weights, event). The arrays own their
        memory; with `async_finish` it is filled by the event's wait, which must come before the
        second next dispatch of the same shape."""
        _check_config("combine", config)
        check_stream_arguments("combine", previous_event, async_finish, allocate_on_comm_stream)
        dispatched = result_of(handle)
        if self._target.wanted:
            self._target.see(
                operation="combine", ranks=self.group_size, hidden=x.shape[1],
                element=element_of(x), gaps_in_x=has_gaps(x), bias=bias is not None,
                config=config is not None, previous_event=previous_event is not None,
                async_finish=async_finish, allocate_on_comm_stream=allocate_on_comm_stream,
                **{name: value for name, value in dispatched.call.items()
                   if name not in ("dropped", "narrow_topk_idx")}, **self._made_with)
        self._wait_for(previous_event)
        return combined_of(
            self._begin(c.lib.peerbus_normal_combine), self._owner, c.NormalCombineArgs(
                async_finish=async_finish, handle=dispatched._as_parameter_),
            x, topk_weights, bias, async_finish)

    def _begin(self, function):
        """Returns `function` as one that notes that the call is the library's from then on."""
        def call(*args):
            self._begun = True
            return function(*args)
        return call

    def _wait_for(self, event):
        self._begun = True  # What the event raises is of an earlier call.
        wait_for(event)
        self._begun = False

    def _tell_refusal(self, low_latency, why):
        if low_latency and self._guard is not None and why.startswith("low_latency_dispatch"):
            self._guard.before(None)  # The other ranks are there first.
        tell(c.lib.peerbus_buffer_refuse, self, int(low_latency), why=why)

    def internode_dispatch(self, x, handle=None, num_tokens_per_rank=None,
                           num_tokens_per_rdma_rank=None, is_token_in_rank=None,
                           num_tokens_per_expert=None, topk_idx=None, topk_weights=None,
                           expert_alignment=1, config=None, previous_event=None,
                           async_finish=False, allocate_on_comm_stream=False):
        """The same as `dispatch`, which DeepEP calls so between nodes."""
        return self.dispatch(x, handle, num_tokens_per_rank, num_tokens_per_rdma_rank,
                             is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights,
                             expert_alignment, 0, config, previous_event, async_finish,
                             allocate_on_comm_stream)

    internode_combine = combine

    @staticmethod
    def _unpack_bias(bias):
        """Returns the two biases of a combine, None for each that was not given."""
        return biases_of(bias)

    def _members(self, prefix, sources, in_rank):
        """Returns the members of DeepEP's handle, 6 or between its nodes 10. Those that number its
        channels and queues are None. Of rank_prefix_matrix, [R, R], only this rank's column is known
        here; others are -1."""
        if self._nodes > 1:
            return in_rank, None, None, None, None, None, prefix, sources, None, None
        matrix = empty_like(prefix, [self.group_size, self.group_size])
        matrix[:] = -1
        matrix[:, self.rank] = prefix
        return matrix, None, None, sources, in_rank, None

    def _per_node(self, in_rank):
        """Returns how many tokens go to each node of DeepEP, int32, or None for one node."""
        if self._nodes == 1:
            return None
        by_node = as_numpy(in_rank).reshape(-1, self._nodes, self.group_size // self._nodes)
        return like(in_rank, by_node.any(2).sum(0, dtype=numpy.int32))

    def _check_per_node(self, counts, in_rank):
        """Raises if num_tokens_per_rdma_rank is not what the layout gave."""
        if counts is None:
            return
        if self._nodes == 1:
            refuse("dispatch", "all ranks are in one node; leave it out",
                   num_tokens_per_rdma_rank=counts)
        expected = None if in_rank is None else as_numpy(self._per_node(in_rank)).tolist()
        if expected is not None and as_numpy(counts).tolist() != expected:
            raise c.InvalidArgument(1, "dispatch: num_tokens_per_rdma_rank is "
                                       f"{as_numpy(counts).tolist()}, expected {expected} by "
                                       "is_token_in_rank")


def _check_config(call, config):
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"{call}: config is {type(config).__name__}, expected a Config")

# SPDX-License-Identifier: MIT
"""DeepEP's Buffer."""

import ctypes
import os

from .. import Communicator
from .. import _library as c
from .._tensors import given, is_torch, pointer, result

TARGETS = ("unrestricted", "deepep_v1", "ascend_a2", "ascend_a3")


class _Result(c.Object):
    """What a call leaves in the library: its handle, event or hook. Keeps the call's arguments alive
    until it is complete."""

    def __init__(self, buffer, raw, arguments):
        super().__init__("result", ctypes.c_void_p(raw.result))
        self.buffer, self.arguments = buffer, arguments

    def wait(self):
        c.check(c.lib.peerbus_result_wait(self))
        self.arguments = None


class EventOverlap:
    """DeepEP's EventOverlap. The results of a call with `async_finish` are valid after
    `current_stream_wait`."""

    def __init__(self, event=None, extra_tensors=None):
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self):
        """Completes the results. Waiting again has no effect."""
        if self.event is not None:
            self.event.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.current_stream_wait()


class Buffer(c.Object):
    """DeepEP's Buffer with its names. No argument is ignored: what has no meaning here must have its
    default.

    `group` is a `peerbus.Communicator`; a process group of torch.distributed, whose ranks are on
    this host; or None, for the processes that a launcher started. Sizes in bytes are accepted and
    not used: the shape of each call says how much memory it needs. Two low-latency results are valid
    at a time. `num_max_tokens_per_rank` is the most tokens of a normal dispatch.
    """

    def __init__(self, group=None, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False,
                 num_qps_per_rank=24, allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False,
                 explicitly_destroy=False, enable_shrink=False, *, num_max_tokens_per_rank=4096,
                 zero_copy=True, target=None, timeout=None):
        target = target or os.environ.get("PEERBUS_TARGET", "unrestricted")
        if target not in TARGETS:
            raise ValueError(f"target is {target!r}, expected one of {', '.join(TARGETS)}")
        self.comm = group if isinstance(group, Communicator) else _join(group, timeout)
        self.group, self.explicitly_destroy = group, explicitly_destroy
        self.rank, self.group_size = self.comm.rank, self.comm.size
        options = c.BufferOptions(target=TARGETS.index(target), zero_copy=int(zero_copy),
                                  enable_shrink=int(enable_shrink),
                                  num_max_tokens_per_rank=num_max_tokens_per_rank)
        super().__init__("buffer", c.make("buffer", c.lib.peerbus_buffer_create, self.comm,
                                          ctypes.byref(options)))

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks,
                                       num_experts):
        """Returns the bytes that DeepEP asks for."""
        return c.lib.peerbus_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden,
                                                        num_ranks, num_experts)

    # --- low-latency mode ---

    def low_latency_dispatch(self, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts,
                             cumulative_local_expert_recv_stats=None,
                             dispatch_wait_recv_cost_stats=None, use_fp8=True, round_scale=False,
                             use_ue8m0=False, async_finish=False, return_recv_hook=False):
        """Collective: returns (recv_x or (recv_x, scales), recv_count, handle, event, hook). The
        arrays are views of the buffer, valid until the second next dispatch of the same shape."""
        views = [given(x, "x"), given(topk_idx, "topk_idx"),
                 given(cumulative_local_expert_recv_stats, "cumulative_local_expert_recv_stats"),
                 given(dispatch_wait_recv_cost_stats, "dispatch_wait_recv_cost_stats")]
        args = c.LowLatencyDispatchArgs(
            use_fp8=int(use_fp8), round_scale=int(round_scale), use_ue8m0=int(use_ue8m0),
            async_finish=int(async_finish), return_recv_hook=int(return_recv_hook),
            x=pointer(views[0]), topk_idx=pointer(views[1]),
            cumulative_local_expert_recv_stats=pointer(views[2]),
            dispatch_wait_recv_cost_stats=pointer(views[3]),
            num_max_dispatch_tokens_per_rank=num_max_dispatch_tokens_per_rank,
            num_experts=num_experts)
        raw = c.LowLatencyReceived()
        c.check(c.lib.peerbus_low_latency_dispatch(self, ctypes.byref(args), ctypes.byref(raw)))
        left = _Result(self, raw, views)
        arrays = [result(array, left, is_torch(x)) for array in
                  (raw.recv_x, raw.recv_x_scales, raw.recv_count, raw.src_info, raw.layout_range)]
        recv_x, scales, recv_count, src_info, layout_range = arrays
        handle = (src_info, layout_range, num_max_dispatch_tokens_per_rank, x.shape[1], num_experts,
                  left)
        return ((recv_x, scales) if use_fp8 else recv_x, recv_count, handle,
                EventOverlap(left if async_finish else None),
                left.wait if return_recv_hook else None)

    def low_latency_combine(self, x, topk_idx, topk_weights, handle, use_logfmt=False,
                            zero_copy=False, async_finish=False, return_recv_hook=False, out=None,
                            combine_wait_recv_cost_stats=None):
        """Collective: returns (combined_x, event, hook)."""
        if use_logfmt:
            raise c.Error(9, "low_latency_combine: use_logfmt: outputs travel as bf16; leave it out")
        names = ("x", "topk_idx", "topk_weights", "out", "combine_wait_recv_cost_stats")
        views = {name: given(value, name) for name, value in zip(
            names, (x, topk_idx, topk_weights, out, combine_wait_recv_cost_stats))}
        args = c.LowLatencyCombineArgs(
            zero_copy=int(zero_copy), async_finish=int(async_finish),
            return_recv_hook=int(return_recv_hook), handle=_left(handle)._as_parameter_,
            **{name: pointer(view) for name, view in views.items()})
        raw = c.Combined()
        c.check(c.lib.peerbus_low_latency_combine(self, ctypes.byref(args), ctypes.byref(raw)))
        left = _Result(self, raw, views)
        combined = out if out is not None else result(raw.combined_x, left, is_torch(x))
        return (combined, EventOverlap(left if async_finish else None),
                left.wait if return_recv_hook else None)

    def get_next_low_latency_combine_buffer(self, handle):
        """Returns the place for outputs of a `zero_copy` combine, [L, R*B, H]."""
        raw, left = c.Array(), _left(handle)
        c.check(c.lib.peerbus_low_latency_combine_buffer(self, left, ctypes.byref(raw)))
        return result(raw, left, is_torch(handle[0]))

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank, hidden, num_experts):
        """Collective: frees the memory of other shapes. Nothing needs cleaning."""
        c.check(c.lib.peerbus_low_latency_clean(self, num_max_dispatch_tokens_per_rank, hidden,
                                                num_experts))

    def low_latency_update_mask_buffer(self, rank_to_mask, mask=False):
        """Masks or unmasks a rank for calls of this rank. Needs `enable_shrink`."""
        c.check(c.lib.peerbus_low_latency_mask(self, rank_to_mask, int(mask)))

    def low_latency_query_mask_buffer(self, mask_status):
        """Writes the masks of all ranks to `mask_status`, int32 [R]."""
        view = given(mask_status, "mask_status")
        c.check(c.lib.peerbus_low_latency_masks(self, view.pointer))

    # --- normal mode ---

    def get_dispatch_layout(self, topk_idx, num_experts, previous_event=None, async_finish=False,
                            allocate_on_comm_stream=False):
        """Returns (num_tokens_per_rank, None, num_tokens_per_expert, is_token_in_rank, event)."""
        _refuse("get_dispatch_layout", allocate_on_comm_stream=allocate_on_comm_stream)
        _wait_for(previous_event)
        view, raw = given(topk_idx, "topk_idx"), c.DispatchLayout()
        c.check(c.lib.peerbus_get_dispatch_layout(self, pointer(view), num_experts,
                                                  ctypes.byref(raw)))
        left = _Result(self, raw, None)
        per_rank, per_expert, in_rank = (result(array, left, is_torch(topk_idx)) for array in (
            raw.num_tokens_per_rank, raw.num_tokens_per_expert, raw.is_token_in_rank))
        return per_rank, None, per_expert, in_rank, EventOverlap()

    def dispatch(self, x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None,
                 is_token_in_rank=None, num_tokens_per_expert=None, topk_idx=None,
                 topk_weights=None, expert_alignment=1, num_worst_tokens=0, config=None,
                 previous_event=None, async_finish=False, allocate_on_comm_stream=False):
        """Collective: returns (recv_x or (recv_x, scales), recv_topk_idx, recv_topk_weights,
        num_recv_tokens_per_expert_list, handle, event). The arrays are copies."""
        _refuse("dispatch", allocate_on_comm_stream=allocate_on_comm_stream, config=config,
                num_tokens_per_rdma_rank=num_tokens_per_rdma_rank)
        _wait_for(previous_event)
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        values = dict(x=tokens, x_scales=scales, num_tokens_per_rank=num_tokens_per_rank,
                      is_token_in_rank=is_token_in_rank,
                      num_tokens_per_expert=num_tokens_per_expert, topk_idx=topk_idx,
                      topk_weights=topk_weights)
        views = {name: given(value, name) for name, value in values.items()}
        args = c.NormalDispatchArgs(
            handle=None if handle is None else _left(handle)._as_parameter_,
            expert_alignment=expert_alignment, num_worst_tokens=num_worst_tokens,
            **{name: pointer(view) for name, view in views.items()})
        raw = c.NormalReceived()
        c.check(c.lib.peerbus_normal_dispatch(self, ctypes.byref(args), ctypes.byref(raw)))
        left = _Result(self, raw, None)
        arrays = {name: _copy(result(getattr(raw, name), left, is_torch(tokens)))
                  for name in ("recv_x", "recv_x_scales", "recv_topk_idx", "recv_topk_weights",
                               "num_recv_tokens_per_expert_list", "rank_prefix", "recv_src_idx",
                               "is_token_in_rank")}
        counts = arrays["num_recv_tokens_per_expert_list"]
        recv_x = arrays["recv_x"]
        return (recv_x if scales is None else (recv_x, arrays["recv_x_scales"]),
                arrays["recv_topk_idx"], arrays["recv_topk_weights"],
                [] if counts is None else counts.tolist(),
                (arrays["rank_prefix"], arrays["recv_src_idx"], arrays["is_token_in_rank"], left),
                EventOverlap())

    def combine(self, x, handle, topk_weights=None, bias=None, config=None, previous_event=None,
                async_finish=False, allocate_on_comm_stream=False):
        """Collective: returns (combined_x, combined_topk_weights, event). The arrays are copies,
        except with `async_finish`: then they are views of the buffer, valid after the event's wait
        and until the second next dispatch."""
        _refuse("combine", allocate_on_comm_stream=allocate_on_comm_stream, config=config)
        _wait_for(previous_event)
        biases = list(bias) if isinstance(bias, (tuple, list)) else [bias]
        views = [given(x, "x"), given(topk_weights, "topk_weights")]
        views += [given(value, "bias") for value in (biases + [None, None])[:2]]
        args = c.NormalCombineArgs(async_finish=int(async_finish), x=pointer(views[0]),
                                   handle=_left(handle)._as_parameter_,
                                   topk_weights=pointer(views[1]))
        for i, view in enumerate(views[2:]):
            if view is not None:
                args.bias[i] = view.pointer
        raw = c.Combined()
        c.check(c.lib.peerbus_normal_combine(self, ctypes.byref(args), ctypes.byref(raw)))
        left = _Result(self, raw, views)
        keep = (lambda array: array) if async_finish else _copy
        return (keep(result(raw.combined_x, left, is_torch(x))),
                keep(result(raw.combined_topk_weights, left, is_torch(x))),
                EventOverlap(left if async_finish else None))


def _join(group, timeout):
    """Returns the communicator of a process group of torch, or of the launcher's processes."""
    if group is None:
        return Communicator(timeout=timeout)
    import torch.distributed as dist
    ranks = dist.get_process_group_ranks(group) if hasattr(dist, "get_process_group_ranks") \
        else list(range(dist.get_world_size(group)))
    job = [f"{os.getpid()}-{os.urandom(8).hex()}"]  # Drawn by the first rank of the group.
    dist.broadcast_object_list(job, src=ranks[0], group=group)
    return Communicator(rank=dist.get_rank(group), size=dist.get_world_size(group), job=job[0],
                        port=1, timeout=timeout)


def _left(handle):
    left = handle[-1] if isinstance(handle, tuple) and handle else None
    if not isinstance(left, _Result):
        raise TypeError("handle is not one that a dispatch of this module returned")
    return left


def _refuse(call, **arguments):
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise c.Error(9, f"{call}: {name} has no meaning on a CPU; leave it out")


def _wait_for(event):
    if event is not None:
        event.current_stream_wait()


def _copy(array):
    if array is None:
        return None
    return array.clone() if is_torch(array) else array.copy()

# SPDX-License-Identifier: MIT
"""ElasticBuffer of versions 2.0 and 2.1: EPBuffer's calls and others on one buffer."""

import contextlib
import math

from .. import _library as c
from .agrs import GatherSessions, gathered_bytes
from .buffer_base import ranks_of
from .engram import Engram
from .ep_buffer import EPBuffer
from .event import EventOverlap
from .pp import Pipeline
from .raw import item_bytes

_ALIGNMENT = 2 << 20  # Of the sizes of DeepEP's buffers, in bytes.


def _whole(nbytes, unit=_ALIGNMENT):
    return -(-nbytes // unit) * unit


def _is_batch(shapes):
    return len(shapes) > 0 and isinstance(shapes[0], (tuple, list))


class ElasticBuffer(EPBuffer):
    """DeepEP's ElasticBuffer of version 2.1 with its names.

    Dispatches and combines are those of `EPBuffer`, whose docstring says what the arguments mean
    here. Entries that all ranks store are fetched by their numbers (`engram_write`, `engram_fetch`),
    neighbours in the ring of ranks send each other tensors (`pp_set_config`, `pp_send`, `pp_recv`),
    and tensors are gathered in sessions (`agrs_set_config`, `agrs_new_session`, `all_gather`). Those
    three ask DeepEP's memory of `num_bytes`, of which `num_cpu_bytes` hold entries; each takes its
    own here when it is configured or first written.
    """

    def __init__(self, group=None, num_bytes=None, num_cpu_bytes=0, num_max_tokens_per_rank=0,
                 hidden=0, num_topk=0, use_fp8_dispatch=False, deterministic=False,
                 allow_hybrid_mode=True, allow_multiple_reduction=True,
                 prefer_overlap_with_compute=True, sl_idx=3, num_allocated_qps=0,
                 num_cpu_timeout_secs=300, num_gpu_timeout_secs=100, explicitly_destroy=False, *,
                 target=None, relay="never", between=0):
        if num_cpu_bytes < 0 or (num_cpu_bytes > 0 and (num_bytes or 0) < num_cpu_bytes):
            raise c.InvalidArgument(1, f"ElasticBuffer: num_cpu_bytes is {num_cpu_bytes} of "
                                       f"num_bytes {num_bytes}, expected a part of it")
        super().__init__(
            group, num_bytes, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch, 0,
            deterministic, allow_hybrid_mode, allow_multiple_reduction, prefer_overlap_with_compute,
            None if sl_idx in (None, 3) else sl_idx, num_allocated_qps, num_cpu_timeout_secs,
            num_gpu_timeout_secs, explicitly_destroy, target=target, relay=relay, between=between)
        self._gpu_bytes = self.num_bytes - num_cpu_bytes
        self._engram = Engram(self.comm, num_cpu_bytes)
        self._pipeline = self._sessions = None

    def destroy(self):
        """Ends the use of the buffer. Its memory is released when no handle or view refers to it."""
        super().destroy()
        self._engram = self._pipeline = self._sessions = None

    @staticmethod
    def get_engram_storage_size_hint(num_entries, hidden, num_max_tokens_per_rank, dtype="bfloat16"):
        """Returns the bytes of a fetch of `num_max_tokens_per_rank` entries and those of a rank's
        entries; `num_bytes` is their sum and `num_cpu_bytes` the latter."""
        entry = _whole(hidden * (2 if dtype == "bfloat16" else item_bytes(dtype)), 32)
        return _whole(entry * num_max_tokens_per_rank), _whole(entry * num_entries)

    @staticmethod
    def get_pp_buffer_size_hint(num_max_tensor_bytes, num_max_inflight_tensors):
        """Returns the bytes that `pp_set_config` asks of the buffer."""
        return _whole(_whole(num_max_tensor_bytes, 32) * num_max_inflight_tensors * 4)

    @staticmethod
    def get_agrs_num_max_session_bytes(group, shapes, dtype):
        """Returns the bytes of a session that gathers a tensor of a shape, or of each of a list."""
        listed, item = (shapes if _is_batch(shapes) else [shapes]), item_bytes(dtype)
        return sum(gathered_bytes(ranks_of(group), math.prod(shape) * item) for shape in listed)

    @staticmethod
    def get_agrs_buffer_size_hint(group, num_max_session_bytes):
        """Returns the bytes that sessions ask of the buffer."""
        return _whole(num_max_session_bytes)

    def barrier(self, use_comm_stream=True, with_cpu_sync=False, sequential=True):
        """Collective: returns after all ranks have called it."""
        super().barrier(use_comm_stream, with_cpu_sync, sequential)

    def get_theoretical_num_sms(self, num_experts, num_topk, num_scaleout_topk=0, rdma_gbs=0,
                                nvlink_gbs=0, sm_read_gbs=200, sm_write_gbs=50):
        """Returns 0, the automatic number: there are no SMs here."""
        return 0

    # --- entries ---

    def engram_write(self, storage, sf=None):
        """Collective: stores this rank's entries, [entries, hidden], of equal sizes on all ranks. `sf`
        are the scales of all ranks' entries, [ranks * entries, any] of 4 bytes, kept by reference.
        Entry i of the group is entry i % entries of rank i // entries. Includes a barrier before and
        behind."""
        self._alive()
        self._engram.write("engram_write", [storage], None if sf is None else [sf])

    def engram_fetch(self, indices, num_qps=0, use_tma_aligned_col_major_sf=False):
        """Fetches the entries `indices`, int32 [tokens, entries of a token], from the memory of their
        ranks, and returns a function that returns (rows, scales): [tokens, entries of a token *
        hidden], and the scales likewise, or None. The memory is the results' own. Not collective: no
        other rank takes part or waits, and bad indices raise on this rank alone."""
        self._alive()
        fetched = self._engram.fetch("engram_fetch", indices, 0, self._gpu_bytes,
                                     use_tma_aligned_col_major_sf)
        return lambda: fetched

    # --- neighbours ---

    def pp_set_config(self, num_max_tensor_bytes, num_max_inflight_tensors):
        """Collective, with equal arguments: takes memory for so many tensors on their way to each
        neighbour. What was sent before and not received is lost."""
        self._alive()
        self._pipeline = Pipeline(self.comm, "pp_set_config", num_max_tensor_bytes,
                                  num_max_inflight_tensors, self.num_bytes)

    def pp_send(self, t, dst_rank_idx, num_sms=0):
        """Sends a tensor of any type to the previous or the next rank in the ring; `t` may change on
        return. Waits only while as many are on their way as `pp_set_config` said. A bad tensor raises
        here and in the neighbour's `pp_recv`."""
        self._neighbours("pp_send").send(t, dst_rank_idx)

    def pp_recv(self, t, src_rank_idx, num_sms=0):
        """Fills `t` with the next tensor that the previous or the next rank sends here."""
        self._neighbours("pp_recv").recv(t, src_rank_idx)

    def _neighbours(self, call):
        self._alive()
        if self._pipeline is None:
            raise c.InvalidArgument(1, f"{call}: call pp_set_config first")
        return self._pipeline

    # --- gathers ---

    def agrs_set_config(self, num_max_session_bytes, num_max_all_gathers_per_session):
        """Collective, with equal arguments: takes memory for the gathered tensors of a session."""
        self._alive()
        self._sessions = GatherSessions(self.comm, "agrs_set_config", num_max_session_bytes,
                                        num_max_all_gathers_per_session, self.num_bytes)

    def create_agrs_session(self):
        """Begins a session: what earlier ones gathered may be overwritten from now on."""
        self._gathers("create_agrs_session").begin()

    def destroy_agrs_session(self):
        """Collective: ends the session. Its tensors must no longer be used."""
        self._gathers("destroy_agrs_session").end()

    @contextlib.contextmanager
    def agrs_new_session(self, enabled=True):
        """A `with` block in a session, or in none if it is not `enabled`."""
        if enabled:
            self.create_agrs_session()
        try:
            yield
        finally:
            if enabled:
                self.destroy_agrs_session()

    def agrs_get_inplace_tensor(self, shapes, dtype):
        """Returns this rank's part of what the next `all_gather` of a tensor of this shape fills, so
        that it need not be copied; of a list of shapes, a tuple of them."""
        made = self._gathers("agrs_get_inplace_tensor").place(
            shapes if _is_batch(shapes) else [shapes], dtype)
        return tuple(made) if _is_batch(shapes) else made[0]

    def all_gather(self, t):
        """Collective: gathers a tensor, or each of a sequence, from all ranks, with equal sizes.
        Returns the gathered tensors, [ranks, ...] each, and a function that returns when their parts
        have arrived. They are views of the buffer, valid until the session ends."""
        is_one = not isinstance(t, (tuple, list))
        made, wait = self._gathers("all_gather").gather([t] if is_one else t)
        return (*made, wait)

    def _gathers(self, call):
        self._alive()
        if self._sessions is None:
            raise c.InvalidArgument(1, f"{call}: call agrs_set_config first")
        return self._sessions

    # --- dispatch and combine ---

    def dispatch(self, x, topk_idx=None, topk_weights=None,
                 cumulative_local_expert_recv_stats=None, num_experts=None,
                 num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0,
                 previous_event=None, previous_event_before_epilogue=None,
                 async_with_compute_stream=False, allocate_on_comm_stream=False, handle=None,
                 do_handle_copy=True, do_cpu_sync=None, do_expand=False, do_zero_padding=False,
                 use_tma_aligned_col_major_sf=False):
        """Collective: `EPBuffer.dispatch`, but that the handle has a copy of `topk_idx` unless
        `do_handle_copy` is false."""
        everything = self._dispatch(
            "ElasticBuffer.dispatch", x, topk_idx, topk_weights, cumulative_local_expert_recv_stats,
            num_experts, num_max_tokens_per_rank, expert_alignment, handle, do_cpu_sync, do_expand,
            do_zero_padding, use_tma_aligned_col_major_sf, previous_event,
            previous_event_before_epilogue, is_copied=do_handle_copy, num_sms=num_sms,
            num_qps=num_qps, async_finish=async_with_compute_stream,
            allocate_on_comm_stream=allocate_on_comm_stream)
        return (*everything, EventOverlap())

    def combine(self, x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0,
                previous_event=None, previous_event_before_epilogue=None,
                async_with_compute_stream=False, allocate_on_comm_stream=False):
        """Collective: returns (combined_x, combined_topk_weights, event), as `EPBuffer.combine`."""
        return self._combine(
            "ElasticBuffer.combine", x, handle, topk_weights, bias, previous_event,
            previous_event_before_epilogue, num_sms=num_sms, num_qps=num_qps,
            async_finish=async_with_compute_stream,
            allocate_on_comm_stream=allocate_on_comm_stream)

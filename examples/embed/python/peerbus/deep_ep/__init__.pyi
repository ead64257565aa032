# SPDX-License-Identifier: MIT
from typing import Any, Callable, List, NoReturn, Optional, Sequence, Tuple, Union

from peerbus import Communicator

from . import buffers as buffers, comm as comm, utils as utils
from .comm import destroy_all_managed_nccl_comm as destroy_all_managed_nccl_comm
from .utils.envs import get_logical_domain_size as get_logical_domain_size
from .utils.envs import get_physical_domain_size as get_physical_domain_size
from .results import Handle
from .runtime import Runtime

Tensor = Any  # of torch on the CPU, or numpy
topk_idx_t: Any
__version__: str

def install() -> None: ...
def get_num_allocation_alignment() -> int: ...
def get_num_rdma_alignment() -> int: ...
def get_num_tma_alignment() -> int: ...

class Config:
    def __init__(self, num_sms: int = 20, num_max_nvl_chunked_send_tokens: int = 6,
                 num_max_nvl_chunked_recv_tokens: int = 256,
                 num_max_rdma_chunked_send_tokens: int = 6,
                 num_max_rdma_chunked_recv_tokens: int = 256) -> None: ...
    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int: ...
    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int: ...

class EventHandle:
    def current_stream_wait(self) -> Any: ...

class EventOverlap:
    def __init__(self, event: Any = None, extra_tensors: Any = None, *,
                 results: Any = None) -> None: ...
    event: Any
    extra_tensors: Any
    hook_after_wait: Optional[Callable[[], Any]]
    num_sms: int  # Of the calls of BucketBuffer.
    def current_stream_wait(self, release_handle: bool = False) -> Any: ...
    def wait(self, release_handle: bool = False) -> Any: ...
    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None: ...
    def __call__(self, release_handle: bool = False) -> EventOverlap: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *_: Any) -> None: ...

class Buffer:
    num_sms: int
    comm: Communicator
    group: Any
    rank: int
    group_size: int
    num_nvl_bytes: int
    num_rdma_bytes: int
    low_latency_mode: bool
    explicitly_destroy: bool
    enable_shrink: bool
    nvshmem_qp_depth: int
    runtime: Optional[Runtime]
    def __init__(self, group: Any = None, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0,
                 low_latency_mode: bool = False, num_qps_per_rank: int = 24,
                 allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None, *,
                 num_max_tokens_per_rank: int = 4096, zero_copy: bool = True,
                 target: Optional[str] = None, strict: Optional[bool] = None, relay: str = 'never', same_bits: bool = False,
                 timeout: Optional[float] = None, between: int = 0) -> None: ...
    def destroy(self) -> None: ...
    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int,
                                       num_ranks: int, num_experts: int) -> int: ...
    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config: ...
    @staticmethod
    def get_combine_config(num_ranks: int) -> Config: ...
    @staticmethod
    def set_num_sms(new_num_sms: int) -> None: ...
    @staticmethod
    def is_sm90_compiled() -> bool: ...
    @staticmethod
    def capture() -> EventOverlap: ...
    def get_comm_stream(self) -> Any: ...
    def get_local_buffer_tensor(self, dtype: Any, size: Optional[int] = None, offset: int = 0,
                                use_rdma_buffer: bool = False) -> NoReturn: ...
    def low_latency_dispatch(self, x: Tensor, topk_idx: Tensor,
                             num_max_dispatch_tokens_per_rank: int, num_experts: int,
                             cumulative_local_expert_recv_stats: Optional[Tensor] = None,
                             dispatch_wait_recv_cost_stats: Optional[Tensor] = None,
                             use_fp8: bool = True, round_scale: bool = False,
                             use_ue8m0: bool = False, async_finish: bool = False,
                             return_recv_hook: bool = False,
                             topk_weights: Optional[Tensor] = None) -> Tuple[Any, ...]: ...
    def low_latency_combine(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: Any,
                            use_logfmt: bool = False, zero_copy: bool = False,
                            async_finish: bool = False, return_recv_hook: bool = False,
                            out: Optional[Tensor] = None,
                            combine_wait_recv_cost_stats: Optional[Tensor] = None) -> Tuple[Tensor, EventOverlap, Optional[Callable[[], None]]]: ...
    def get_next_low_latency_combine_buffer(self, handle: Any) -> Tensor: ...
    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int,
                                 num_experts: int) -> None: ...
    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None: ...
    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> None: ...
    def low_latency_clean_mask_buffer(self) -> None: ...
    def get_dispatch_layout(self, topk_idx: Tensor, num_experts: int,
                            previous_event: Optional[EventOverlap] = None,
                            async_finish: bool = False,
                            allocate_on_comm_stream: bool = False) -> Tuple[Tensor, Optional[Tensor], Tensor, Tensor, EventOverlap]: ...
    def dispatch(self, x: Union[Tensor, Tuple[Tensor, Tensor]], handle: Any = None,
                 num_tokens_per_rank: Optional[Tensor] = None,
                 num_tokens_per_rdma_rank: Optional[Tensor] = None,
                 is_token_in_rank: Optional[Tensor] = None,
                 num_tokens_per_expert: Optional[Tensor] = None, topk_idx: Optional[Tensor] = None,
                 topk_weights: Optional[Tensor] = None, expert_alignment: int = 1,
                 num_worst_tokens: int = 0, config: Optional[Config] = None,
                 previous_event: Optional[EventOverlap] = None, async_finish: bool = False,
                 allocate_on_comm_stream: bool = False) -> Tuple[Union[Tensor, Tuple[Tensor, Tensor]], Optional[Tensor], Optional[Tensor], Optional[List[int]], Optional[Handle], EventOverlap]: ...
    def combine(self, x: Tensor, handle: Any, topk_weights: Optional[Tensor] = None,
                bias: Optional[Union[Tensor, Tuple[Tensor, Tensor]]] = None,
                config: Optional[Config] = None, previous_event: Optional[EventOverlap] = None,
                async_finish: bool = False,
                allocate_on_comm_stream: bool = False) -> Tuple[Tensor, Optional[Tensor], EventOverlap]: ...
    def internode_dispatch(self, x: Union[Tensor, Tuple[Tensor, Tensor]], handle: Any = None,
                           num_tokens_per_rank: Optional[Tensor] = None,
                           num_tokens_per_rdma_rank: Optional[Tensor] = None,
                           is_token_in_rank: Optional[Tensor] = None,
                           num_tokens_per_expert: Optional[Tensor] = None,
                           topk_idx: Optional[Tensor] = None,
                           topk_weights: Optional[Tensor] = None, expert_alignment: int = 1,
                           config: Optional[Config] = None,
                           previous_event: Optional[EventOverlap] = None,
                           async_finish: bool = False,
                           allocate_on_comm_stream: bool = False) -> Tuple[Union[Tensor, Tuple[Tensor, Tensor]], Optional[Tensor], Optional[Tensor], Optional[List[int]], Optional[Handle], EventOverlap]: ...
    def internode_combine(self, x: Tensor, handle: Any, topk_weights: Optional[Tensor] = None,
                          bias: Optional[Union[Tensor, Tuple[Tensor, Tensor]]] = None,
                          config: Optional[Config] = None,
                          previous_event: Optional[EventOverlap] = None,
                          async_finish: bool = False,
                          allocate_on_comm_stream: bool = False) -> Tuple[Tensor, Optional[Tensor], EventOverlap]: ...

class EPHandle:
    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: Tensor
    num_recv_tokens: int
    num_expanded_tokens: int
    psum_num_recv_tokens_per_scaleup_rank: Tensor
    psum_num_recv_tokens_per_expert: Tensor
    num_unaligned_recv_tokens_per_expert: Tensor
    num_recv_tokens_per_expert_list: List[int]
    recv_src_metadata: Tensor
    token_metadata_at_forward: None
    channel_linked_list: None
    cached_recv_src_metadata_before_sort: None
    @property
    def dst_buffer_slot_idx(self) -> Tensor: ...
    def deterministic_sort(self, *_: Any, **__: Any) -> None: ...

class BufferBase:
    explicitly_destroy: bool
    comm: Communicator
    group: Any
    rank_idx: int
    num_ranks: int
    num_bytes: int
    num_scaleout_ranks: int
    num_scaleup_ranks: int
    scaleout_rank_idx: int
    scaleup_rank_idx: int
    num_rdma_ranks: int
    num_nvlink_ranks: int
    nccl_comm_handle: None
    runtime: Optional[Communicator]
    def __init__(self, explicitly_destroy: bool = False) -> None: ...
    @property
    def main_context(self) -> Optional[Communicator]: ...
    @property
    def context(self) -> Optional[Communicator]: ...
    def print_memory_usage(self) -> None: ...
    def destroy(self) -> None: ...
    @staticmethod
    def capture() -> EventHandle: ...
    def get_comm_stream(self) -> Any: ...
    def get_physical_domain_size(self) -> Tuple[int, int]: ...
    def get_logical_domain_size(self, allow_hybrid_mode: Optional[bool] = None) -> Tuple[int, int]: ...
    def barrier(self, wait_comm_stream: bool = True, with_cpu_sync: bool = False,
                sequential: bool = True) -> None: ...

class EPBuffer(BufferBase):
    num_max_tokens_per_rank: int
    num_lb_bytes: int
    num_allocated_qps: int
    deterministic: bool
    allow_hybrid_mode: bool
    allow_multiple_reduction: bool
    prefer_overlap_with_compute: bool
    def __init__(self, group: Any = None, num_bytes: Optional[int] = None,
                 num_max_tokens_per_rank: int = 0, hidden: int = 0, num_topk: int = 0,
                 use_fp8_dispatch: bool = False, lb_allocation_plan_or_num_bytes: Any = 0,
                 deterministic: bool = False, allow_hybrid_mode: bool = True,
                 allow_multiple_reduction: bool = True, prefer_overlap_with_compute: bool = True,
                 sl_idx: Optional[int] = None, num_allocated_qps: int = 0,
                 num_cpu_timeout_secs: int = 300, num_gpu_timeout_secs: int = 100,
                 explicitly_destroy: bool = False, *, target: Optional[str] = None,
                 relay: str = 'never', between: int = 0) -> None: ...
    @staticmethod
    def get_buffer_size_hint(group: Any, num_max_tokens_per_rank: int, hidden: int,
                             num_topk: int = 0, use_fp8_dispatch: bool = False,
                             allow_hybrid_mode: bool = True,
                             allow_multiple_reduction: bool = True) -> int: ...
    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, num_scaleout_topk: int = 0,
                                rdma_gbs: float = 0, nvlink_gbs: float = 0, sm_read_gbs: float = 0,
                                sm_write_gbs: float = 0) -> int: ...
    def get_theoretical_num_qps(self, num_sms: int) -> int: ...
    def lb_get_theoretical_num_sms(self) -> int: ...
    def dispatch(self, x: Union[Tensor, Tuple[Tensor, Tensor]], topk_idx: Optional[Tensor] = None,
                 topk_weights: Optional[Tensor] = None,
                 cumulative_local_expert_recv_stats: Optional[Tensor] = None,
                 num_experts: Optional[int] = None, num_max_tokens_per_rank: Optional[int] = None,
                 expert_alignment: Optional[int] = None, num_sms: int = 0, num_qps: int = 0,
                 previous_event: Any = None,
                 async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False,
                 handle: Any = None, do_handle_copy: bool = False,
                 do_cpu_sync: Optional[bool] = None, do_expand: bool = False,
                 do_zero_padding: bool = False, use_tma_aligned_col_major_sf: bool = False,
                 defer_epilogue: bool = False) -> Any: ...
    def combine(self, x: Tensor, handle: Any, topk_weights: Optional[Tensor] = None,
                bias: Optional[Union[Tensor, Tuple[Tensor, Tensor]]] = None, num_sms: int = 0,
                num_qps: int = 0, previous_event: Any = None,
                async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False,
                defer_epilogue: bool = False) -> Any: ...
    def lb_prefetch_weights(self, redundant_expert_weights: Union[Tensor, Sequence[Tensor]],
                            expert_weights: Union[Tensor, Sequence[Tensor]],
                            redundancy_mapping: Tensor, num_sms: int = 0,
                            previous_event: Any = None) -> EventOverlap: ...
    def lb_reduce_grads(self, redundant_expert_grads: Tensor, expert_grads: Tensor,
                        redundancy_mapping: Tensor, num_sms: int = 0,
                        previous_event: Any = None) -> EventOverlap: ...

class ElasticBuffer(EPBuffer):
    def __init__(self, group: Any = None, num_bytes: Optional[int] = None, num_cpu_bytes: int = 0,
                 num_max_tokens_per_rank: int = 0, hidden: int = 0, num_topk: int = 0,
                 use_fp8_dispatch: bool = False, deterministic: bool = False,
                 allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True,
                 prefer_overlap_with_compute: bool = True, sl_idx: int = 3,
                 num_allocated_qps: int = 0, num_cpu_timeout_secs: int = 300,
                 num_gpu_timeout_secs: int = 100, explicitly_destroy: bool = False, *,
                 target: Optional[str] = None, relay: str = 'never', between: int = 0) -> None: ...
    @staticmethod
    def get_engram_storage_size_hint(num_entries: int, hidden: int, num_max_tokens_per_rank: int,
                                     dtype: Any = "bfloat16") -> Tuple[int, int]: ...
    @staticmethod
    def get_pp_buffer_size_hint(num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> int: ...
    @staticmethod
    def get_agrs_num_max_session_bytes(group: Any, shapes: Union[Sequence[int], Sequence[Sequence[int]]],
                                       dtype: Any) -> int: ...
    @staticmethod
    def get_agrs_buffer_size_hint(group: Any, num_max_session_bytes: int) -> int: ...
    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False,
                sequential: bool = True) -> None: ...
    def engram_write(self, storage: Tensor, sf: Optional[Tensor] = None) -> None: ...
    def engram_fetch(self, indices: Tensor, num_qps: int = 0,
                     use_tma_aligned_col_major_sf: bool = False) -> Callable[[], Tuple[Tensor, Optional[Tensor]]]: ...
    def pp_set_config(self, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None: ...
    def pp_send(self, t: Tensor, dst_rank_idx: int, num_sms: int = 0) -> None: ...
    def pp_recv(self, t: Tensor, src_rank_idx: int, num_sms: int = 0) -> None: ...
    def create_agrs_session(self) -> None: ...
    def destroy_agrs_session(self) -> None: ...
    def agrs_new_session(self, enabled: bool = True) -> Any: ...
    def agrs_set_config(self, num_max_session_bytes: int,
                        num_max_all_gathers_per_session: int) -> None: ...
    def agrs_get_inplace_tensor(self, shapes: Union[Sequence[int], Sequence[Sequence[int]]],
                                dtype: Any) -> Union[Tensor, Tuple[Tensor, ...]]: ...
    def all_gather(self, t: Union[Tensor, Sequence[Tensor]]) -> Tuple[Any, ...]: ...
    def dispatch(self, x: Union[Tensor, Tuple[Tensor, Tensor]], topk_idx: Optional[Tensor] = None,  # type: ignore[override]
                 topk_weights: Optional[Tensor] = None,
                 cumulative_local_expert_recv_stats: Optional[Tensor] = None,
                 num_experts: Optional[int] = None, num_max_tokens_per_rank: Optional[int] = None,
                 expert_alignment: Optional[int] = None, num_sms: int = 0, num_qps: int = 0,
                 previous_event: Any = None, previous_event_before_epilogue: Any = None,
                 async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False,
                 handle: Optional[EPHandle] = None, do_handle_copy: bool = True,
                 do_cpu_sync: Optional[bool] = None, do_expand: bool = False,
                 do_zero_padding: bool = False, use_tma_aligned_col_major_sf: bool = False) -> Tuple[Union[Tensor, Tuple[Tensor, Tensor]], Optional[Tensor], Optional[Tensor], EPHandle, EventOverlap]: ...
    def combine(self, x: Tensor, handle: EPHandle, topk_weights: Optional[Tensor] = None,  # type: ignore[override]
                bias: Optional[Union[Tensor, Tuple[Tensor, Tensor]]] = None, num_sms: int = 0,
                num_qps: int = 0, previous_event: Any = None,
                previous_event_before_epilogue: Any = None,
                async_with_compute_stream: bool = False,
                allocate_on_comm_stream: bool = False) -> Tuple[Tensor, Optional[Tensor], EventOverlap]: ...

class EngramBuffer(BufferBase):
    num_gpu_bytes: int
    num_rdma_storage_bytes: int
    use_cpu_rdma_storage: bool
    allow_hybrid_mode: bool
    num_allocated_qps: int
    def __init__(self, group: Any, num_gpu_bytes: int, num_rdma_storage_bytes: int,
                 use_cpu_rdma_storage: bool, num_allocated_qps: int, qp_depth: int,
                 restrict_rd_atomic: bool = False, allow_hybrid_mode: bool = True,
                 sl_idx: Optional[int] = None, num_gpu_timeout_secs: int = 100,
                 explicitly_destroy: bool = False) -> None: ...
    @staticmethod
    def get_storage_size_hint(group: Any, num_entries_per_layer: Sequence[int], hidden: int,
                              num_max_tokens: int, num_entries_per_token: int,
                              dtype: Any = "bfloat16", num_sf_packs: int = 0) -> Tuple[int, int]: ...
    @staticmethod
    def get_theoretical_config(group: Any, num_layers: int, num_max_tokens: int,
                               num_entries_per_token: int,
                               num_max_read_requests_per_qp: int = 16) -> Tuple[int, int, bool]: ...
    def set_config(self, num_entries_per_layer: Sequence[int], hidden: int, num_max_tokens: int,
                   num_entries_per_token: int, dtype: Any = "bfloat16",
                   num_sf_packs: int = 0) -> None: ...
    def write(self, storages: Sequence[Tensor], sfs: Optional[Sequence[Tensor]] = None) -> None: ...
    def fetch(self, indices: Tensor, num_qps: int = 0,
              use_tma_aligned_col_major_sf: bool = True) -> List[Callable[[], Any]]: ...

class PPBuffer(BufferBase):
    storage: Any
    def __init__(self, group: Any, num_max_tensor_bytes: int, num_max_inflight_tensors: int,
                 sl_idx: Optional[int] = None, num_gpu_timeout_secs: int = 100,
                 explicitly_destroy: bool = False) -> None: ...
    def send(self, x: Tensor, dst_rank_idx: int, num_sms: Optional[int] = None) -> None: ...
    def recv(self, x: Tensor, src_rank_idx: int, num_sms: Optional[int] = None) -> None: ...

class BufferAllocator:
    alignment: int
    allocations: List[Tuple[Tensor, int]]
    num_bytes: int
    materialized: bool
    def __init__(self) -> None: ...
    def allocate(self, shape: Any, dtype: Any) -> Tensor: ...
    def materialize(self, storage: Tensor) -> None: ...
    def materialize_in(self, comm: Communicator) -> None: ...

class BucketSession:
    alignment: int
    collective_methods: Tuple[str, ...]
    buffer: BucketBuffer
    num_allocated_bytes: int
    @property
    def context_idx(self) -> Optional[int]: ...
    def __init__(self, buffer: BucketBuffer) -> None: ...
    def __enter__(self) -> BucketSession: ...
    def __exit__(self, *_: Any) -> None: ...
    def allocate(self, shapes: Union[Sequence[int], Sequence[Sequence[int]]], dtype: Any = None,
                 group: Any = None) -> Union[Tensor, Tuple[Tensor, ...]]: ...

class BucketBuffer(BufferBase):
    groups: List[Any]
    contexts: List[Communicator]
    nccl_comm_handles: List[None]
    def __init__(self, group: Any, allocation_plan_or_num_bytes: Union[BufferAllocator, int],
                 sl_idx: Optional[int] = None, num_gpu_timeout_secs: int = 100,
                 explicitly_destroy: bool = False, *, target: Optional[str] = None) -> None: ...
    @property
    def storage(self) -> Tensor: ...
    def get_context_idx(self, group: Any) -> int: ...
    def get_theoretical_num_sms(self, op: str, group: Any = None) -> int: ...
    def session(self) -> BucketSession: ...
    def barrier(self, wait_comm_stream: bool = True, with_cpu_sync: bool = False,
                sequential: bool = True, group: Any = None) -> None: ...
    def all_gather(self, srcs: Union[Tensor, Sequence[Tensor]],
                   dsts: Optional[Union[Tensor, Sequence[Tensor]]] = None, group: Any = None,
                   num_sms: Optional[int] = None) -> EventOverlap: ...
    def reduce_scatter(self, srcs: Union[Tensor, Sequence[Tensor]], comm_precision: str = 'fp32',
                       scale: float = 1.0, group: Any = None,
                       num_sms: Optional[int] = None) -> EventOverlap: ...
    def all_reduce(self, srcs: Union[Tensor, Sequence[Tensor]], scale: float = 1.0,
                   group: Any = None, num_sms: Optional[int] = None) -> EventOverlap: ...

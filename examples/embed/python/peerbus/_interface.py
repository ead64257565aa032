# SPDX-License-Identifier: MIT
"""The structures, functions and constants of peerbus.h for ctypes.

generate_interface.py has written this file from the headers. Change those, and run it.
"""

from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64,
                    c_uint16, c_uint32, c_uint64, c_uint8, c_void_p)

from ._struct import Struct

__all__ = ["CommOptions", "Place", "Meeting", "LastSeen", "Python", "Origin", "RowUse", "Received",
           "ReplicaChoice", "ExchangeConfig", "DispatchArgs", "CombineArgs", "Completed",
           "TeamOptions", "Tensor", "Array", "ChannelOptions", "Transfer", "Call", "Finding",
           "DeepEpConfig", "BufferOptions", "LowLatencyDispatchArgs", "LowLatencyReceived",
           "LowLatencyCombineArgs", "Combined", "DispatchLayout", "NormalDispatchArgs",
           "NormalReceived", "NormalCombineArgs", "EpBufferOptions", "EpDispatchArgs", "EpReceived",
           "EpCombineArgs", "EplbArgs", "EplbTables", "ExpertTensors", "all_gather_function",
           "rank_function", "interrupt_function", "finding_function", "CONSTANTS", "FUNCTIONS"]


class CommOptions(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("timeout_ns", c_int64),
                ("meet_timeout_ns", c_int64), ("transport", c_int32), ("reserved_too", c_uint32),
                ("provider", c_char_p), ("device", c_char_p)]


class Place(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("port", c_uint32), ("rank", c_uint64),
                ("size", c_uint64), ("address", c_char_p), ("job", c_char_p), ("secret", c_char_p),
                ("host", c_char_p)]


all_gather_function = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_uint64)


class Meeting(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("rank", c_uint64),
                ("size", c_uint64), ("all_gather", all_gather_function), ("context", c_void_p),
                ("address", c_char_p), ("host", c_char_p)]


rank_function = CFUNCTYPE(c_int32, c_void_p, c_void_p)


class LastSeen(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("is_known", c_int32), ("is_over", c_int32),
                ("reserved", c_uint32), ("operation", c_char_p), ("phase", c_char_p),
                ("number", c_uint64), ("since_ns", c_int64), ("heard_ns", c_int64)]


interrupt_function = CFUNCTYPE(c_int32, c_void_p)


class Python(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("thread", c_uint64),
                ("ensure_gil", c_void_p), ("release_gil", c_void_p), ("check_signals", c_void_p),
                ("fetch", c_void_p), ("raised", c_void_p)]


class Origin(Structure):
    _fields_ = [("token", c_uint32), ("rank", c_uint16), ("slot", c_uint16)]


class RowUse(Structure):
    _fields_ = [("row", c_uint32), ("slot", c_uint32)]


class Received(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("by_rank", c_uint32), ("ticket", c_uint64),
                ("rows", c_uint64), ("end", c_uint64), ("row_capacity", c_uint64),
                ("ranks", c_uint64), ("blocks", c_uint64), ("experts", c_uint64),
                ("expert_ids", c_void_p), ("first_rows", c_void_p), ("counts", c_void_p),
                ("row_data", c_void_p), ("row_bytes", c_uint64), ("scales", c_void_p),
                ("scale_bytes", c_uint64), ("outputs", c_void_p), ("attachments", c_void_p * 4),
                ("origins", c_void_p), ("slot_experts", c_void_p), ("slot_weights", c_void_p),
                ("use_starts", c_void_p), ("uses", c_void_p)]


class ReplicaChoice(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("policy", c_uint32), ("quotas", c_void_p),
                ("chosen", c_void_p), ("distances", c_void_p)]


class ExchangeConfig(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("codec", c_int32), ("layout", c_int32),
                ("outputs_at_home", c_uint32), ("experts", c_uint64), ("hidden", c_uint64),
                ("top_k", c_uint64), ("max_tokens", c_uint64), ("in_flight", c_uint64),
                ("alignment", c_uint64), ("zero_gaps", c_uint32), ("relay", c_uint32),
                ("attachments", c_uint64 * 4), ("output_attachment", c_uint64),
                ("note_bytes", c_uint64), ("physical_to_logical", c_void_p),
                ("stream_from", c_uint64), ("same_bits", c_uint32), ("reserved", c_uint32),
                ("physical_experts", c_uint64), ("experts_of_rank", c_void_p),
                ("replicas", c_void_p), ("distrust_peers", c_uint32), ("reserved_too", c_uint32),
                ("weights_at_combine", c_uint32), ("relay_sums", c_uint32), ("between", c_uint64)]


class DispatchArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("expert_id_bits", c_uint32), ("count", c_uint64),
                ("tokens", c_void_p), ("experts", c_void_p), ("weights", c_void_p),
                ("attachments", c_void_p * 4), ("note", c_void_p), ("waited_ns", POINTER(c_int64)),
                ("refuse", c_uint32), ("reserved", c_uint32), ("timeout_ns", c_int64)]


class CombineArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("attached", c_uint32), ("count", c_uint64),
                ("out", c_void_p), ("weights", c_void_p), ("bias", c_void_p * 2),
                ("local", c_void_p), ("waited_ns", POINTER(c_int64)), ("refuse", c_uint32),
                ("reserved", c_uint32), ("timeout_ns", c_int64)]


class Completed(Structure):
    _fields_ = [("received", c_uint64), ("combined", c_uint64)]


class TeamOptions(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("scratch_bytes", c_uint64),
                ("one_shot_bytes", c_uint64), ("window_bytes", c_uint64), ("costs_file", c_char_p),
                ("algorithm", c_int32), ("may_reorder", c_uint32)]


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("dtype_code", c_uint8), ("dtype_bits", c_uint8),
                ("dtype_lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Array(Structure):
    _fields_ = [("data", c_void_p), ("ndim", c_int32), ("dtype_code", c_uint8),
                ("dtype_bits", c_uint8), ("dtype_lanes", c_uint16), ("shape", c_int64 * 3),
                ("strides", c_int64 * 3)]


class ChannelOptions(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("scratch_bytes", c_uint64)]


class Transfer(Structure):
    _fields_ = [("sends", c_uint32), ("dtype", c_int32), ("peer", c_uint64), ("count", c_uint64),
                ("input", c_void_p), ("output", c_void_p)]


class Call(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("operation", c_int32), ("ranks", c_uint64),
                ("ranks_per_node", c_uint64), ("tokens", c_uint64), ("max_tokens", c_uint64),
                ("hidden", c_uint64), ("top_k", c_uint64), ("experts", c_uint64),
                ("element", c_int32), ("options", c_uint32), ("expert_alignment", c_uint64),
                ("num_worst_tokens", c_uint64), ("num_sms", c_uint64), ("num_qps", c_uint64),
                ("hccl_buffsize_mb", c_uint64), ("nvshmem_qp_depth", c_uint64),
                ("normal_long_seq_rounds", c_uint64), ("moe_enable_topk_neg_one", c_uint32),
                ("reserved", c_uint32), ("num_rdma_bytes", c_uint64), ("num_nvl_bytes", c_uint64)]


class Finding(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("kind", c_int32), ("what", c_char_p),
                ("given", c_char_p), ("expected", c_char_p), ("advice", c_char_p)]


finding_function = CFUNCTYPE(None, POINTER(Finding), c_void_p)


class DeepEpConfig(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("num_sms", c_uint64),
                ("num_max_nvl_chunked_send_tokens", c_uint64),
                ("num_max_nvl_chunked_recv_tokens", c_uint64),
                ("num_max_rdma_chunked_send_tokens", c_uint64),
                ("num_max_rdma_chunked_recv_tokens", c_uint64)]


class BufferOptions(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("target", c_int32),
                ("num_max_tokens_per_rank", c_uint64), ("in_flight", c_uint64),
                ("zero_copy", c_uint32), ("enable_shrink", c_uint32),
                ("target_ranks_per_node", c_uint64), ("hccl_buffsize_mb", c_uint64),
                ("nvshmem_qp_depth", c_uint64), ("normal_long_seq_rounds", c_uint64),
                ("moe_enable_topk_neg_one", c_uint32), ("relay", c_uint32),
                ("skip_other_ids", c_uint32), ("same_bits", c_uint32), ("between", c_uint64)]


class LowLatencyDispatchArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("use_fp8", c_uint32), ("round_scale", c_uint32),
                ("use_ue8m0", c_uint32), ("async_finish", c_uint32), ("return_recv_hook", c_uint32),
                ("x", c_void_p), ("cumulative_local_expert_recv_stats", c_void_p),
                ("dispatch_wait_recv_cost_stats", c_void_p), ("topk_idx", c_void_p),
                ("num_max_dispatch_tokens_per_rank", c_uint64), ("num_experts", c_uint64),
                ("timeout_ns", c_int64), ("topk_weights", c_void_p)]


class LowLatencyReceived(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("recv_x", Array),
                ("recv_x_scales", Array), ("recv_count", Array), ("src_info", Array),
                ("layout_range", Array), ("result", c_void_p), ("recv_topk_weights", Array),
                ("recv_rank_info", Array)]


class LowLatencyCombineArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("zero_copy", c_uint32), ("async_finish", c_uint32),
                ("return_recv_hook", c_uint32), ("x", c_void_p), ("topk_idx", c_void_p),
                ("topk_weights", c_void_p), ("out", c_void_p),
                ("combine_wait_recv_cost_stats", c_void_p), ("handle", c_void_p),
                ("timeout_ns", c_int64), ("use_logfmt", c_uint32), ("reserved", c_uint32)]


class Combined(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("combined_x", Array),
                ("combined_topk_weights", Array), ("result", c_void_p)]


class DispatchLayout(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("num_tokens_per_rank", Array),
                ("num_tokens_per_expert", Array), ("is_token_in_rank", Array), ("result", c_void_p)]


class NormalDispatchArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("x", c_void_p),
                ("x_scales", c_void_p), ("handle", c_void_p), ("num_tokens_per_rank", c_void_p),
                ("is_token_in_rank", c_void_p), ("num_tokens_per_expert", c_void_p),
                ("topk_idx", c_void_p), ("topk_weights", c_void_p), ("expert_alignment", c_uint64),
                ("num_worst_tokens", c_uint64), ("timeout_ns", c_int64),
                ("num_max_tokens_per_rank", c_uint64)]


class NormalReceived(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("recv_x", Array),
                ("recv_x_scales", Array), ("recv_topk_idx", Array), ("recv_topk_weights", Array),
                ("num_recv_tokens_per_expert_list", Array), ("rank_prefix", Array),
                ("recv_src_idx", Array), ("is_token_in_rank", Array), ("result", c_void_p),
                ("num_max_tokens_per_rank", c_uint64)]


class NormalCombineArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("async_finish", c_uint32), ("x", c_void_p),
                ("handle", c_void_p), ("topk_weights", c_void_p), ("bias", c_void_p * 2),
                ("timeout_ns", c_int64)]


class EpBufferOptions(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("relay", c_uint32),
                ("num_max_tokens_per_rank", c_uint64), ("in_flight", c_uint64),
                ("between", c_uint64)]


class EpDispatchArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("do_zero_padding", c_uint32), ("x", c_void_p),
                ("x_scales", c_void_p), ("topk_idx", c_void_p), ("topk_weights", c_void_p),
                ("cumulative_local_expert_recv_stats", c_void_p), ("num_experts", c_uint64),
                ("expert_alignment", c_uint64), ("timeout_ns", c_int64),
                ("num_max_tokens_per_rank", c_uint64)]


class EpReceived(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("recv_x", Array),
                ("recv_x_scales", Array), ("recv_topk_weights", Array),
                ("psum_num_recv_tokens_per_scaleup_rank", Array),
                ("psum_num_recv_tokens_per_expert", Array),
                ("num_unaligned_recv_tokens_per_expert", Array),
                ("num_recv_tokens_per_expert_list", Array), ("recv_src_metadata", Array),
                ("num_recv_tokens", c_uint64), ("num_expanded_tokens", c_uint64),
                ("result", c_void_p), ("num_max_tokens_per_rank", c_uint64)]


class EpCombineArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("async_with_compute_stream", c_uint32),
                ("x", c_void_p), ("handle", c_void_p), ("topk_weights", c_void_p),
                ("bias", c_void_p * 2), ("timeout_ns", c_int64)]


class EplbArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("planner", c_int32), ("layers", c_uint64),
                ("experts", c_uint64), ("slots", c_uint64), ("groups", c_uint64),
                ("nodes", c_uint64), ("ranks", c_uint64), ("loads", c_void_p),
                ("old_map", c_void_p), ("least_gain", c_double), ("most_moves", c_uint64),
                ("fixed_slots", c_uint64)]


class EplbTables(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32),
                ("physical_to_logical", POINTER(c_int64)), ("replica_of_slot", POINTER(c_int64)),
                ("expert_count", POINTER(c_int64)), ("moves", POINTER(c_int64))]


class ExpertTensors(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("tensors", c_uint64),
                ("bytes", c_void_p), ("spare", c_uint64), ("slice", c_uint64)]


CONSTANTS = {
    "PEERBUS_C_MAJOR": 0,
    "PEERBUS_C_MINOR": 1,
    "PEERBUS_C_PATCH": 0,
    "PEERBUS_RELAY_NEVER": 0,
    "PEERBUS_RELAY_ALWAYS": 1,
    "PEERBUS_RELAY_AUTOMATIC": 2,
    "PEERBUS_RELAY_SUMS_BF16": 0,
    "PEERBUS_RELAY_SUMS_F32": 1,
    "PEERBUS_OK": 0,
    "PEERBUS_INVALID_ARGUMENT": 1,
    "PEERBUS_OUT_OF_RANGE": 2,
    "PEERBUS_MISMATCH": 3,
    "PEERBUS_OUT_OF_MEMORY": 4,
    "PEERBUS_TIMED_OUT": 5,
    "PEERBUS_PEER_DEAD": 6,
    "PEERBUS_POISONED": 7,
    "PEERBUS_REFUSED": 8,
    "PEERBUS_UNSUPPORTED": 9,
    "PEERBUS_SYSTEM": 10,
    "PEERBUS_UNREACHABLE": 11,
    "PEERBUS_VIEW_CHANGED": 12,
    "PEERBUS_INTERRUPTED": 64,
    "PEERBUS_INTERNAL": 65,
    "PEERBUS_AUTOMATIC_TRANSPORT": 0,
    "PEERBUS_UNIFIED_BUS": 1,
    "PEERBUS_PLANES": 2,
    "PEERBUS_PLANES_VERBS": 3,
    "PEERBUS_FABRIC": 4,
    "PEERBUS_VERBS": 5,
    "PEERBUS_ATTACHMENTS": 4,
    "PEERBUS_BF16": 0,
    "PEERBUS_INT8_PER_TOKEN": 1,
    "PEERBUS_FP8_PER_128_F32": 2,
    "PEERBUS_FP8_PER_128_ROUNDED": 3,
    "PEERBUS_FP8_PER_128_UE8M0": 4,
    "PEERBUS_FP8_AS_GIVEN": 5,
    "PEERBUS_NO_ROWS": 6,
    "PEERBUS_COMPACT": 0,
    "PEERBUS_PADDED": 1,
    "PEERBUS_RANK_MAJOR": 2,
    "PEERBUS_SLOTS": 3,
    "PEERBUS_EXPERT_SLOTS": 4,
    "PEERBUS_REPLICA_NEAREST": 0,
    "PEERBUS_REPLICA_ROUND_ROBIN": 1,
    "PEERBUS_REPLICA_WEIGHTED": 2,
    "PEERBUS_REPLICA_FIXED": 3,
    "PEERBUS_LOST_DROPPED": 0,
    "PEERBUS_LOST_RENORMALISED": 1,
    "PEERBUS_LOST_REFUSED": 2,
    "PEERBUS_AUTOMATIC": 0,
    "PEERBUS_ONE_SHOT": 1,
    "PEERBUS_TWO_SHOTS": 2,
    "PEERBUS_DOUBLING": 3,
    "PEERBUS_RING": 4,
    "PEERBUS_TWO_LEVELS": 5,
    "PEERBUS_OF_ALL_REDUCE": 0,
    "PEERBUS_OF_ALL_GATHER": 1,
    "PEERBUS_OF_REDUCE_SCATTER": 2,
    "PEERBUS_OF_BROADCAST": 3,
    "PEERBUS_INT": 0,
    "PEERBUS_UINT": 1,
    "PEERBUS_FLOAT": 2,
    "PEERBUS_BFLOAT": 4,
    "PEERBUS_BOOL": 6,
    "PEERBUS_FLOAT8_E4M3FN": 10,
    "PEERBUS_DTYPE_REFUSED": 0,
    "PEERBUS_SUM": 0,
    "PEERBUS_PRODUCT": 1,
    "PEERBUS_MINIMUM": 2,
    "PEERBUS_MAXIMUM": 3,
    "PEERBUS_UNRESTRICTED": 0,
    "PEERBUS_DEEPEP_V1": 1,
    "PEERBUS_ASCEND_A2": 2,
    "PEERBUS_ASCEND_A3": 3,
    "PEERBUS_DEEPEP_V2_5": 4,
    "PEERBUS_ASCEND_950": 5,
    "PEERBUS_NORMAL_DISPATCH": 0,
    "PEERBUS_NORMAL_COMBINE": 1,
    "PEERBUS_LOW_LATENCY_DISPATCH": 2,
    "PEERBUS_LOW_LATENCY_COMBINE": 3,
    "PEERBUS_EP_DISPATCH": 4,
    "PEERBUS_EP_COMBINE": 5,
    "PEERBUS_BUCKET_ALL_GATHER": 6,
    "PEERBUS_BUCKET_REDUCE_SCATTER": 7,
    "PEERBUS_BUCKET_ALL_REDUCE": 8,
    "PEERBUS_EP_PREFETCH_WEIGHTS": 9,
    "PEERBUS_FINDING_REFUSED": 0,
    "PEERBUS_FINDING_NO_EFFECT": 1,
    "PEERBUS_FINDING_DIFFERS": 2,
    "PEERBUS_FINDING_SET": 3,
    "PEERBUS_FINDING_UNSET": 4,
    "PEERBUS_EPLB_PUBLISHED": 0,
    "PEERBUS_EPLB_SPREAD": 1,
    "PEERBUS_EPLB_INCREMENTAL": 2,
}

# The functions without their peerbus_: the type of the result, and of each argument.
FUNCTIONS = {
    "version": (c_uint32, []),
    "permit_private_reads": (c_int32, []),
    "code_text": (c_char_p, [c_int32]),
    "last_error": (c_char_p, []),
    "launched": (c_int32, []),
    "comm_from_environment": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "comm_at": (c_int32, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "comm_over": (c_int32, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "comm_subgroup": (c_int32, [c_void_p, c_void_p, c_uint64, c_void_p, POINTER(c_void_p)]),
    "run_threads": (c_int32, [c_uint64, rank_function, c_void_p, c_void_p, POINTER(c_int32)]),
    "run_processes": (c_int32, [c_uint64, rank_function, c_void_p, c_void_p, POINTER(c_int32)]),
    "comm_destroy": (c_int32, [POINTER(c_void_p)]),
    "comm_rank": (c_uint64, [c_void_p]),
    "comm_size": (c_uint64, [c_void_p]),
    "comm_is_near": (c_int32, [c_void_p, c_uint64]),
    "comm_transport": (c_char_p, [c_void_p]),
    "comm_barrier": (c_int32, [c_void_p, c_int64]),
    "comm_start_trace": (c_int32, [c_void_p, c_uint64, c_int64]),
    "comm_write_trace": (c_int32, [c_void_p, c_char_p, c_int64]),
    "comm_continue": (c_int32, [c_void_p, c_int64]),
    "comm_continue_without": (c_int32, [c_void_p, c_void_p, c_uint64, c_int64]),
    "comm_view": (c_uint64, [c_void_p]),
    "comm_is_member": (c_int32, [c_void_p, c_uint64]),
    "comm_rank_state": (c_int32, [c_void_p, c_uint64]),
    "comm_last_seen": (c_int32, [c_void_p, c_uint64, c_void_p]),
    "comm_survivors": (c_int32, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "comm_with_vacancies": (c_int32, [c_void_p, c_void_p, c_uint64, c_void_p, POINTER(c_void_p)]),
    "comm_admit": (c_int32, [c_void_p, c_void_p, c_void_p, POINTER(c_void_p)]),
    "comm_refusal": (c_char_p, [c_void_p]),
    "comm_join": (c_int32, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "comm_progress": (c_int32, [c_void_p]),
    "comm_set_interrupt": (c_int32, [c_void_p, interrupt_function, c_void_p]),
    "comm_set_python": (c_int32, [c_void_p, c_void_p]),
    "exchange_create": (c_int32, [c_void_p, c_void_p, c_int64, POINTER(c_void_p)]),
    "exchange_destroy": (None, [POINTER(c_void_p)]),
    "exchange_bytes": (c_uint64, [c_void_p]),
    "dispatch": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "dispatch_send": (c_int32, [c_void_p, c_void_p, POINTER(c_uint64)]),
    "dispatch_recv": (c_int32, [c_void_p, c_uint64, POINTER(c_int64), c_int64, c_void_p]),
    "combine": (c_int32, [c_void_p, c_uint64, c_void_p]),
    "combine_send": (c_int32, [c_void_p, c_uint64, c_void_p]),
    "combine_recv": (c_int32, [c_void_p, c_uint64, c_void_p]),
    "exchange_resume": (c_int32, [c_void_p, c_int32, c_int64, c_void_p]),
    "exchange_install_experts": (c_int32, [c_void_p, c_void_p, c_uint64, c_void_p, c_int64]),
    "exchange_plan_experts": (c_int32, [c_void_p, c_void_p, c_double, c_uint64, c_uint64,
                                        POINTER(c_uint32), c_uint64, POINTER(c_uint64)]),
    "exchange_count_rows": (c_int32, [c_void_p, c_uint64, POINTER(c_uint32), c_uint64,
                                      POINTER(c_int32)]),
    "awaits_combine": (c_int32, [c_void_p, c_uint64]),
    "output": (c_int32, [c_void_p, c_uint64, c_uint64, POINTER(c_void_p)]),
    "output_attachment": (c_int32, [c_void_p, c_uint64, c_uint64, POINTER(c_void_p)]),
    "decode": (c_int32, [c_void_p, c_uint64, c_uint64, POINTER(c_float)]),
    "note": (c_int32, [c_void_p, c_uint64, c_uint64, c_void_p, POINTER(c_uint64)]),
    "returned_attachment": (c_int32, [c_void_p, c_uint64, c_uint64, c_uint64, c_uint64, c_void_p]),
    "window_create": (c_int32, [c_void_p, c_uint64, c_uint64, c_int64, POINTER(c_void_p)]),
    "window_destroy": (None, [POINTER(c_void_p)]),
    "window_bytes": (c_uint64, [c_void_p]),
    "window_part": (c_void_p, [c_void_p, c_uint64]),
    "window_put": (c_int32, [c_void_p, c_uint64, c_uint64, c_void_p, c_uint64]),
    "window_signal": (c_int32, [c_void_p, c_uint64, c_uint64, c_uint64]),
    "window_put_signal": (c_int32, [c_void_p, c_uint64, c_uint64, c_void_p, c_uint64, c_uint64,
                                    c_uint64]),
    "window_get": (c_int32, [c_void_p, c_uint64, c_uint64, c_void_p, c_uint64]),
    "window_fetch_add": (c_int32, [c_void_p, c_uint64, c_uint64, c_uint64, POINTER(c_uint64)]),
    "window_flush": (c_int32, [c_void_p, c_uint64]),
    "window_wait": (c_int32, [c_void_p, c_uint64, c_uint64, c_uint64, c_int64]),
    "window_signal_value": (c_uint64, [c_void_p, c_uint64]),
    "team_create": (c_int32, [c_void_p, c_void_p, c_int64, POINTER(c_void_p)]),
    "team_in_window": (c_int32, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "team_in_halves": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "team_finish": (c_int32, [c_void_p, c_int64]),
    "team_algorithm": (c_int32, [c_void_p, c_int32, c_uint64, c_uint32, POINTER(c_int32)]),
    "team_resume": (c_int32, [c_void_p, c_int64]),
    "team_rank": (c_uint64, [c_void_p]),
    "team_size": (c_uint64, [c_void_p]),
    "team_destroy": (None, [POINTER(c_void_p)]),
    "broadcast": (c_int32, [c_void_p, c_void_p, c_uint64, c_int32, c_uint64, c_int64]),
    "gather": (c_int32, [c_void_p, c_void_p, c_void_p, c_uint64, c_int32, c_uint64, c_int64]),
    "scatter": (c_int32, [c_void_p, c_void_p, c_void_p, c_uint64, c_int32, c_uint64, c_int64]),
    "gather_v": (c_int32, [c_void_p, c_void_p, c_uint64, c_void_p, c_void_p, c_void_p, c_int32,
                           c_uint64, c_int64]),
    "scatter_v": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_uint64, c_int32,
                            c_uint64, c_int64]),
    "all_gather": (c_int32, [c_void_p, c_void_p, c_void_p, c_uint64, c_int32, c_int64]),
    "all_gather_v": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int64]),
    "all_to_all": (c_int32, [c_void_p, c_void_p, c_void_p, c_uint64, c_int32, c_int64]),
    "all_to_all_v": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
                               c_int32, c_int64]),
    "reduce": (c_int32, [c_void_p, c_void_p, c_void_p, c_uint64, c_int32, c_int32, c_uint64,
                         c_int64]),
    "all_reduce": (c_int32, [c_void_p, c_void_p, c_void_p, c_uint64, c_int32, c_int32, c_int64]),
    "all_reduce_add": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_uint64, c_int32,
                                 c_int64]),
    "reduce_scatter": (c_int32, [c_void_p, c_void_p, c_void_p, c_uint64, c_int32, c_int32,
                                 c_int64]),
    "reduce_scatter_v": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32,
                                   c_int32, c_int64]),
    "all_gather_coded": (c_int32, [c_void_p, c_int32, c_void_p, c_uint64, c_uint64, c_void_p,
                                   c_void_p, c_int32, c_int64]),
    "channels_create": (c_int32, [c_void_p, c_void_p, c_int64, POINTER(c_void_p)]),
    "channels_resume": (c_int32, [c_void_p, c_int64]),
    "channels_destroy": (None, [POINTER(c_void_p)]),
    "send": (c_int32, [c_void_p, c_void_p, c_uint64, c_int32, c_uint64, c_int64]),
    "recv": (c_int32, [c_void_p, c_void_p, c_uint64, c_int32, c_uint64, c_int64]),
    "batch_send_recv": (c_int32, [c_void_p, c_void_p, c_uint64, c_int64]),
    "channels_in_halves": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "channels_finish": (c_int32, [c_void_p, c_int64]),
    "target_name": (c_char_p, [c_int32]),
    "examine": (c_int32, [c_int32, c_void_p, finding_function, c_void_p]),
    "findings": (c_int32, [c_int32, c_void_p, c_void_p, c_uint64, POINTER(c_uint64)]),
    "require": (c_int32, [c_int32, c_void_p]),
    "nvl_buffer_size_hint": (c_int32, [c_void_p, c_uint64, c_uint64, POINTER(c_uint64)]),
    "ep_buffer_size_hint": (c_uint64, [c_uint64, c_uint64, c_uint64, c_uint64, c_uint32, c_uint32]),
    "buffer_create": (c_int32, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "buffer_destroy": (None, [POINTER(c_void_p)]),
    "result_wait": (c_int32, [c_void_p]),
    "result_destroy": (None, [POINTER(c_void_p)]),
    "low_latency_rdma_size_hint": (c_uint64, [c_uint64, c_uint64, c_uint64, c_uint64]),
    "low_latency_dispatch": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "low_latency_combine": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "buffer_refuse": (c_int32, [c_void_p, c_int32, c_char_p, c_int64]),
    "buffer_call_other_form": (c_int32, [c_void_p, c_int64]),
    "low_latency_combine_buffer": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "low_latency_clean": (c_int32, [c_void_p, c_uint64, c_uint64, c_uint64]),
    "get_dispatch_layout": (c_int32, [c_void_p, c_void_p, c_uint64, c_void_p]),
    "normal_dispatch": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "normal_combine": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "low_latency_barrier": (c_int32, [c_void_p, c_int64]),
    "low_latency_mask": (c_int32, [c_void_p, c_uint64, c_uint32]),
    "low_latency_masks": (c_int32, [c_void_p, c_void_p]),
    "ep_buffer_create": (c_int32, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "ep_buffer_destroy": (None, [POINTER(c_void_p)]),
    "ep_dispatch": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "ep_combine": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "ep_buffer_refuse": (c_int32, [c_void_p, c_char_p, c_int64]),
    "ep_buffer_call_other_form": (c_int32, [c_void_p, c_int64]),
    "fold_rows": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "eplb_plan": (c_int32, [c_void_p, c_void_p]),
    "expert_weights_create": (c_int32, [c_void_p, c_void_p, c_void_p, c_int64, POINTER(c_void_p)]),
    "expert_weights_destroy": (None, [POINTER(c_void_p)]),
    "expert_weights_tensor": (c_int32, [c_void_p, c_uint64, c_uint64, POINTER(c_void_p)]),
    "expert_weights_experts": (c_int32, [c_void_p, POINTER(c_uint32), c_uint64]),
    "expert_weights_begin": (c_int32, [c_void_p, c_void_p, c_uint64, c_int64, POINTER(c_uint64)]),
    "expert_weights_advance": (c_int32, [c_void_p, c_uint64, POINTER(c_int32)]),
    "expert_weights_commit": (c_int32, [c_void_p, POINTER(c_void_p), c_uint64, c_void_p,
                                        POINTER(c_int32)]),
    "expert_weights_is_moving": (c_int32, [c_void_p]),
    "expert_weights_abandon": (c_int32, [c_void_p, c_int64]),
    "pp_create": (c_int32, [c_void_p, c_uint64, c_uint64, c_int64, POINTER(c_void_p)]),
    "pp_destroy": (None, [POINTER(c_void_p)]),
    "pp_send": (c_int32, [c_void_p, c_void_p, c_uint64, c_uint64, c_int64]),
    "pp_recv": (c_int32, [c_void_p, c_void_p, c_uint64, c_uint64, c_int64]),
    "pp_storage": (c_void_p, [c_void_p, POINTER(c_uint64)]),
}

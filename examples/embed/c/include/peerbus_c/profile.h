/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_PROFILE_H
#define PEERBUS_C_PROFILE_H

/**
 * @file
 * Checks of calls of DeepEP against the limits of platforms (docs/profiles.md), and the sizes
 * that DeepEP asks for. Nothing here communicates. Threads: any.
 */

#include <peerbus_c/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A platform whose limits calls are checked against. */
enum {
  PEERBUS_UNRESTRICTED = 0, /**< peerbus itself */
  PEERBUS_DEEPEP_V1 = 1,    /**< DeepEP's Buffer, on NVIDIA GPUs */
  PEERBUS_ASCEND_A2 = 2,    /**< DeepEP-Ascend on Atlas A2 */
  PEERBUS_ASCEND_A3 = 3,    /**< DeepEP-Ascend on Atlas A3 */
  PEERBUS_DEEPEP_V2_5 = 4,  /**< DeepEP's EPBuffer, on NVIDIA GPUs */
  PEERBUS_ASCEND_950 = 5    /**< DeepSeek's DeepEP-Ascend on Ascend 950DT */
};

/** Returns the name of a platform, such as "ascend_a3", or NULL if there is none of that number. */
PEERBUS_API const char *peerbus_target_name(int32_t target);

/** Values of `peerbus_call.operation`. */
enum {
  PEERBUS_NORMAL_DISPATCH = 0,
  PEERBUS_NORMAL_COMBINE = 1,
  PEERBUS_LOW_LATENCY_DISPATCH = 2,
  PEERBUS_LOW_LATENCY_COMBINE = 3,
  PEERBUS_EP_DISPATCH = 4,
  PEERBUS_EP_COMBINE = 5,
  PEERBUS_BUCKET_ALL_GATHER = 6,
  PEERBUS_BUCKET_REDUCE_SCATTER = 7,
  PEERBUS_BUCKET_ALL_REDUCE = 8,
  PEERBUS_EP_PREFETCH_WEIGHTS = 9
};

/** Bits of `peerbus_call.options`: an argument of DeepEP that is true or given. */
enum {
  PEERBUS_CALL_DROPPED = 1 << 0, /**< topk_idx contains -1 */
  PEERBUS_CALL_USE_FP8 = 1 << 1,
  PEERBUS_CALL_ROUND_SCALE = 1 << 2,
  PEERBUS_CALL_USE_UE8M0 = 1 << 3,
  PEERBUS_CALL_CUMULATIVE_STATISTICS = 1 << 4,
  PEERBUS_CALL_WAIT_STATISTICS = 1 << 5,
  PEERBUS_CALL_USE_LOGFMT = 1 << 6,
  PEERBUS_CALL_ZERO_COPY = 1 << 7,
  PEERBUS_CALL_OUT = 1 << 8,
  PEERBUS_CALL_RETURN_RECV_HOOK = 1 << 9,
  PEERBUS_CALL_ASYNC_FINISH = 1 << 10,
  PEERBUS_CALL_HANDLE = 1 << 11, /**< of an earlier dispatch */
  PEERBUS_CALL_BIAS = 1 << 12,
  PEERBUS_CALL_CONFIG = 1 << 13,
  PEERBUS_CALL_PREVIOUS_EVENT = 1 << 14,
  PEERBUS_CALL_ALLOCATE_ON_COMM_STREAM = 1 << 15,
  PEERBUS_CALL_DO_EXPAND = 1 << 16,
  PEERBUS_CALL_DO_HANDLE_COPY = 1 << 17,
  PEERBUS_CALL_NO_MULTIPLE_REDUCTION = 1 << 18, /**< allow_multiple_reduction is false */
  PEERBUS_CALL_NARROW_TOPK_IDX = 1 << 19,       /**< topk_idx is given and is not int64 */
  PEERBUS_CALL_SL_IDX = 1 << 20,
  PEERBUS_CALL_NO_LOW_LATENCY_MODE = 1 << 21, /**< of the buffer: low_latency_mode is false */
  PEERBUS_CALL_GAPS_IN_X = 1 << 22,           /**< x is not contiguous */
  PEERBUS_CALL_NUM_RDMA_BYTES = 1 << 23,      /**< of the buffer: `num_rdma_bytes` is known */
  PEERBUS_CALL_NUM_NVL_BYTES = 1 << 24,       /**< of the buffer: `num_nvl_bytes` is known */
  PEERBUS_CALL_WEIGHTS = 1 << 25              /**< topk_weights of low_latency_dispatch */
};

/** One call of DeepEP's API as plain values. Members of another operation are ignored. Calls of
 * BucketBuffer have a list of tensors: `tokens` is their number, and `hidden` the greatest common
 * divisor of their bytes on this rank, or 0 if one of them is empty. */
typedef struct peerbus_call {
  uint32_t struct_bytes;           /**< sizeof(peerbus_call) */
  int32_t operation;               /**< PEERBUS_NORMAL_DISPATCH and so on */
  uint64_t ranks;                  /**< of the group */
  uint64_t ranks_per_node;         /**< 0: the usual number of the platform */
  uint64_t tokens;                 /**< of this rank */
  uint64_t max_tokens;             /**< most tokens of a rank; not in normal mode */
  uint64_t hidden;                 /**< values of a token */
  uint64_t top_k;                  /**< columns of topk_idx; 0 in normal mode: none is given */
  uint64_t experts;                /**< of all ranks */
  int32_t element;                 /**< of x: 0 bfloat16, 1 float8_e4m3fn, 2 another type */
  uint32_t options;                /**< bits PEERBUS_CALL_... */
  uint64_t expert_alignment;       /**< 0: 1 */
  uint64_t num_worst_tokens;       /**< 0: none */
  uint64_t num_sms;                /**< of calls of version 2.5; 0: automatic */
  uint64_t num_qps;                /**< likewise */
  uint64_t hccl_buffsize_mb;       /**< HCCL_BUFFSIZE of the target; 0: not set */
  uint64_t nvshmem_qp_depth;       /**< NVSHMEM_QP_DEPTH; 0: not set */
  uint64_t normal_long_seq_rounds; /**< DEEPEP_NORMAL_LONG_SEQ_ROUND; 0: not set */
  uint32_t moe_enable_topk_neg_one; /**< MOE_ENABLE_TOPK_NEG_ONE */
  uint32_t reserved;               /**< 0 */
  uint64_t num_rdma_bytes;         /**< of the buffer, with PEERBUS_CALL_NUM_RDMA_BYTES */
  uint64_t num_nvl_bytes;          /**< of the buffer, with PEERBUS_CALL_NUM_NVL_BYTES */
} peerbus_call;

/** Values of `peerbus_finding.kind`. */
enum {
  PEERBUS_FINDING_REFUSED = 0,   /**< the call fails there, or gives wrong results */
  PEERBUS_FINDING_NO_EFFECT = 1, /**< the argument is accepted and ignored there */
  PEERBUS_FINDING_DIFFERS = 2,   /**< the call works, but its results look different */
  PEERBUS_FINDING_SET = 3,       /**< an environment variable must be set: `what`=`expected` */
  PEERBUS_FINDING_UNSET = 4      /**< an environment variable must not be set */
};

/** One thing that a platform does not do as a call asks, or a variable that it needs. The texts are
 * valid during the call of a `peerbus_finding_function`. */
typedef struct peerbus_finding {
  uint32_t struct_bytes; /**< sizeof(peerbus_finding) of the library */
  int32_t kind;          /**< PEERBUS_FINDING_REFUSED and so on */
  const char *what;      /**< the argument, limit or variable */
  const char *given;     /**< its value; "" for variables and PEERBUS_FINDING_DIFFERS */
  const char *expected;  /**< what the platform accepts, or the value to set; may be "" */
  const char *advice;    /**< what to change, or what to know */
} peerbus_finding;

/** Receives a finding. */
typedef void (*peerbus_finding_function)(const peerbus_finding *finding, void *context);

/**
 * Calls `visit` for each thing that the platform does not do as the call asks, in a fixed order, and
 * for each environment variable that it needs. Variables that are 0 in `call` count as set to the
 * value that the platform needs.
 * Errors: PEERBUS_INVALID_ARGUMENT for a target or an operation that does not exist.
 */
PEERBUS_API peerbus_code peerbus_examine(int32_t target, const peerbus_call *call,
                                         peerbus_finding_function visit, void *context);

/**
 * Does as `peerbus_examine`, but writes the findings to `findings`, at most `capacity` of them, and
 * their number to `count`, which may be greater than `capacity`. For languages in which a function
 * that is called back cannot pass on its errors. The texts are valid until the calling thread calls
 * this function again.
 */
PEERBUS_API peerbus_code peerbus_findings(int32_t target, const peerbus_call *call,
                                          peerbus_finding *findings, uint64_t capacity,
                                          uint64_t *count);

/** Returns PEERBUS_INVALID_ARGUMENT, with a text that lists everything, if the platform refuses or
 * ignores something of the call. Variables that are 0 in `call` count as not set. */
PEERBUS_API peerbus_code peerbus_require(int32_t target, const peerbus_call *call);

/** DeepEP's Config. */
typedef struct peerbus_deep_ep_config {
  uint32_t struct_bytes; /**< sizeof(peerbus_deep_ep_config) */
  uint32_t reserved;     /**< 0 */
  /**@{*/
  /** The member of DeepEP's Config that has this name. */
  uint64_t num_sms;
  uint64_t num_max_nvl_chunked_send_tokens;
  uint64_t num_max_nvl_chunked_recv_tokens;
  uint64_t num_max_rdma_chunked_send_tokens;
  uint64_t num_max_rdma_chunked_recv_tokens;
  /**@}*/
} peerbus_deep_ep_config;

/** Sets `*bytes` to what DeepEP's get_nvl_buffer_size_hint returns. Errors:
 * PEERBUS_INVALID_ARGUMENT names a member that DeepEP would not accept. */
PEERBUS_API peerbus_code peerbus_nvl_buffer_size_hint(const peerbus_deep_ep_config *config,
                                                      uint64_t hidden_bytes, uint64_t num_ranks,
                                                      uint64_t *bytes);

/** Returns the bytes that get_buffer_size_hint of DeepEP's version 2 returns within an NVLink
 * domain. A `num_topk` of 0 stands for 32. */
PEERBUS_API uint64_t peerbus_ep_buffer_size_hint(uint64_t num_ranks,
                                                 uint64_t num_max_tokens_per_rank, uint64_t hidden,
                                                 uint64_t num_topk, uint32_t use_fp8_dispatch,
                                                 uint32_t allow_multiple_reduction);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_DEEP_EP_H
#define PEERBUS_C_DEEP_EP_H

/**
 * @file
 * The calls of DeepEP's Buffer (V1), normal and low-latency. docs/porting-from-deepep.md explains
 * them; the names of arguments and results are DeepEP's. In shapes: T tokens of this rank, H hidden,
 * K slots, E experts of all ranks, L experts of this rank, R ranks, B most tokens of a rank, N rows
 * received by this rank.
 *
 * All ranks make the same calls in the same order. Errors: PEERBUS_INVALID_ARGUMENT and
 * PEERBUS_UNSUPPORTED name an argument that this rank gave. The other ranks then fail with
 * PEERBUS_REFUSED at once, which quotes that text. If ranks give different values to an argument
 * that must be equal, all fail with PEERBUS_MISMATCH, which names it. The call has no effect on any
 * rank, and the next one works. A call without a buffer, or with one that another thread uses, fails
 * on this rank only. Otherwise as the calls of an exchange.
 */

#include <peerbus_c/comm.h>
#include <peerbus_c/profile.h>
#include <peerbus_c/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** DeepEP's Buffer. */
typedef struct peerbus_buffer peerbus_buffer;

/** The part of a call that stays beside its tensors: DeepEP's handle, its event and its hook. */
typedef struct peerbus_result peerbus_result;

/** Options of a buffer, equal on all ranks except for `between`. NULL stands for all defaults. */
typedef struct peerbus_buffer_options {
  uint32_t struct_bytes;            /**< sizeof(peerbus_buffer_options) */
  int32_t target;                   /**< PEERBUS_UNRESTRICTED and so on */
  uint64_t num_max_tokens_per_rank; /**< tokens of a rank that a normal dispatch first takes memory
                                     * for, and more when a rank has more; 0: 4096 */
  uint64_t in_flight;               /**< dispatches of one shape whose results are valid; 0: 2 */
  uint32_t zero_copy;               /**< 1: allow zero_copy combines; takes more memory */
  uint32_t enable_shrink; /**< 1: allow masks; low-latency calls go on without ranks that are gone */
  uint64_t target_ranks_per_node;   /**< 0: the usual number */
  uint64_t hccl_buffsize_mb;        /**< the target's HCCL_BUFFSIZE; 0: not set */
  uint64_t nvshmem_qp_depth;        /**< the target's NVSHMEM_QP_DEPTH; 0: not set */
  uint64_t normal_long_seq_rounds;  /**< the target's DEEPEP_NORMAL_LONG_SEQ_ROUND; 0: not set */
  uint32_t moe_enable_topk_neg_one; /**< the target's MOE_ENABLE_TOPK_NEG_ONE */
  uint32_t relay;                   /**< PEERBUS_RELAY_NEVER and so on */
  uint32_t skip_other_ids; /**< 1: normal calls skip ids of E and more, as DeepEP does; 0: refuse */
  uint32_t same_bits;      /**< 1: refuses normal calls and PEERBUS_RELAY_ALWAYS, by which a token's
                            * result would depend on other ranks or tokens (docs/reproducibility.md) */
  uint64_t between;        /**< as in peerbus_exchange_config */
} peerbus_buffer_options;

/** Makes a buffer without communication and sets `*buffer`. The first call of a shape allocates. The
 * caller destroys it. */
PEERBUS_API peerbus_code peerbus_buffer_create(peerbus_comm *comm,
                                               const peerbus_buffer_options *options,
                                               peerbus_buffer **buffer);
/** Destroys `*buffer` and sets it to NULL. Not collective. Does nothing if either is NULL. */
PEERBUS_API void peerbus_buffer_destroy(peerbus_buffer **buffer);

/** Completes the call that left `result`: the call of its hook, or `current_stream_wait` of its
 * event. A hook must be called exactly once, in the order of the calls. Errors: as its call, and
 * PEERBUS_INVALID_ARGUMENT if a hook was called before or the buffer is gone. */
PEERBUS_API peerbus_code peerbus_result_wait(peerbus_result *result);
/** Destroys `*result` and sets it to NULL. A result may outlive its buffer. */
PEERBUS_API void peerbus_result_destroy(peerbus_result **result);

/** Returns the bytes that DeepEP's get_low_latency_rdma_size_hint returns. */
PEERBUS_API uint64_t peerbus_low_latency_rdma_size_hint(uint64_t num_max_dispatch_tokens_per_rank,
                                                        uint64_t hidden, uint64_t num_ranks,
                                                        uint64_t num_experts);

/** The arguments of `peerbus_low_latency_dispatch`. The tensors of the first group must stay valid
 * until the result is complete. */
typedef struct peerbus_low_latency_dispatch_args {
  uint32_t struct_bytes;   /**< sizeof(peerbus_low_latency_dispatch_args) */
  uint32_t use_fp8;        /**< 1: rows travel and arrive as E4M3; 0: bf16 */
  uint32_t round_scale;    /**< 1: scales are powers of two */
  uint32_t use_ue8m0;      /**< 1: scales are packed exponents; needs round_scale */
  uint32_t async_finish;   /**< 1: complete after `peerbus_result_wait` */
  uint32_t return_recv_hook; /**< 1: likewise */
  const peerbus_tensor *x; /**< bfloat16 [T, H] */
  const peerbus_tensor *cumulative_local_expert_recv_stats; /**< int32 [L] or NULL: added to */
  const peerbus_tensor *dispatch_wait_recv_cost_stats; /**< int64 [R] ns or NULL: added to */
  const peerbus_tensor *topk_idx; /**< int64 or int32 [T, K]; negative: none */
  uint64_t num_max_dispatch_tokens_per_rank; /**< B */
  uint64_t num_experts;    /**< E */
  int64_t timeout_ns;      /**< 0: the default of the communicator */
  const peerbus_tensor *topk_weights; /**< float32 [T, K], or NULL on all ranks; travels with x */
} peerbus_low_latency_dispatch_args;

/** The rows of a low-latency dispatch, valid until the `in_flight`th next one of the same hidden,
 * experts, K and format, whatever its num_max_dispatch_tokens_per_rank. */
typedef struct peerbus_low_latency_received {
  uint32_t struct_bytes;       /**< sizeof(peerbus_low_latency_received) */
  uint32_t reserved;           /**< 0 */
  peerbus_array recv_x;        /**< [L, R*B, H] float8_e4m3fn or bfloat16 */
  peerbus_array recv_x_scales; /**< [L, R*B, H/128] float32, or int32; by columns; none for bf16 */
  peerbus_array recv_count;    /**< int32 [L] */
  peerbus_array src_info;      /**< int32 [L, R*B]: index at the sender */
  peerbus_array layout_range;  /**< int64 [L, R]: count, and first row << 32 */
  peerbus_result *result;      /**< for combine and for waiting; the caller destroys it */
  peerbus_array recv_topk_weights; /**< float32 [L, R*B], or none without topk_weights */
  peerbus_array recv_rank_info;    /**< int32 [L, R*B]: source ranks, or none likewise */
} peerbus_low_latency_received;

/** Collective: sends each token to every expert that it names, and fills `*received`. Overwrites the
 * rows of the `in_flight`th dispatch before it that differs from it at most in its tokens and in
 * num_max_dispatch_tokens_per_rank. */
PEERBUS_API peerbus_code peerbus_low_latency_dispatch(peerbus_buffer *buffer,
                                                      const peerbus_low_latency_dispatch_args *args,
                                                      peerbus_low_latency_received *received);

/** The arguments of `peerbus_low_latency_combine`. */
typedef struct peerbus_low_latency_combine_args {
  uint32_t struct_bytes;          /**< sizeof(peerbus_low_latency_combine_args) */
  uint32_t zero_copy;             /**< 1: x is the combine buffer */
  uint32_t async_finish;          /**< 1: complete after `peerbus_result_wait` */
  uint32_t return_recv_hook;      /**< 1: likewise */
  const peerbus_tensor *x;        /**< bfloat16 [L, R*B, H]; read before the call returns */
  const peerbus_tensor *topk_idx; /**< that of the dispatch */
  const peerbus_tensor *topk_weights; /**< float32 [T, K]; valid until complete */
  const peerbus_tensor *out;      /**< bfloat16 [T, H], or NULL: in the buffer, until the handle is
                                   * combined again */
  const peerbus_tensor *combine_wait_recv_cost_stats; /**< int64 [R] ns or NULL: added to */
  const peerbus_result *handle;   /**< of the dispatch */
  int64_t timeout_ns;             /**< 0: the default of the communicator */
  uint32_t use_logfmt;            /**< 1: outputs travel as LogFMT-10; not with zero_copy */
  uint32_t reserved;              /**< 0 */
} peerbus_low_latency_combine_args;

/** The sums of a combine, valid as long as the rows of its dispatch, and until the handle is combined
 * again. Sums in `out` are the caller's. */
typedef struct peerbus_combined {
  uint32_t struct_bytes;               /**< sizeof(peerbus_combined) */
  uint32_t reserved;                   /**< 0 */
  peerbus_array combined_x;            /**< bfloat16 [T, H] */
  peerbus_array combined_topk_weights; /**< float32 [T, K]; only of a normal combine with weights */
  peerbus_result *result;              /**< for waiting; the caller destroys it */
} peerbus_combined;

/** Collective: returns rows to their home ranks and adds them up there, weighted. A handle may be
 * combined again; without `out`, that overwrites its earlier sums. */
PEERBUS_API peerbus_code peerbus_low_latency_combine(peerbus_buffer *buffer,
                                                     const peerbus_low_latency_combine_args *args,
                                                     peerbus_combined *combined);
/** Collective: refuses the call that the other ranks make, because this rank found an error in its
 * own input, which `why` states. Use it in place of the call. The other ranks fail with
 * PEERBUS_REFUSED, which quotes `why`. `low_latency`: 1 for a low-latency call, 0 for a normal one.
 * `timeout_ns`: 0: the default of the communicator. */
PEERBUS_API peerbus_code peerbus_buffer_refuse(peerbus_buffer *buffer, int32_t low_latency,
                                               const char *why, int64_t timeout_ns);
/** Collective: states that the next call is one with `do_expand`, `peerbus_ep_dispatch` or
 * `peerbus_ep_combine`. Use it before such a call where ranks choose between the two forms by an
 * argument that may differ. Fails with PEERBUS_MISMATCH on all ranks if some rank makes a normal
 * call of this buffer. `timeout_ns`: 0: the default of the communicator. */
PEERBUS_API peerbus_code peerbus_buffer_call_other_form(peerbus_buffer *buffer, int64_t timeout_ns);
/** Sets `*x` to the place for outputs of a zero_copy combine: bfloat16 [L, R*B, H]. */
PEERBUS_API peerbus_code peerbus_low_latency_combine_buffer(peerbus_buffer *buffer,
                                                            const peerbus_result *handle,
                                                            peerbus_array *x);
/** Collective: frees the memory of low-latency calls of other shapes. Nothing needs cleaning. */
PEERBUS_API peerbus_code peerbus_low_latency_clean(peerbus_buffer *buffer,
                                                   uint64_t num_max_dispatch_tokens_per_rank,
                                                   uint64_t hidden, uint64_t num_experts);

/** The counts that a normal dispatch needs. The caller destroys `result`, which keeps them valid. */
typedef struct peerbus_dispatch_layout {
  uint32_t struct_bytes;               /**< sizeof(peerbus_dispatch_layout) */
  uint32_t reserved;                   /**< 0 */
  peerbus_array num_tokens_per_rank;   /**< int32 [R] */
  peerbus_array num_tokens_per_expert; /**< int32 [E] */
  peerbus_array is_token_in_rank;      /**< bool [T, R] */
  peerbus_result *result;              /**< keeps the arrays valid */
} peerbus_dispatch_layout;

/** Counts the tokens of `topk_idx` for each rank and expert, without communication. Negative ids are
 * skipped. Errors: PEERBUS_INVALID_ARGUMENT for an id of E and more, unless `skip_other_ids`. */
PEERBUS_API peerbus_code peerbus_get_dispatch_layout(peerbus_buffer *buffer,
                                                     const peerbus_tensor *topk_idx,
                                                     uint64_t num_experts,
                                                     peerbus_dispatch_layout *layout);

/** The arguments of `peerbus_normal_dispatch`, which reads the tensors before it returns. */
typedef struct peerbus_normal_dispatch_args {
  uint32_t struct_bytes;           /**< sizeof(peerbus_normal_dispatch_args) */
  uint32_t reserved;               /**< 0 */
  const peerbus_tensor *x;         /**< bfloat16, float8_e4m3fn or int8 [T, H] */
  const peerbus_tensor *x_scales;  /**< float32, int32 or of one byte [T, S], or NULL */
  const peerbus_result *handle;    /**< an earlier dispatch whose routing is used; or NULL */
  const peerbus_tensor *num_tokens_per_rank;   /**< of the layout; NULL with a handle */
  const peerbus_tensor *is_token_in_rank;      /**< likewise */
  const peerbus_tensor *num_tokens_per_expert; /**< likewise */
  const peerbus_tensor *topk_idx;  /**< int64 or int32 [T, K], negative: none; or NULL */
  const peerbus_tensor *topk_weights; /**< float32 [T, K]; given exactly if topk_idx is */
  uint64_t expert_alignment;       /**< 0: 1 */
  uint64_t num_worst_tokens;       /**< 0, or rows of the results */
  int64_t timeout_ns;              /**< 0: the default of the communicator */
  uint64_t num_max_tokens_per_rank; /**< B, equal on all ranks; 0: any number, or with a handle */
} peerbus_normal_dispatch_args;

/** The rows of a normal dispatch, valid until the `in_flight`th next one of the same shape. */
typedef struct peerbus_normal_received {
  uint32_t struct_bytes;           /**< sizeof(peerbus_normal_received) */
  uint32_t reserved;               /**< 0 */
  peerbus_array recv_x;            /**< [N, H] */
  peerbus_array recv_x_scales;     /**< as x_scales, row by row, or none */
  peerbus_array recv_topk_idx;     /**< int64 [N, K]: local expert or -1 */
  peerbus_array recv_topk_weights; /**< float32 [N, K] */
  peerbus_array num_recv_tokens_per_expert_list; /**< int32 [L], or none; in DeepEP a list */
  peerbus_array rank_prefix;       /**< int32 [R]: rows from ranks 0 to r */
  peerbus_array recv_src_idx;      /**< int32 [N]: index at the sender */
  peerbus_array is_token_in_rank;  /**< bool [T, R]; valid as long as `result` */
  peerbus_result *result;          /**< DeepEP's handle; the caller destroys it */
  uint64_t num_max_tokens_per_rank; /**< B as given, or tokens of a rank that there is memory for */
} peerbus_normal_received;

/** Collective: sends each token once to every rank that holds an expert of it. */
PEERBUS_API peerbus_code peerbus_normal_dispatch(peerbus_buffer *buffer,
                                                 const peerbus_normal_dispatch_args *args,
                                                 peerbus_normal_received *received);

/** The arguments of `peerbus_normal_combine`. */
typedef struct peerbus_normal_combine_args {
  uint32_t struct_bytes;          /**< sizeof(peerbus_normal_combine_args) */
  uint32_t async_finish;          /**< 1: complete after `peerbus_result_wait` */
  const peerbus_tensor *x;        /**< bfloat16 [N, H]; read before the call returns */
  const peerbus_result *handle;   /**< of the dispatch */
  const peerbus_tensor *topk_weights; /**< float32 [N, K], or NULL on all ranks */
  const peerbus_tensor *bias[2];  /**< bfloat16 [T, H] each, or NULL; valid until complete */
  int64_t timeout_ns;             /**< 0: the default of the communicator */
} peerbus_normal_combine_args;

/** Collective: returns rows to their home ranks and adds them up there, unweighted. */
PEERBUS_API peerbus_code peerbus_normal_combine(peerbus_buffer *buffer,
                                                const peerbus_normal_combine_args *args,
                                                peerbus_combined *combined);

/** Returns after all ranks have called it, as `peerbus_comm_barrier`. With enable_shrink, goes on without
 * ranks that are gone, as the other low-latency calls do. */
PEERBUS_API peerbus_code peerbus_low_latency_barrier(peerbus_buffer *buffer, int64_t timeout_ns);

/** Masks (1) or unmasks (0) a rank for the low-latency calls of this rank. Needs enable_shrink. */
PEERBUS_API peerbus_code peerbus_low_latency_mask(peerbus_buffer *buffer, uint64_t rank,
                                                  uint32_t mask);
/** Writes the masks of all ranks to `mask_status`, int32 [R]: 1 is masked. Needs enable_shrink. */
PEERBUS_API peerbus_code peerbus_low_latency_masks(peerbus_buffer *buffer,
                                                   const peerbus_tensor *mask_status);

#ifdef __cplusplus
}
#endif

#endif

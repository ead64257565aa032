/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_EP_BUFFER_H
#define PEERBUS_C_EP_BUFFER_H

/**
 * @file
 * The calls of DeepEP's EPBuffer (version 2.5) with `do_expand`: rows arrive grouped by expert, one
 * per (token, local expert). The form without `do_expand` is `peerbus_normal_dispatch`. Shapes and
 * errors as in deep_ep.h; M rows including the gaps between experts, N received tokens.
 */

#include <peerbus_c/deep_ep.h>

#ifdef __cplusplus
extern "C" {
#endif

/** DeepEP's EPBuffer. */
typedef struct peerbus_ep_buffer peerbus_ep_buffer;

/** Options of a buffer, equal on all ranks except for `between`. NULL stands for all defaults. */
typedef struct peerbus_ep_buffer_options {
  uint32_t struct_bytes;            /**< sizeof(peerbus_ep_buffer_options) */
  uint32_t relay;                   /**< PEERBUS_RELAY_NEVER and so on */
  uint64_t num_max_tokens_per_rank; /**< tokens of a rank that a dispatch without B first takes memory
                                     * for, and more when a rank has more; 0: 4096 */
  uint64_t in_flight;               /**< dispatches of one shape whose results are valid; 0: 2 */
  uint64_t between;                 /**< as in peerbus_exchange_config */
} peerbus_ep_buffer_options;

/** Makes a buffer without communication and sets `*buffer`. The first call of a shape allocates. The
 * caller destroys it. */
PEERBUS_API peerbus_code peerbus_ep_buffer_create(peerbus_comm *comm,
                                                  const peerbus_ep_buffer_options *options,
                                                  peerbus_ep_buffer **buffer);
/** Destroys `*buffer` and sets it to NULL. Not collective. Does nothing if either is NULL. */
PEERBUS_API void peerbus_ep_buffer_destroy(peerbus_ep_buffer **buffer);

/** The arguments of `peerbus_ep_dispatch`, which reads the tensors before it returns. */
typedef struct peerbus_ep_dispatch_args {
  uint32_t struct_bytes;              /**< sizeof(peerbus_ep_dispatch_args) */
  uint32_t do_zero_padding;           /**< 1: gaps are zeros */
  const peerbus_tensor *x;            /**< bfloat16, float8_e4m3fn or int8 [T, H] */
  const peerbus_tensor *x_scales;     /**< float32, int32 or of one byte [T, S], or NULL */
  const peerbus_tensor *topk_idx;     /**< int64 or int32 [T, K]; negative: none */
  const peerbus_tensor *topk_weights; /**< float32 [T, K], or NULL */
  const peerbus_tensor *cumulative_local_expert_recv_stats; /**< int32 [L] or NULL: added to */
  uint64_t num_experts;               /**< E */
  uint64_t expert_alignment;          /**< rows of an expert begin at a multiple; 0: 1 */
  int64_t timeout_ns;                 /**< 0: the default of the communicator */
  uint64_t num_max_tokens_per_rank;   /**< B, equal on all ranks; 0: any number */
} peerbus_ep_dispatch_args;

/** The rows of a dispatch, valid until the `in_flight`th next one of the same shape. */
typedef struct peerbus_ep_received {
  uint32_t struct_bytes;           /**< sizeof(peerbus_ep_received) */
  uint32_t reserved;               /**< 0 */
  peerbus_array recv_x;            /**< [M, H]; of an expert by source rank, then by token */
  peerbus_array recv_x_scales;     /**< as x_scales, row by row, or none */
  peerbus_array recv_topk_weights; /**< float32 [M], or none */
  peerbus_array psum_num_recv_tokens_per_scaleup_rank; /**< int32 [R]: tokens of ranks 0 to r */
  peerbus_array psum_num_recv_tokens_per_expert;       /**< int32 [L]: end of the rows of e */
  peerbus_array num_unaligned_recv_tokens_per_expert;  /**< int32 [L] */
  peerbus_array num_recv_tokens_per_expert_list;       /**< int32 [L], aligned; a list in DeepEP */
  peerbus_array recv_src_metadata; /**< int32 [N, K + 2]: rank * B + token, its first slot, rows */
  uint64_t num_recv_tokens;        /**< N */
  uint64_t num_expanded_tokens;    /**< M */
  peerbus_result *result;          /**< for combine; the caller destroys it */
  uint64_t num_max_tokens_per_rank; /**< B as given, or tokens of a rank that there is memory for */
} peerbus_ep_received;

/** Collective: sends each token to every expert that it names. */
PEERBUS_API peerbus_code peerbus_ep_dispatch(peerbus_ep_buffer *buffer,
                                             const peerbus_ep_dispatch_args *args,
                                             peerbus_ep_received *received);

/** The arguments of `peerbus_ep_combine`. */
typedef struct peerbus_ep_combine_args {
  uint32_t struct_bytes;          /**< sizeof(peerbus_ep_combine_args) */
  uint32_t async_with_compute_stream; /**< 1: complete after `peerbus_result_wait` */
  const peerbus_tensor *x;        /**< bfloat16 [M, H]; read before the call returns */
  const peerbus_result *handle;   /**< of the dispatch */
  const peerbus_tensor *topk_weights; /**< float32 [M], or NULL on all ranks */
  const peerbus_tensor *bias[2];  /**< bfloat16 [T, H] each, or NULL; valid until complete */
  int64_t timeout_ns;             /**< 0: the default of the communicator */
} peerbus_ep_combine_args;

/** Collective: returns rows to their home ranks and adds them up there once, unweighted. A dispatch
 * can be combined any number of times, until `in_flight` later ones. */
PEERBUS_API peerbus_code peerbus_ep_combine(peerbus_ep_buffer *buffer,
                                            const peerbus_ep_combine_args *args,
                                            peerbus_combined *combined);

/** Collective: refuses the call that the other ranks make, as `peerbus_buffer_refuse`. */
PEERBUS_API peerbus_code peerbus_ep_buffer_refuse(peerbus_ep_buffer *buffer, const char *why,
                                                  int64_t timeout_ns);
/** Collective: states that the next call is one without `do_expand`, `peerbus_normal_dispatch` or
 * `peerbus_normal_combine`, as `peerbus_buffer_call_other_form`. */
PEERBUS_API peerbus_code peerbus_ep_buffer_call_other_form(peerbus_ep_buffer *buffer,
                                                           int64_t timeout_ns);

/** Adds up the rows that a rank's experts have made of each token, as DeepEP does with
 * `allow_multiple_reduction` before one row goes home. `x` is bfloat16 [M, H], `slots` int32 [N, K],
 * the rows of each token's slots or -1, `sums` bfloat16 [N, H]: sums of float32 in the order of the
 * slots, rounded; zeros for a token without rows. Does not communicate. */
PEERBUS_API peerbus_code peerbus_fold_rows(const peerbus_tensor *x, const peerbus_tensor *slots,
                                           const peerbus_tensor *sums);

#ifdef __cplusplus
}
#endif

#endif

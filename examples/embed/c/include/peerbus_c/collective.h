/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_COLLECTIVE_H
#define PEERBUS_C_COLLECTIVE_H

/**
 * @file
 * Collective operations: arrays are moved and reduced among all ranks. docs/collectives.md has the
 * algorithms and their cost.
 *
 * All ranks call the same operations of a team in the same order, with equal `count`, `dtype`,
 * `reduction` and `root`, except where an operation says otherwise. n is the number of ranks. `count` is
 * in elements and may be 0; memory may be NULL where no element is read or written. Memory may lie
 * anywhere, and needs no alignment, except in `peerbus_all_gather_coded`.
 *
 * An operation is complete on a rank when it returns there: the caller may then use its output and
 * change its input. Input and output lie apart, or in place as the operation says. Wherever both
 * ranges are the same size, in place means the same range.
 *
 * Errors of all operations, on all ranks alike, with no output written, after which the team remains
 * usable: PEERBUS_MISMATCH if the calls of ranks differ, with both calls; if the arguments are bad on
 * a rank, PEERBUS_INVALID_ARGUMENT there and PEERBUS_REFUSED on the others, with what was wrong. On
 * the calling rank only: PEERBUS_INVALID_ARGUMENT for a team that is NULL. PEERBUS_TIMED_OUT,
 * PEERBUS_PEER_DEAD and PEERBUS_INTERRUPTED poison the communicator, and outputs are then undefined.
 * Also PEERBUS_POISONED.
 *
 * Threads: one operation of a team at a time, by any of its handles. Different teams may be used at the
 * same time.
 */

#include <peerbus_c/exchange.h>
#include <peerbus_c/team.h>
#include <peerbus_c/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The type of an element: PEERBUS_DTYPE(code, bits). */
typedef int32_t peerbus_dtype;

/** Makes an element type of one of DLPack's codes, such as PEERBUS_FLOAT, and a number of bits, a
 * multiple of 8 below 256. */
#define PEERBUS_DTYPE(code, bits) ((code) * 256 + (bits))

/** Element types. Operations that only move elements take any other PEERBUS_DTYPE too. */
enum {
  /** Not a type: the operation fails on all ranks, because the caller has found bad input. */
  PEERBUS_DTYPE_REFUSED = 0,
  PEERBUS_DTYPE_I8 = PEERBUS_DTYPE(PEERBUS_INT, 8),
  PEERBUS_DTYPE_I16 = PEERBUS_DTYPE(PEERBUS_INT, 16),
  PEERBUS_DTYPE_I32 = PEERBUS_DTYPE(PEERBUS_INT, 32), /**< can be reduced */
  PEERBUS_DTYPE_I64 = PEERBUS_DTYPE(PEERBUS_INT, 64), /**< can be reduced */
  PEERBUS_DTYPE_U8 = PEERBUS_DTYPE(PEERBUS_UINT, 8),  /**< can be reduced */
  PEERBUS_DTYPE_U16 = PEERBUS_DTYPE(PEERBUS_UINT, 16),
  PEERBUS_DTYPE_U32 = PEERBUS_DTYPE(PEERBUS_UINT, 32),
  PEERBUS_DTYPE_U64 = PEERBUS_DTYPE(PEERBUS_UINT, 64),
  PEERBUS_DTYPE_F16 = PEERBUS_DTYPE(PEERBUS_FLOAT, 16),
  PEERBUS_DTYPE_F32 = PEERBUS_DTYPE(PEERBUS_FLOAT, 32),    /**< can be reduced */
  PEERBUS_DTYPE_F64 = PEERBUS_DTYPE(PEERBUS_FLOAT, 64),    /**< can be reduced */
  PEERBUS_DTYPE_BF16 = PEERBUS_DTYPE(PEERBUS_BFLOAT, 16),  /**< can be reduced: in f32, rounded once */
  PEERBUS_DTYPE_BOOL = PEERBUS_DTYPE(PEERBUS_BOOL, 8),
  PEERBUS_DTYPE_E4M3 = PEERBUS_DTYPE(PEERBUS_FLOAT8_E4M3FN, 8)
};

/** How elements are reduced. Elements are taken in the order of ranks, so equal inputs give equal bits
 * on every rank and in every run. */
typedef int32_t peerbus_reduction;

enum {
  PEERBUS_SUM = 0,     /**< integers wrap around */
  PEERBUS_PRODUCT = 1, /**< integers wrap around */
  PEERBUS_MINIMUM = 2, /**< if one element is NaN, takes the one of the lower rank */
  PEERBUS_MAXIMUM = 3  /**< if one element is NaN, takes the one of the lower rank */
};

/** Copies the `data` of rank `root` to that of every other rank. `data` is [count]. */
PEERBUS_API peerbus_code peerbus_broadcast(peerbus_team *team, void *data, uint64_t count,
                                           peerbus_dtype dtype, uint64_t root, int64_t timeout_ns);

/** Copies the `input` of every rank, [count], to row `rank` of the `output` of rank `root`, [n, count].
 * Other ranks' output is not touched. In place, `input` is row `root` of `output` at the root. */
PEERBUS_API peerbus_code peerbus_gather(peerbus_team *team, const void *input, void *output,
                                        uint64_t count, peerbus_dtype dtype, uint64_t root,
                                        int64_t timeout_ns);

/** Copies row `rank` of the `input` of rank `root`, [n, count], to the `output` of rank `rank`, [count].
 * Other ranks' input is not read. In place, `output` is row `root` of `input` at the root. */
PEERBUS_API peerbus_code peerbus_scatter(peerbus_team *team, const void *input, void *output,
                                         uint64_t count, peerbus_dtype dtype, uint64_t root,
                                         int64_t timeout_ns);

/**
 * Copies the `input` of every rank, [count], to its part of the `output` of rank `root`. `count` may
 * differ between ranks. `counts` and `displacements` are those of the root: `counts[r]` is the `count`
 * of rank r, and parts lie as in `peerbus_all_gather_v`. Other ranks' output and arrays are not looked
 * at. In place, `input` is the root's part of `output` at the root. Parts that overlap are refused.
 */
PEERBUS_API peerbus_code peerbus_gather_v(peerbus_team *team, const void *input, uint64_t count,
                                          void *output, const uint64_t *counts,
                                          const uint64_t *displacements, peerbus_dtype dtype,
                                          uint64_t root, int64_t timeout_ns);

/**
 * Copies part `rank` of the `input` of rank `root` to the `output` of rank `rank`, [count]. `count` may
 * differ between ranks. `counts` and `displacements` are those of the root: `counts[r]` is the `count`
 * of rank r, and parts lie as in `peerbus_all_gather_v`. Other ranks' input and arrays are not looked
 * at. In place, `output` is the root's part of `input` at the root, and the rest stays as it is.
 */
PEERBUS_API peerbus_code peerbus_scatter_v(peerbus_team *team, const void *input,
                                           const uint64_t *counts, const uint64_t *displacements,
                                           void *output, uint64_t count, peerbus_dtype dtype,
                                           uint64_t root, int64_t timeout_ns);

/** Copies the `input` of every rank, [count], to row `rank` of the `output` of all, [n, count]. In
 * place, `input` is this rank's row of `output`. */
PEERBUS_API peerbus_code peerbus_all_gather(peerbus_team *team, const void *input, void *output,
                                            uint64_t count, peerbus_dtype dtype,
                                            int64_t timeout_ns);

/**
 * Copies the `input` of every rank, [counts[rank]], to its part of the `output` of all. Part r begins
 * at element displacements[r] of `output`, or, if `displacements` is NULL, where the part before ends.
 * Both arrays are [n]; `counts` are equal on all ranks. In place, `input` is this rank's part of
 * `output`. Parts that overlap are refused.
 */
PEERBUS_API peerbus_code peerbus_all_gather_v(peerbus_team *team, const void *input, void *output,
                                              const uint64_t *counts,
                                              const uint64_t *displacements, peerbus_dtype dtype,
                                              int64_t timeout_ns);

/** Copies row `peer` of the `input` of every rank to row `rank` of the `output` of `peer`. Both are
 * [n, count]. */
PEERBUS_API peerbus_code peerbus_all_to_all(peerbus_team *team, const void *input, void *output,
                                            uint64_t count, peerbus_dtype dtype,
                                            int64_t timeout_ns);

/**
 * Copies part `peer` of the `input` of every rank to part `rank` of the `output` of `peer`. Parts lie as
 * in `peerbus_all_gather_v`. sent_counts[b] at rank a equals received_counts[a] at rank b. In place,
 * counts and displacements of both are equal. Parts of `output` that overlap are refused.
 */
PEERBUS_API peerbus_code peerbus_all_to_all_v(peerbus_team *team, const void *input,
                                              const uint64_t *sent_counts,
                                              const uint64_t *sent_displacements, void *output,
                                              const uint64_t *received_counts,
                                              const uint64_t *received_displacements,
                                              peerbus_dtype dtype, int64_t timeout_ns);

/** Reduces the `input` of all ranks, element by element, to the `output` of rank `root`. Both are
 * [count]. Other ranks' output is not touched. */
PEERBUS_API peerbus_code peerbus_reduce(peerbus_team *team, const void *input, void *output,
                                        uint64_t count, peerbus_dtype dtype,
                                        peerbus_reduction reduction, uint64_t root,
                                        int64_t timeout_ns);

/** Reduces the `input` of all ranks, element by element, to the `output` of all. Both are [count]. */
PEERBUS_API peerbus_code peerbus_all_reduce(peerbus_team *team, const void *input, void *output,
                                            uint64_t count, peerbus_dtype dtype,
                                            peerbus_reduction reduction, int64_t timeout_ns);

/**
 * Adds the `input` of all ranks and `residual`, element by element, to the `output` of all. All three
 * are [count]. `residual` is the same on all ranks, which is not checked; it is added last. `output` may
 * be the same range as `input` or `residual`.
 */
PEERBUS_API peerbus_code peerbus_all_reduce_add(peerbus_team *team, const void *input,
                                                const void *residual, void *output, uint64_t count,
                                                peerbus_dtype dtype, int64_t timeout_ns);

/** Reduces row `rank` of the `input` of all ranks, [n, count], to the `output` of rank `rank`, [count].
 * In place, `output` is this rank's row of `input`, and the other rows stay as they are. */
PEERBUS_API peerbus_code peerbus_reduce_scatter(peerbus_team *team, const void *input, void *output,
                                                uint64_t count, peerbus_dtype dtype,
                                                peerbus_reduction reduction, int64_t timeout_ns);

/**
 * Reduces part `rank` of the `input` of all ranks to the `output` of rank `rank`, [counts[rank]]. Parts
 * lie as in `peerbus_all_gather_v`. `counts` are equal on all ranks. In place, `output` is this rank's
 * part of `input`, whose parts must not overlap then, and the rest stays as it is.
 */
PEERBUS_API peerbus_code peerbus_reduce_scatter_v(peerbus_team *team, const void *input,
                                                  const uint64_t *counts,
                                                  const uint64_t *displacements, void *output,
                                                  peerbus_dtype dtype, peerbus_reduction reduction,
                                                  int64_t timeout_ns);

/**
 * Encodes the `tokens` of every rank, [count, hidden], and gathers those of all ranks in the order of
 * ranks: `peerbus_all_gather` of tokens that travel in the form of `codec`, PEERBUS_BF16 to
 * PEERBUS_FP8_AS_GIVEN. Tokens are bf16, or E4M3 for PEERBUS_FP8_AS_GIVEN. `count`, `hidden` and `codec`
 * are equal on all ranks; `hidden` is a multiple of 128 for codecs with a scale for each 128 channels.
 *
 * With a `dtype` of PEERBUS_DTYPE_BF16 or PEERBUS_DTYPE_F32, tokens are decoded to `output`, [n, count,
 * hidden], and `scales` is NULL. With the codec's own type, PEERBUS_DTYPE_I8 or PEERBUS_DTYPE_E4M3, rows
 * stay as they are encoded: `output` is [n, count, hidden], and `scales` is [n, count] f32 for
 * PEERBUS_INT8_PER_TOKEN, [n, count, hidden / 128] f32 for PEERBUS_FP8_PER_128_F32 and
 * PEERBUS_FP8_PER_128_ROUNDED, [n, count, hidden / 128 rounded up to a multiple of 4] bytes for
 * PEERBUS_FP8_PER_128_UE8M0, and NULL for PEERBUS_FP8_AS_GIVEN. Ranks may choose different types.
 *
 * In place, bf16 `tokens` are row `rank` of an `output` of bf16. bf16 and f32 are aligned to their size.
 */
PEERBUS_API peerbus_code peerbus_all_gather_coded(peerbus_team *team, int32_t codec,
                                                  const void *tokens, uint64_t count,
                                                  uint64_t hidden, void *output, void *scales,
                                                  peerbus_dtype dtype, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif

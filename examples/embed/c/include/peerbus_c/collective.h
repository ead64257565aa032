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

#include <peerbus_c/comm.h>
#include <peerbus_c/exchange.h>
#include <peerbus_c/tensor.h>
#include <peerbus_c/window.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The ranks of a communicator, with the memory through which operands travel. */
typedef struct peerbus_team peerbus_team;

/** Options of a team, equal on all ranks. NULL stands for all defaults. */
typedef struct peerbus_team_options {
  uint32_t struct_bytes;   /**< sizeof(peerbus_team_options) */
  uint32_t reserved;       /**< 0 */
  uint64_t scratch_bytes;  /**< memory of each rank, in bytes; 0: 1 MiB. More means fewer rounds */
  uint64_t one_shot_bytes; /**< all_reduce of more bytes is done in parts, one by each rank; 0: the library decides */
  /** The least bytes that a rank contributes to another one for which peers read the input in its
   * window (`peerbus_team_in_window`). 0: 1 KiB, or 32 KiB if ranks share cores. 1: always. */
  uint64_t window_bytes;
  /** The path of a table of costs, as `coll_bench --costs-to` writes it, from which algorithms are
   * chosen. NULL: the costs that the library assumes. The tables of all ranks are equal. */
  const char *costs_file;
  /** The algorithm of operations that have several, wherever it is possible, PEERBUS_AUTOMATIC to
   * PEERBUS_TWO_LEVELS. Elsewhere the costs decide. The ranks of this library load each other's pages.
   * For such ranks only PEERBUS_ONE_SHOT is possible, and PEERBUS_TWO_SHOTS for all_reduce. */
  int32_t algorithm;
  /** Not 0: lets the costs choose PEERBUS_RING and PEERBUS_TWO_LEVELS, which reduce in another order
   * than that of ranks, for all reductions. Bits are still equal on every rank and in every run. */
  uint32_t may_reorder;
} peerbus_team_options;

/** Algorithms of operations that have several. docs/collectives.md has their costs. */
enum {
  PEERBUS_AUTOMATIC = 0, /**< the cheapest one by the team's costs */
  PEERBUS_ONE_SHOT = 1,  /**< full mesh: each rank gets the operands of all, in one round */
  PEERBUS_TWO_SHOTS = 2, /**< full mesh: each rank reduces a part, then all ranks gather the parts */
  PEERBUS_DOUBLING = 3,  /**< each rank gets the operands of all, in ceil(log2 n) steps */
  PEERBUS_RING = 4,      /**< parts go from neighbour to neighbour */
  PEERBUS_TWO_LEVELS = 5 /**< within near ranks, and among far ranks with equal places */
};

/** Operations that have several algorithms. */
enum {
  PEERBUS_OF_ALL_REDUCE = 0,     /**< `peerbus_all_reduce` and `peerbus_all_reduce_add` */
  PEERBUS_OF_ALL_GATHER = 1,     /**< `peerbus_all_gather` */
  PEERBUS_OF_REDUCE_SCATTER = 2, /**< `peerbus_reduce_scatter` */
  PEERBUS_OF_BROADCAST = 3       /**< `peerbus_broadcast` */
};

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

/**
 * Collective: makes a team of all ranks of `comm` and sets `*team`. The caller destroys it.
 * Errors: on all ranks PEERBUS_MISMATCH if the options differ, PEERBUS_INVALID_ARGUMENT if
 * `scratch_bytes` is too small for so many ranks or there is no such algorithm, PEERBUS_SYSTEM or
 * PEERBUS_INVALID_ARGUMENT if a rank cannot read its `costs_file`, and PEERBUS_OUT_OF_MEMORY. Also PEERBUS_TIMED_OUT,
 * PEERBUS_PEER_DEAD, PEERBUS_POISONED. `*team` is then NULL.
 */
PEERBUS_API peerbus_code peerbus_team_create(peerbus_comm *comm, const peerbus_team_options *options,
                                             int64_t timeout_ns, peerbus_team **team);

/**
 * Sets `*in_window` to a second handle of the same team. Its operations take their input in `window`:
 * peers read it where it lies, so that each byte moves once. Not collective. The caller destroys the
 * handle. It keeps the team and the memory of the window alive.
 *
 * All ranks call an operation with such a handle, or none does; otherwise it fails with
 * PEERBUS_MISMATCH. All give the same window, which is not checked. Input lies in this rank's part of
 * it, at any offset, which may differ between ranks; other input is refused. The `data` of
 * `peerbus_broadcast` counts as input on all ranks. Output may lie anywhere.
 *
 * These are staged as without a window, with the same results: inputs of which a rank contributes less
 * than `window_bytes` to another rank, except in operations with counts; `peerbus_all_to_all` and
 * `peerbus_all_to_all_v` in place; a `peerbus_all_reduce` of more than `one_shot_bytes` that is not in
 * place, among more than two ranks. `peerbus_all_reduce_add` and `peerbus_all_gather_coded` take
 * operands anywhere, as without a window.
 *
 * Cost: an allocation here, none in an operation; an operation takes two rounds, whatever its size, or
 * three with counts. Errors: PEERBUS_INVALID_ARGUMENT for a `window` of another communicator than that
 * of the team; `*in_window` is then NULL.
 */
PEERBUS_API peerbus_code peerbus_team_in_window(peerbus_team *team, peerbus_window *window,
                                                peerbus_team **in_window);

/**
 * Sets `*in_halves` to another handle of the same team, and of its window if it has one. Its operations
 * do their first half and return: they publish the first slice of the input, or the sizes of parts,
 * and wait for no rank, unless arguments cannot be read.
 * `peerbus_team_finish` does the rest, and the rank may compute between the halves. Peers may call the
 * whole operation. docs/collectives.md says what each half does. Not collective. The caller destroys
 * the handle. It keeps the team alive.
 *
 * Until `peerbus_team_finish` returns, input must not change, output must not be accessed, and both
 * must live. Arrays of counts and displacements are used by the first half only. The next operation of
 * the team, by any of its handles, comes after that; an earlier one gives PEERBUS_INVALID_ARGUMENT on
 * this rank alone, and has no effect. Bad arguments may fail in either half.
 *
 * Destroying the handle between the halves gives the operation up and poisons the communicator.
 *
 * Cost: an allocation here, none in an operation.
 */
PEERBUS_API peerbus_code peerbus_team_in_halves(peerbus_team *team, peerbus_team **in_halves);

/**
 * Does the second half of the operation that was called with the handle `team`, which is of
 * `peerbus_team_in_halves`. Its output is then complete. A `timeout_ns` of 0 stands for the deadline
 * of the first half, which began when that was called, or for the default of the communicator.
 * Errors: as the whole operation; PEERBUS_INVALID_ARGUMENT on this rank alone if no operation was
 * called.
 */
PEERBUS_API peerbus_code peerbus_team_finish(peerbus_team *team, int64_t timeout_ns);

/**
 * Sets `*algorithm` to the algorithm, PEERBUS_ONE_SHOT to PEERBUS_TWO_LEVELS, that an operation takes
 * for an input of `bytes` bytes at each rank that does not lie in a window, or, of reduce_scatter, for
 * an output of so many. `operation` is one of PEERBUS_OF_ALL_REDUCE to PEERBUS_OF_BROADCAST.
 * `may_reorder` is not 0 for reductions that do not depend on the order of ranks, as of integers. Not
 * collective.
 */
PEERBUS_API peerbus_code peerbus_team_algorithm(peerbus_team *team, int32_t operation,
                                                uint64_t bytes, uint32_t may_reorder,
                                                int32_t *algorithm);

/** Destroys `*team` and sets it to NULL. Not collective. Does nothing if `team` or `*team` is NULL. */
PEERBUS_API void peerbus_team_destroy(peerbus_team **team);

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

/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_TEAM_H
#define PEERBUS_C_TEAM_H

/**
 * @file
 * Teams: the ranks of a communicator with the memory of their collective operations, the algorithms of
 * these, and handles whose operations take their input in a window or are done in halves.
 * `peerbus_c/collective.h` has the operations.
 */

#include <peerbus_c/comm.h>
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
   * PEERBUS_TWO_LEVELS. Elsewhere the costs decide. Ranks of one host load each other's pages.
   * For them only PEERBUS_ONE_SHOT is possible, and PEERBUS_TWO_SHOTS for all_reduce. */
  int32_t algorithm;
  /** Not 0: lets the costs choose PEERBUS_RING and PEERBUS_TWO_LEVELS, which reduce in another order
   * than that of ranks, for all reductions. Bits are still equal on every rank and in every run. */
  uint32_t may_reorder;
} peerbus_team_options;

/** Algorithms of operations that have several. The C++ header collective/algorithm.hpp has their costs. */
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

/**
 * Collective: makes a team of all ranks of `comm` and sets `*team`. The caller destroys it.
 * Errors: on all ranks PEERBUS_MISMATCH if the options differ, PEERBUS_INVALID_ARGUMENT if
 * `scratch_bytes` is too small for so many ranks or there is no such algorithm, PEERBUS_SYSTEM or
 * PEERBUS_INVALID_ARGUMENT if a rank cannot read its `costs_file`, and PEERBUS_OUT_OF_MEMORY. Also PEERBUS_TIMED_OUT,
 * PEERBUS_PEER_DEAD, PEERBUS_POISONED, and PEERBUS_VIEW_CHANGED if ranks are gone. `*team` is then NULL.
 */
PEERBUS_API peerbus_code peerbus_team_create(peerbus_comm *comm, const peerbus_team_options *options,
                                             int64_t timeout_ns, peerbus_team **team);

/**
 * Sets `*in_window` to a second handle of the same team. Its operations take their input in `window`:
 * peers read it where it lies, so that each byte moves once. Not collective. The caller destroys the
 * handle. It keeps the team and the memory of the window alive.
 *
 * If ranks are on several hosts, inputs are staged. Otherwise
 * all ranks call an operation with such a handle, or none does, or it fails with
 * PEERBUS_MISMATCH. All give the same window, which is not checked. Input lies in this rank's part of
 * it, at any offset, which may differ between ranks; other input is refused. The `data` of
 * `peerbus_broadcast` counts as input on all ranks. Output may lie anywhere.
 *
 * These are staged as without a window, with the same results: inputs of which a rank contributes less
 * than `window_bytes` to another rank, except in operations with counts; `peerbus_all_to_all` and
 * `peerbus_all_to_all_v` in place; a `peerbus_all_reduce` that is not in place, among more than two
 * ranks, where the costs choose PEERBUS_TWO_SHOTS or it has more than `one_shot_bytes`.
 * `peerbus_all_reduce_add` and `peerbus_all_gather_coded` take operands anywhere, as without a window.
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

/**
 * Goes on in the present view of the communicator, in the memory that the team has, with all its handles.
 * The ranks of the view call it when `peerbus_comm_continue` has returned, and number themselves anew in
 * their order: `peerbus_team_rank`, `peerbus_team_size`, roots and the parts of operands are then theirs.
 * Operations that were under way are given up, also those between their halves.
 * Errors: PEERBUS_INVALID_ARGUMENT if the team is in this view already; PEERBUS_POISONED if the
 * communicator has not gone on; PEERBUS_PEER_DEAD on all ranks that live, which continue and resume once
 * more; PEERBUS_TIMED_OUT; PEERBUS_VIEW_CHANGED.
 */
PEERBUS_API peerbus_code peerbus_team_resume(peerbus_team *team, int64_t timeout_ns);
/** Returns the number of the caller in the team, that of its communicator until ranks are gone, or 0 if
 * `team` is NULL. */
PEERBUS_API uint64_t peerbus_team_rank(const peerbus_team *team);
/** Returns the number of ranks of the team, or 0 if `team` is NULL. */
PEERBUS_API uint64_t peerbus_team_size(const peerbus_team *team);

/** Destroys `*team` and sets it to NULL. Not collective. Does nothing if `team` or `*team` is NULL. */
PEERBUS_API void peerbus_team_destroy(peerbus_team **team);

#ifdef __cplusplus
}
#endif

#endif

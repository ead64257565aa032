/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_WINDOW_H
#define PEERBUS_C_WINDOW_H

/**
 * @file
 * Windows: memory that all ranks of a communicator may write, with signals to wait for.
 *
 * Threads: several threads may use one window at the same time if they touch different bytes and
 * signals. Errors of all calls with a `peer` or an `offset`: PEERBUS_OUT_OF_RANGE, with nothing
 * written, for a rank, byte or signal that does not exist; PEERBUS_UNREACHABLE.
 */

#include <peerbus_c/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Memory of the same size on each rank, zero at first. */
typedef struct peerbus_window peerbus_window;

/** The value of `awaited` for a signal that may come from any rank. */
#define PEERBUS_ANY_RANK UINT64_MAX

/**
 * Collective: makes a window with `bytes` of memory and `signals` signals on each rank, and sets
 * `*window`. The caller destroys it.
 * Errors: on all ranks PEERBUS_MISMATCH if their sizes differ and PEERBUS_OUT_OF_MEMORY. Also
 * PEERBUS_TIMED_OUT, PEERBUS_PEER_DEAD, PEERBUS_POISONED. `*window` is then NULL.
 */
PEERBUS_API peerbus_code peerbus_window_create(peerbus_comm *comm, uint64_t bytes, uint64_t signals,
                                               int64_t timeout_ns, peerbus_window **window);

/** Destroys `*window` and sets it to NULL. Not collective. Does nothing if `window` or `*window` is
 * NULL. */
PEERBUS_API void peerbus_window_destroy(peerbus_window **window);

/** Returns the bytes of each rank's part, or 0 if `window` is NULL. */
PEERBUS_API uint64_t peerbus_window_bytes(const peerbus_window *window);

/** Returns the part of `rank`, which loads and stores, or NULL if there is no such rank, or if it is
 * far (`peerbus_comm_is_near`). Valid until
 * the window is destroyed. Stores to a peer's part become visible there with a later signal. */
PEERBUS_API void *peerbus_window_part(const peerbus_window *window, uint64_t rank);

/** Writes `bytes` bytes of `source` at byte `offset` of the peer's part. They are visible there after
 * a later signal to that peer. The caller may change `source` after `peerbus_window_flush`. */
PEERBUS_API peerbus_code peerbus_window_put(peerbus_window *window, uint64_t peer, uint64_t offset,
                                            const void *source, uint64_t bytes);

/** Raises signal `id` of the peer to `value`, after all earlier puts of this rank to that peer are
 * visible there. Signals only grow, and one rank at a time raises a signal. */
PEERBUS_API peerbus_code peerbus_window_signal(peerbus_window *window, uint64_t peer, uint64_t id,
                                               uint64_t value);

/** Does a put, then a signal. */
PEERBUS_API peerbus_code peerbus_window_put_signal(peerbus_window *window, uint64_t peer,
                                                   uint64_t offset, const void *source,
                                                   uint64_t bytes, uint64_t id, uint64_t value);

/** Reads `bytes` bytes at byte `offset` of the peer's part into `target`. Complete after
 * `peerbus_window_flush`. */
PEERBUS_API peerbus_code peerbus_window_get(peerbus_window *window, uint64_t peer, uint64_t offset,
                                            void *target, uint64_t bytes);

/** Adds `addend` to the 64-bit word at byte `offset`, a multiple of 8, of the peer's part. Sets
 * `*before` to its earlier value. Atomic among all ranks. Errors: PEERBUS_UNSUPPORTED if the network
 * has no atomics, as libfabric's tcp. */
PEERBUS_API peerbus_code peerbus_window_fetch_add(peerbus_window *window, uint64_t peer,
                                                  uint64_t offset, uint64_t addend,
                                                  uint64_t *before);

/** Waits until sources and targets of earlier calls to `peer` may be used again. */
PEERBUS_API peerbus_code peerbus_window_flush(peerbus_window *window, uint64_t peer);

/**
 * Waits until this rank's own signal `id` is at least `value`. What the raiser put before is then
 * visible. The wait ends early if any rank dies, or if `awaited` leaves, the rank that is to raise
 * the signal, or PEERBUS_ANY_RANK.
 * Errors: PEERBUS_TIMED_OUT, PEERBUS_PEER_DEAD and PEERBUS_INTERRUPTED, after which the caller may
 * wait again; PEERBUS_OUT_OF_RANGE.
 */
PEERBUS_API peerbus_code peerbus_window_wait(peerbus_window *window, uint64_t id, uint64_t value,
                                             uint64_t awaited, int64_t timeout_ns);

/** Returns the value of this rank's own signal `id`, or 0 if there is no such signal. What was put
 * before it was raised is visible. */
PEERBUS_API uint64_t peerbus_window_signal_value(const peerbus_window *window, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif

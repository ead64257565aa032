/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_PP_H
#define PEERBUS_C_PP_H

/**
 * @file
 * Tensors sent to the next or the previous rank of a ring: DeepEP's PPBuffer.
 */

#include <peerbus_c/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** DeepEP's PPBuffer: places on each rank for tensors of either neighbour. */
typedef struct peerbus_pp peerbus_pp;

/**
 * Collective: takes places for `num_max_inflight_tensors` tensors of `num_max_tensor_bytes` on their
 * way to each neighbour, and sets `*pp`. The caller destroys it.
 * Errors: PEERBUS_INVALID_ARGUMENT on the ranks whose sizes are bad, such as 0, and PEERBUS_REFUSED on
 * the others. On all ranks PEERBUS_MISMATCH if their sizes differ and PEERBUS_OUT_OF_MEMORY. Also
 * PEERBUS_TIMED_OUT, PEERBUS_PEER_DEAD, PEERBUS_POISONED. `*pp` is then NULL.
 */
PEERBUS_API peerbus_code peerbus_pp_create(peerbus_comm *comm, uint64_t num_max_tensor_bytes,
                                           uint64_t num_max_inflight_tensors, int64_t timeout_ns,
                                           peerbus_pp **pp);

/** Destroys `*pp` and sets it to NULL. Not collective. Does nothing if either is NULL. */
PEERBUS_API void peerbus_pp_destroy(peerbus_pp **pp);

/**
 * Sends `bytes` bytes of `tensor` to the previous or the next rank, which may change on return. Waits
 * only while the neighbour has not received the tensor sent `num_max_inflight_tensors` before.
 * Errors: PEERBUS_INVALID_ARGUMENT for a rank that is no neighbour, and for a tensor that is too large
 * or NULL; the neighbour's `peerbus_pp_recv` then fails with PEERBUS_REFUSED. PEERBUS_TIMED_OUT and
 * PEERBUS_INTERRUPTED, after which the call may be repeated; PEERBUS_PEER_DEAD; PEERBUS_UNREACHABLE.
 */
PEERBUS_API peerbus_code peerbus_pp_send(peerbus_pp *pp, const void *tensor, uint64_t bytes,
                                         uint64_t peer, int64_t timeout_ns);

/**
 * Fills `tensor` with the next one of the previous or the next rank, which has `bytes` bytes.
 * Errors: as of `peerbus_pp_send`. PEERBUS_MISMATCH if the tensor sent has another size; the next call
 * may then receive it. PEERBUS_REFUSED if the neighbour was given a bad one, whose turn that was.
 */
PEERBUS_API peerbus_code peerbus_pp_recv(peerbus_pp *pp, void *tensor, uint64_t bytes, uint64_t peer,
                                         int64_t timeout_ns);

/** Returns this rank's places and sets `*bytes` to their size. Valid until `pp` is destroyed. NULL if
 * either argument is NULL. */
PEERBUS_API void *peerbus_pp_storage(const peerbus_pp *pp, uint64_t *bytes);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_EXPERT_WEIGHTS_H
#define PEERBUS_C_EXPERT_WEIGHTS_H

/**
 * @file
 * The weights of experts, and their moves to other ranks while exchanges go on. docs/balancing.md explains
 * rounds and what is guaranteed.
 *
 * All ranks begin, commit and abandon moves at the same places of their programs. Between these calls each
 * sends at its own pace, and exchanges dispatch and combine with the old weights:
 *
 *     peerbus_expert_weights_begin(weights, wanted, places, 0, NULL);
 *     while (serving) {
 *       ... dispatch, experts, combine
 *       peerbus_expert_weights_advance(weights, 1 << 20, NULL);
 *       if (step % 8 == 0) peerbus_expert_weights_commit(weights, &exchange, 1, &replicas, NULL);
 *     }
 */

#include <peerbus_c/exchange.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The tensors of the experts of a rank, in memory from which they move to other ranks. */
typedef struct peerbus_expert_weights peerbus_expert_weights;

/** The tensors of an expert, and the room to move experts. The same on all ranks. */
typedef struct peerbus_expert_tensors {
  uint32_t struct_bytes; /**< sizeof(peerbus_expert_tensors) */
  uint32_t reserved;     /**< 0 */
  uint64_t tensors;      /**< of an expert, at least 1 */
  const uint64_t *bytes; /**< [tensors] the bytes of each: weights, their scales, states of optimisers.
                              Read only by peerbus_expert_weights_create */
  uint64_t spare;        /**< experts that a rank can take in before it gives up others, each of which takes
                              the memory of an expert; 0: 1 */
  uint64_t slice;        /**< the most bytes of one put; 0: 256 KiB */
} peerbus_expert_tensors;

/**
 * Makes the memory for the experts of `exchange`, which may be destroyed afterwards, and sets `*weights`. The
 * content is zero. Collective, with equal arguments. The caller destroys it. Cost: the memory of the places
 * of a rank and of `spare` experts.
 * Errors, on all ranks: PEERBUS_INVALID_ARGUMENT without tensors, for more than 2^44 bytes at a rank, or if
 * `exchange` has another number of ranks than `comm`; PEERBUS_MISMATCH if ranks differ; PEERBUS_OUT_OF_MEMORY,
 * PEERBUS_TIMED_OUT, PEERBUS_PEER_DEAD, PEERBUS_POISONED. `*weights` is then NULL.
 */
PEERBUS_API peerbus_code peerbus_expert_weights_create(peerbus_comm *comm, peerbus_exchange *exchange,
                                                       const peerbus_expert_tensors *tensors,
                                                       int64_t timeout_ns,
                                                       peerbus_expert_weights **weights);

/** Destroys `*weights` and sets it to NULL. Not collective. Does nothing if `weights` or `*weights` is NULL. */
PEERBUS_API void peerbus_expert_weights_destroy(peerbus_expert_weights **weights);

/**
 * Sets `*data` to tensor `tensor` of the rank's local expert `expert`, one of its places from 0 on, aligned to
 * 64 bytes. Valid until a commit has given another expert that place. From begin to the end of the moves it
 * is only read. Not collective. Errors: PEERBUS_INVALID_ARGUMENT if there is no such expert or tensor.
 */
PEERBUS_API peerbus_code peerbus_expert_weights_tensor(peerbus_expert_weights *weights,
                                                       uint64_t expert, uint64_t tensor,
                                                       void **data);

/**
 * Writes the expert at each place, or PEERBUS_VACANT, to `physical_to_logical`: [physical_experts]. After each
 * round these are the experts whose tensors are there. Not collective. Errors: PEERBUS_INVALID_ARGUMENT if
 * there are not as many places.
 */
PEERBUS_API peerbus_code peerbus_expert_weights_experts(peerbus_expert_weights *weights,
                                                        uint32_t *physical_to_logical,
                                                        uint64_t physical_experts);

/**
 * Begins to move the experts to the places of `wanted`: [physical_experts], as in `peerbus_exchange_config`.
 * An expert that stays at its rank keeps its place, so that the last map may have the experts of a rank in
 * another order. Ranks that are gone give and get nothing. Sets `*rounds` to the number of rounds, 0 if each
 * rank has its experts already, unless it is NULL. Collective, with the same table on all ranks. Cost: an
 * agreement, and the plan.
 * Errors, on all ranks, and nothing has begun: PEERBUS_INVALID_ARGUMENT for an impossible table, one that
 * leaves an expert to ranks that are gone, or if moves are under way; PEERBUS_MISMATCH if tables differ;
 * PEERBUS_TIMED_OUT, PEERBUS_PEER_DEAD, PEERBUS_POISONED.
 */
PEERBUS_API peerbus_code peerbus_expert_weights_begin(peerbus_expert_weights *weights,
                                                      const uint32_t *wanted,
                                                      uint64_t physical_experts, int64_t timeout_ns,
                                                      uint64_t *rounds);

/**
 * Sends up to `bytes` bytes of the round that is under way. Not collective. Sets `*all_sent` to 1 if this rank
 * has sent all of the round, otherwise to 0, unless it is NULL.
 * Errors: PEERBUS_PEER_DEAD, PEERBUS_UNREACHABLE, PEERBUS_TIMED_OUT; the communicator is then poisoned.
 */
PEERBUS_API peerbus_code peerbus_expert_weights_advance(peerbus_expert_weights *weights,
                                                        uint64_t bytes, int32_t *all_sent);

/**
 * Ends the round if all ranks have received their experts: gives each of the `count` exchanges, at least 1, the
 * new map with `replicas` (`peerbus_exchange_install_experts`), and lets `peerbus_expert_weights_tensor` find
 * the new experts. All batches of these exchanges are combined. Sets `*is_over` to 1 if all rounds have ended,
 * the same on all ranks, otherwise to 0, unless it is NULL. Does nothing if no round is under way. Collective,
 * with exchanges of any codecs and layouts in the same order. Cost: a signal to each peer and a wait for
 * each; if the round ends, a `peerbus_exchange_install_experts` for each exchange.
 * Errors, on all ranks: PEERBUS_MISMATCH if an expert came damaged or is another one, after which the moves are
 * to be abandoned; as `peerbus_exchange_install_experts`. The old map then stands, but exchanges before the one
 * that refused have the new one: give them that of `peerbus_expert_weights_experts`. PEERBUS_PEER_DEAD,
 * PEERBUS_TIMED_OUT, PEERBUS_POISONED. An exchange that is NULL or in another call is refused on this rank
 * alone, before anything else.
 */
PEERBUS_API peerbus_code peerbus_expert_weights_commit(peerbus_expert_weights *weights,
                                                       peerbus_exchange *const *exchanges,
                                                       uint64_t count,
                                                       const peerbus_replica_choice *replicas,
                                                       int32_t *is_over);

/** Returns 1 if a round is under way, otherwise, or if `weights` is NULL, 0. */
PEERBUS_API int32_t peerbus_expert_weights_is_moving(const peerbus_expert_weights *weights);

/**
 * Drops the round that is under way and those after it. The experts stay where they were before the round.
 * Collective among the ranks of the view, also those where no round is under way, and also after
 * `peerbus_comm_continue`. Errors: PEERBUS_TIMED_OUT, PEERBUS_PEER_DEAD, PEERBUS_POISONED.
 */
PEERBUS_API peerbus_code peerbus_expert_weights_abandon(peerbus_expert_weights *weights,
                                                        int64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif

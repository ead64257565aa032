/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_CHANNELS_H
#define PEERBUS_C_CHANNELS_H

/**
 * @file
 * Messages between two ranks, singly and in batches. docs/collectives.md has an example.
 *
 * Only the two ranks at the ends of a message take part in it. Messages from one rank to another are
 * matched in the order in which both ends name them. Both ends say how many elements of which type
 * they mean; memory may be NULL if they are none, needs no alignment, and may lie anywhere.
 *
 * A call returns when the elements that it sends may be changed and those that it receives are
 * complete. A message is sent only once its peer has come to it, so two ranks that both send to each
 * other before they receive wait until the time limit. A batch of both does not.
 *
 * Errors of messages: PEERBUS_MISMATCH at both ends of a message of which they say different counts
 * or types, with what each end said; its output is not written, all other messages of the call are
 * then complete, and the channels remain usable. The same holds for a message that its receiver
 * cannot read in the memory of its sender because not all of it is mapped: PEERBUS_INVALID_ARGUMENT
 * at the sender, PEERBUS_REFUSED at the receiver, whose output may hold some of it.
 * PEERBUS_INVALID_ARGUMENT on the calling rank only, and without any effect, if the arguments are
 * bad; its peers then wait. PEERBUS_TIMED_OUT, PEERBUS_PEER_DEAD, PEERBUS_UNREACHABLE and
 * PEERBUS_INTERRUPTED poison the communicator, and outputs are then undefined. Also PEERBUS_POISONED.
 *
 * Threads: one operation of channels at a time. Different channels and teams may be used at the same
 * time.
 */

#include <peerbus_c/collective.h>
#include <peerbus_c/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The memory through which the ranks of a communicator send each other messages. */
typedef struct peerbus_channels peerbus_channels;

/** Options of channels, equal on all ranks. NULL stands for all defaults. */
typedef struct peerbus_channel_options {
  uint32_t struct_bytes;  /**< sizeof(peerbus_channel_options) */
  uint32_t reserved;      /**< 0 */
  uint64_t scratch_bytes; /**< memory of each rank, in bytes; 0: 1 MiB. More means fewer slices */
} peerbus_channel_options;

/** One message of a batch, as one of its ends sees it. It lies in an array, so its size never changes. */
typedef struct peerbus_transfer {
  uint32_t sends;      /**< 1: this rank sends `input`; 0: it receives to `output` */
  peerbus_dtype dtype; /**< the type of the elements */
  uint64_t peer;       /**< the rank at the other end; this rank's own is possible within a batch */
  uint64_t count;      /**< elements of the message */
  const void *input;   /**< [count] to send; not looked at if the message is received */
  void *output;        /**< [count] to fill; not looked at if the message is sent */
} peerbus_transfer;

/**
 * Collective: makes the channels between all ranks of `comm` and sets `*channels`. The caller destroys
 * them.
 * Errors: on all ranks PEERBUS_MISMATCH if the options differ, PEERBUS_INVALID_ARGUMENT if
 * `scratch_bytes` is too small for so many ranks, and PEERBUS_OUT_OF_MEMORY. Also PEERBUS_TIMED_OUT,
 * PEERBUS_PEER_DEAD, PEERBUS_POISONED. `*channels` is then NULL.
 */
PEERBUS_API peerbus_code peerbus_channels_create(peerbus_comm *comm,
                                                 const peerbus_channel_options *options,
                                                 int64_t timeout_ns, peerbus_channels **channels);

/**
 * Goes on in the present view of the communicator, in the memory that the channels have, with all their
 * handles. The ranks of the view call it when `peerbus_comm_continue` has returned. Ranks keep their
 * numbers, and messages with ranks that are gone are refused. Messages that were under way are given up,
 * also those between their halves.
 * Errors: as `peerbus_team_resume`.
 */
PEERBUS_API peerbus_code peerbus_channels_resume(peerbus_channels *channels, int64_t timeout_ns);

/** Destroys `*channels` and sets it to NULL. Not collective. Does nothing if `channels` or `*channels`
 * is NULL. */
PEERBUS_API void peerbus_channels_destroy(peerbus_channels **channels);

/** Sends `input`, [count], to rank `peer`. */
PEERBUS_API peerbus_code peerbus_send(peerbus_channels *channels, const void *input, uint64_t count,
                                      peerbus_dtype dtype, uint64_t peer, int64_t timeout_ns);

/** Fills `output`, [count], with what rank `peer` sends. */
PEERBUS_API peerbus_code peerbus_recv(peerbus_channels *channels, void *output, uint64_t count,
                                      peerbus_dtype dtype, uint64_t peer, int64_t timeout_ns);

/**
 * Moves `count` messages in both directions at once, so that neither their order nor that of the peers'
 * batches can make ranks wait for each other in a ring. The other end of a message may be a call of its
 * own or in several batches. Messages to the own rank are matched within the batch. An output overlaps
 * no other range of the batch. `messages` may be NULL if `count` is 0.
 */
PEERBUS_API peerbus_code peerbus_batch_send_recv(peerbus_channels *channels,
                                                 const peerbus_transfer *messages, uint64_t count,
                                                 int64_t timeout_ns);

/**
 * Sets `*in_halves` to another handle of the same channels. Its operations do their first half and
 * return: they send the first slice of the first message to each peer that has taken all but one of
 * the slices before, say what this rank expects, and wait for no rank.
 * `peerbus_channels_finish` does the rest, and the rank may compute between the
 * halves. The other end of a message may be whole or in halves. Not collective. The caller destroys the
 * handle. It keeps the channels alive.
 *
 * Until `peerbus_channels_finish` returns, memory that is sent must not change, memory that is received
 * must not be accessed, and both must live. `messages` of a batch are used by the first half only. The
 * next operation of the channels, by any of their handles, comes after that; an earlier one gives
 * PEERBUS_INVALID_ARGUMENT and has no effect. Bad arguments fail in the first half.
 *
 * Destroying the handle between the halves gives the messages up and poisons the communicator.
 */
PEERBUS_API peerbus_code peerbus_channels_in_halves(peerbus_channels *channels,
                                                    peerbus_channels **in_halves);

/**
 * Does the second half of the operation that was called with the handle `channels`, which is of
 * `peerbus_channels_in_halves`. A `timeout_ns` of 0 stands for the deadline of the first half, which
 * began when that was called, or for the default of the communicator.
 * Errors: as the whole operation; PEERBUS_INVALID_ARGUMENT on this rank alone if no operation was
 * called.
 */
PEERBUS_API peerbus_code peerbus_channels_finish(peerbus_channels *channels, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif

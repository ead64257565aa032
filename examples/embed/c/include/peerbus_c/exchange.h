/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_EXCHANGE_H
#define PEERBUS_C_EXCHANGE_H

/**
 * @file
 * Exchanges: dispatch sends each token to the ranks of its experts, combine brings the weighted sums
 * of their outputs home. docs/guide.md explains layouts, codecs and what travels beside rows.
 *
 * All ranks make the same calls on an exchange in the same order, also with zero tokens. Between
 * `peerbus_dispatch_send` and `peerbus_combine_recv` there may be `in_flight` batches.
 *
 * Errors of dispatch and combine: PEERBUS_INVALID_ARGUMENT on a rank whose input is bad, and
 * PEERBUS_REFUSED on the others. The operation did not happen, and the exchange works on. A call
 * that misuses a ticket (in the wrong order, twice) returns PEERBUS_INVALID_ARGUMENT and counts as
 * not made. PEERBUS_TIMED_OUT, PEERBUS_PEER_DEAD, PEERBUS_UNREACHABLE and PEERBUS_INTERRUPTED poison
 * the communicator, whose calls then return PEERBUS_POISONED.
 */

#include <peerbus_c/comm.h>
#include <peerbus_c/received.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Memory and state for dispatches and combines of one configuration. */
typedef struct peerbus_exchange peerbus_exchange;

/** The form in which a row of H channels travels and arrives. */
enum {
  PEERBUS_BF16 = 0,                 /**< 2 x H bytes, exact */
  PEERBUS_INT8_PER_TOKEN = 1,       /**< H bytes, and one f32 scale */
  PEERBUS_FP8_PER_128_F32 = 2,      /**< H bytes of E4M3, and H / 128 f32 scales */
  PEERBUS_FP8_PER_128_ROUNDED = 3,  /**< the same, with scales that are powers of two */
  PEERBUS_FP8_PER_128_UE8M0 = 4,    /**< the same, with scales as exponents of one byte */
  PEERBUS_FP8_AS_GIVEN = 5,         /**< tokens are given as E4M3; scales travel as attachment */
  PEERBUS_NO_ROWS = 6               /**< rows have no bytes: only what lies beside them arrives */
};

/** The order and places of the rows of a rank. */
enum {
  PEERBUS_COMPACT = 0,     /**< by expert, without gaps, or aligned */
  PEERBUS_PADDED = 1,      /**< by expert, each from row e x ranks x max_tokens */
  PEERBUS_RANK_MAJOR = 2,  /**< by source rank; each token once, with its local experts */
  PEERBUS_SLOTS = 3,       /**< as rank-major, each source from row r x max_tokens */
  PEERBUS_EXPERT_SLOTS = 4 /**< by expert and source, from row (e x ranks + r) x max_tokens */
};

/** The value of `stream_from` with which the exchange chooses its stores. */
#define PEERBUS_STREAM_DEFAULT UINT64_C(0)
/** The value of `stream_from` with which all stores are plain. */
#define PEERBUS_STREAM_NEVER UINT64_MAX

/** The entry of `physical_to_logical` of a place without expert, which gets no rows. */
#define PEERBUS_VACANT UINT32_MAX

/** The rule by which a rank chooses among the places of an expert, its replicas. No rule needs
 * communication, and each chooses the same in every run. docs/balancing.md compares them. */
enum {
  PEERBUS_REPLICA_NEAREST = 0,     /**< the one at the least distance; equally near ones take turns */
  PEERBUS_REPLICA_ROUND_ROBIN = 1, /**< number (token + rank + expert) % replicas */
  PEERBUS_REPLICA_WEIGHTED = 2,    /**< in turns, in proportion to `quotas` */
  PEERBUS_REPLICA_FIXED = 3        /**< the one that `chosen` names */
};

/** The choice of a rank among replicas. Ranks may differ in it. The arrays are the caller's, and only the
 * call that gets them reads them. */
typedef struct peerbus_replica_choice {
  uint32_t struct_bytes;     /**< sizeof(peerbus_replica_choice) */
  uint32_t policy;           /**< PEERBUS_REPLICA_NEAREST and so on */
  const uint32_t *quotas;    /**< weighted: [physical_experts], such as rows; otherwise NULL */
  const uint32_t *chosen;    /**< fixed: [experts] the place for rows of each; otherwise NULL */
  const uint32_t *distances; /**< [ranks] of each rank from this one; NULL: 0 for this rank, 1 for ranks
                                  whose memory it stores to, 2 for the others */
} peerbus_replica_choice;

/** The configuration of an exchange, equal on all ranks except for `stream_from`, `between` and
 * `replicas`. */
typedef struct peerbus_exchange_config {
  uint32_t struct_bytes;      /**< sizeof(peerbus_exchange_config) */
  int32_t codec;              /**< PEERBUS_BF16 and so on */
  int32_t layout;             /**< PEERBUS_COMPACT and so on */
  uint32_t outputs_at_home;   /**< 1: experts write outputs at the token's home; less memory */
  uint64_t experts;           /**< of the whole group, as routing names them */
  uint64_t hidden;            /**< channels of a token */
  uint64_t top_k;             /**< expert slots of a token */
  uint64_t max_tokens;        /**< most tokens that a rank gives to one dispatch */
  uint64_t in_flight;         /**< batches under way at once; 0: 1 */
  uint64_t alignment;         /**< compact: experts begin at multiples of it, in rows; 0: 1 */
  uint32_t zero_gaps;         /**< compact: 1: dispatch zeroes the gaps */
  uint32_t relay;             /**< PEERBUS_RELAY_NEVER and so on */
  uint64_t attachments[PEERBUS_ATTACHMENTS]; /**< bytes per token of further tensors; 0: none */
  uint64_t output_attachment; /**< bytes that may go home beside each output; 0: none */
  uint64_t note_bytes;        /**< bytes of the note to all ranks of each dispatch; 0: none */
  const uint32_t *physical_to_logical; /**< [physical_experts] the expert at each place, or
                                            PEERBUS_VACANT. Places are numbered through the ranks. An
                                            expert has one or more, at most one at a rank. NULL: in
                                            order. Read only by peerbus_exchange_create */
  uint64_t stream_from;       /**< bytes of a batch from which stores bypass caches */
  uint32_t same_bits;         /**< 1: refuses what would let a token's result depend on other ranks
                                   or tokens (docs/reproducibility.md) */
  uint32_t reserved;          /**< 0 */
  uint64_t physical_experts;  /**< places for experts of all ranks; 0: as many as experts */
  const uint32_t *experts_of_rank; /**< [ranks] places of each rank, which may be 0; NULL: dealt out
                                        equally. Read only by peerbus_exchange_create */
  const peerbus_replica_choice *replicas; /**< NULL: PEERBUS_REPLICA_NEAREST. Read only by
                                               peerbus_exchange_create */
  uint32_t distrust_peers;    /**< 1: checks every number that other ranks write before it is used. If one
                                   is wrong, the call gives PEERBUS_MISMATCH, and PEERBUS_REFUSED on the
                                   other ranks (docs/security.md) */
  uint32_t reserved_too;      /**< 0 */
  uint32_t weights_at_combine; /**< 1: combines may give weights and local outputs where tokens are
                                    relayed. Without relay no change. PEERBUS_INVALID_ARGUMENT in layouts
                                    by rank */
  uint32_t relay_sums;        /**< PEERBUS_RELAY_SUMS_BF16 and so on. Without relay no change */
  uint64_t between;           /**< bytes that this rank reads and writes between two operations, such
                                   as a layer's weights: a hint for its stores; 0: not known */
} peerbus_exchange_config;

/**
 * Collective: makes an exchange and sets `*exchange`. The caller destroys it.
 * Errors, on all ranks: PEERBUS_INVALID_ARGUMENT, PEERBUS_MISMATCH if configurations differ,
 * PEERBUS_OUT_OF_MEMORY, PEERBUS_TIMED_OUT, PEERBUS_PEER_DEAD, PEERBUS_POISONED. A codec or layout that
 * does not exist is refused on this rank alone. `*exchange` is then NULL.
 */
PEERBUS_API peerbus_code peerbus_exchange_create(peerbus_comm *comm,
                                                 const peerbus_exchange_config *config,
                                                 int64_t timeout_ns, peerbus_exchange **exchange);

/** Destroys `*exchange` and sets it to NULL. Not collective. Does nothing if `exchange` or
 * `*exchange` is NULL. */
PEERBUS_API void peerbus_exchange_destroy(peerbus_exchange **exchange);

/** Returns the window memory that the exchange takes on each rank, in bytes, or 0 if `exchange` is
 * NULL. Memory that no row reaches is never touched. */
PEERBUS_API uint64_t peerbus_exchange_bytes(const peerbus_exchange *exchange);

/** The input of a dispatch. */
typedef struct peerbus_dispatch_args {
  uint32_t struct_bytes;   /**< sizeof(peerbus_dispatch_args) */
  uint32_t expert_id_bits; /**< 32 or 64; 0: 32 */
  uint64_t count;          /**< tokens, at most max_tokens, may differ between ranks */
  const void *tokens;      /**< [count, hidden], bf16; with PEERBUS_FP8_AS_GIVEN one byte each */
  const void *experts;     /**< [count, top_k], int32_t or int64_t; -1: none */
  const float *weights;    /**< [count, top_k] */
  const void *attachments[PEERBUS_ATTACHMENTS]; /**< [count, configured bytes] */
  const void *note;        /**< [note_bytes], or NULL */
  int64_t *waited_ns;      /**< [ranks], or NULL: the time that the call waits for each is added */
  uint32_t refuse;         /**< 1: fail on all ranks, because the caller has found bad input */
  uint32_t reserved;       /**< 0 */
  int64_t timeout_ns;      /**< 0: the default of the communicator */
} peerbus_dispatch_args;

/** Collective: sends each token to its experts and fills `*received` when all rows for this rank
 * have arrived. The arrays of `args` are the caller's again. No memory is allocated. */
PEERBUS_API peerbus_code peerbus_dispatch(peerbus_exchange *exchange,
                                          const peerbus_dispatch_args *args,
                                          peerbus_received *received);

/** Begins a dispatch and sets `*ticket`. The tokens and attachments must not change until
 * `peerbus_dispatch_recv` has returned. Waits for other ranks only if its own input is bad. */
PEERBUS_API peerbus_code peerbus_dispatch_send(peerbus_exchange *exchange,
                                               const peerbus_dispatch_args *args, uint64_t *ticket);

/** Completes the dispatch `ticket` and fills `*received`. */
PEERBUS_API peerbus_code peerbus_dispatch_recv(peerbus_exchange *exchange, uint64_t ticket,
                                               int64_t *waited_ns, int64_t timeout_ns,
                                               peerbus_received *received);

/** The arguments of a combine. */
typedef struct peerbus_combine_args {
  uint32_t struct_bytes; /**< sizeof(peerbus_combine_args) */
  uint32_t attached;     /**< 1: the output attachments are filled and go home; may differ */
  uint64_t count;        /**< tokens of the dispatch */
  void *out;             /**< bf16 [count, hidden]: the sums */
  const float *weights;  /**< [count, top_k] in place of those of the dispatch; or NULL. Refused,
                              as is `local`, by rank, and with relay unless weights_at_combine */
  const void *bias[2];   /**< bf16 [count, hidden] each, added; or NULL */
  const void *const *local; /**< [count, top_k] outputs (bf16 [hidden]) of slots -1; or NULL */
  int64_t *waited_ns;    /**< [ranks], or NULL */
  uint32_t refuse;       /**< 1: fail on all ranks */
  uint32_t reserved;     /**< 0 */
  int64_t timeout_ns;    /**< 0: the default of the communicator */
} peerbus_combine_args;

/** Collective: adds up the outputs for each token of this rank in `args->out`, in f32 in a fixed
 * order, and rounds once. The outputs of `ticket` must be filled. After a refusal, all ranks may
 * combine the batch again. */
PEERBUS_API peerbus_code peerbus_combine(peerbus_exchange *exchange, uint64_t ticket,
                                         const peerbus_combine_args *args);

/** Begins a combine: makes the outputs of `ticket` available to their home ranks. Of `args` it reads
 * `attached`, `refuse` and `timeout_ns`. NULL stands for all defaults. Does not wait. */
PEERBUS_API peerbus_code peerbus_combine_send(peerbus_exchange *exchange, uint64_t ticket,
                                              const peerbus_combine_args *args);

/** Completes the combine of `ticket`. Of `args` it does not read `attached` and `refuse`. */
PEERBUS_API peerbus_code peerbus_combine_recv(peerbus_exchange *exchange, uint64_t ticket,
                                              const peerbus_combine_args *args);

/** What becomes of a slot of the routing whose expert was at a rank that is gone. */
enum {
  PEERBUS_LOST_DROPPED = 0,      /**< it is left out, with its weight */
  PEERBUS_LOST_RENORMALISED = 1, /**< it is left out, and the other weights grow to the same sum */
  PEERBUS_LOST_REFUSED = 2       /**< the dispatch, or the combine, is refused on all ranks */
};

/** How far all ranks of a view have come with an exchange, in batches since it was made. */
typedef struct peerbus_completed {
  uint64_t received; /**< that all have received */
  uint64_t combined; /**< that all have combined */
} peerbus_completed;

/**
 * Goes on in the present view of the communicator, after `peerbus_comm_continue`. Collective among its
 * ranks. No other call of the exchange is under way. Batches that all of them have received, and not all
 * have combined, can be combined now, also by a rank that had, if `peerbus_awaits_combine` says so. Other
 * batches are void, and their tokens are dispatched anew. `lost` is PEERBUS_LOST_DROPPED and so on, for the tokens of this rank. Sets
 * `*completed`, the same on all ranks, unless it is NULL.
 * Errors: PEERBUS_INVALID_ARGUMENT if the exchange is in that view already, PEERBUS_PEER_DEAD,
 * PEERBUS_TIMED_OUT, PEERBUS_POISONED; PEERBUS_UNSUPPORTED with relay.
 */
PEERBUS_API peerbus_code peerbus_exchange_resume(peerbus_exchange *exchange, int32_t lost,
                                                 int64_t timeout_ns, peerbus_completed *completed);

/**
 * Gives the experts other places, between two batches. Collective, with the same table on all ranks.
 * `physical_to_logical`, which is not NULL, and `replicas` are as in `peerbus_exchange_config`, and each rank
 * keeps its number of places. The caller moves the weights. Tickets and rows of earlier dispatches are not used any more.
 * Cost: an agreement; no memory of windows.
 * Errors, on all ranks, which keep their experts: PEERBUS_INVALID_ARGUMENT for an impossible table or
 * choice, or if a batch is between its dispatch and its combine; PEERBUS_MISMATCH, with the entry and the
 * ranks, if tables differ; PEERBUS_OUT_OF_MEMORY, PEERBUS_TIMED_OUT,
 * PEERBUS_PEER_DEAD, PEERBUS_POISONED.
 */
PEERBUS_API peerbus_code peerbus_exchange_install_experts(peerbus_exchange *exchange,
                                                          const uint32_t *physical_to_logical,
                                                          uint64_t physical_experts,
                                                          const peerbus_replica_choice *replicas,
                                                          int64_t timeout_ns);

/**
 * Plans few changes of where the experts of the exchange lie, so that `loads` are balanced: [experts], such as
 * the rows of each, over all places and ranks. Not collective; ranks that give equal arguments get equal plans. Vacant places are filled where
 * that helps, and ranks that are gone keep their places. No rank gets an expert twice. Nothing changes if
 * balancedness would grow by less than `least_gain`. At most `most_moves` places get another expert, 0 for
 * any number, and none of the first `fixed_slots` of a rank. Writes the expert of each place, or
 * PEERBUS_VACANT, to `physical_to_logical`: [physical_experts]. Sets `*moves` to the number of places that get
 * another expert, unless it is NULL.
 * Errors: PEERBUS_INVALID_ARGUMENT if a pointer but `moves` is NULL, if a load is negative or not finite, if
 * `least_gain` is negative or no number, or if the exchange does not have `physical_experts` places.
 */
PEERBUS_API peerbus_code peerbus_exchange_plan_experts(
    peerbus_exchange *exchange, const double *loads, double least_gain, uint64_t most_moves,
    uint64_t fixed_slots, uint32_t *physical_to_logical, uint64_t physical_experts, uint64_t *moves);

/**
 * Writes the number of rows for each place by the dispatch of `ticket` to `rows`: [physical_experts]. In
 * layouts compact and padded without relay these are the rows of all ranks. In others they are those of this rank's
 * places, and 0 elsewhere, so that the sum over ranks gives all; in layouts by rank a row counts for each
 * of its experts. Sets `*of_all_ranks` to 1 or 0 accordingly, unless it is NULL. Not collective. Possible as
 * long as `peerbus_received` is valid.
 * Errors: PEERBUS_INVALID_ARGUMENT if the batch is not received here, or the exchange does not have
 * `physical_experts` places.
 */
PEERBUS_API peerbus_code peerbus_exchange_count_rows(peerbus_exchange *exchange, uint64_t ticket,
                                                     uint32_t *rows, uint64_t physical_experts,
                                                     int32_t *of_all_ranks);

/** Returns 1 if the batch of `ticket` is received and not combined, otherwise, or if `exchange` is NULL, 0.
 * After `peerbus_exchange_resume` the same on all ranks. */
PEERBUS_API int32_t peerbus_awaits_combine(peerbus_exchange *exchange, uint64_t ticket);

/** Sets `*output` to the place of the output of row `row`: bf16 [hidden]. With `outputs_at_home` it
 * lies at the home rank, if all ranks are near each other. Writable as `peerbus_received` says. Errors: PEERBUS_INVALID_ARGUMENT if
 * the batch is not received here or has no such row. */
PEERBUS_API peerbus_code peerbus_output(peerbus_exchange *exchange, uint64_t ticket, uint64_t row,
                                        void **output);

/** Sets `*attachment` to the place of the attachment that goes home beside the output of `row`.
 * Contract as `peerbus_output`. */
PEERBUS_API peerbus_code peerbus_output_attachment(peerbus_exchange *exchange, uint64_t ticket,
                                                   uint64_t row, void **attachment);

/** Decodes row `row` into `values`: [hidden]. Errors: as `peerbus_output`. */
PEERBUS_API peerbus_code peerbus_decode(peerbus_exchange *exchange, uint64_t ticket, uint64_t row,
                                        float *values);

/** Sets `*note` to the note of rank `source` for the batch, and `*bytes` to its length, or to 0 if
 * the rank gave none. Valid as `peerbus_received`. */
PEERBUS_API peerbus_code peerbus_note(peerbus_exchange *exchange, uint64_t ticket, uint64_t source,
                                      const void **note, uint64_t *bytes);

/** Sets `*attachment` to the attachment that came home beside the output of copy `copy` of this
 * rank's token `token`, or to NULL if the rank of that copy sent none. `rank` is the rank that the
 * copy went to. A copy is a slot; in layouts by rank, a rank of the token in ascending order. */
PEERBUS_API peerbus_code peerbus_returned_attachment(peerbus_exchange *exchange, uint64_t ticket,
                                                     uint64_t token, uint64_t copy, uint64_t rank,
                                                     const void **attachment);

#ifdef __cplusplus
}
#endif

#endif

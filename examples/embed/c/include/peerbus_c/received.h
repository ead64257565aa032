/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_RECEIVED_H
#define PEERBUS_C_RECEIVED_H

/**
 * @file
 * The rows that a dispatch brings to a rank.
 */

#include <peerbus_c/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The largest number of attachments of an exchange. */
enum { PEERBUS_ATTACHMENTS = 4 };

/** The home of a received row. */
typedef struct peerbus_origin {
  uint32_t token; /**< index among the tokens that the home rank gave */
  uint16_t rank;  /**< the home rank */
  uint16_t slot;  /**< the slot of the token that the row serves; by rank: the copy of the token */
} peerbus_origin;

/** The use of a row by a local expert, in layouts by rank. */
typedef struct peerbus_row_use {
  uint32_t row;  /**< number of the row */
  uint32_t slot; /**< the slot of its token that names the expert, below top_k */
} peerbus_row_use;

/**
 * The rows that one dispatch brought to this rank, for all layouts.
 *
 * A block is a local expert, or, in layouts by rank, the whole rank. Rows are numbered through all
 * blocks, gaps included. The rows of block b from source r are rows first_rows[b * ranks + r]
 * and the counts[b * ranks + r] - 1 rows after it. Sources are the ranks of the communicator, or where
 * rows were relayed the near ranks of this one, which handed them on; `origins` tell the home. Except in layouts with slots, the rows of a block
 * lie together, in the order of sources. Entry i of each array of rows belongs to row i.
 *
 * All pointers lead into memory of the exchange. They are valid until this rank has called
 * `peerbus_dispatch` or `peerbus_dispatch_send` `in_flight` more times on the exchange, refused calls
 * included, or until it is destroyed. In layouts with slots, rows are valid only until
 * `peerbus_combine_send` or `peerbus_combine`. The caller may write rows, scales and attachments.
 * It fills the outputs before combine, and must not change them after.
 */
typedef struct peerbus_received {
  uint32_t struct_bytes; /**< sizeof(peerbus_received); the caller sets it */
  uint32_t by_rank;      /**< 1 in layouts by rank, otherwise 0 */
  uint64_t ticket;       /**< names the dispatch in later calls */
  uint64_t rows;         /**< rows that arrived */
  uint64_t end;          /**< one more than the last row number that may be used, gaps included */
  uint64_t row_capacity; /**< entries of the arrays of rows */
  uint64_t ranks;        /**< number of sources */
  uint64_t blocks;       /**< blocks of this rank */
  uint64_t experts;      /**< experts of this rank, vacant places included */

  const uint32_t *expert_ids; /**< [experts] numbers within the group, or PEERBUS_VACANT */
  const uint32_t *first_rows; /**< [blocks, ranks] */
  const uint32_t *counts;     /**< [blocks, ranks] */

  void *row_data;       /**< [row_capacity, row_bytes] as the codec encodes them */
  uint64_t row_bytes;   /**< bytes of a row */
  void *scales;         /**< [row_capacity, scale_bytes]; NULL if the codec has none */
  uint64_t scale_bytes; /**< bytes of the scales of a row */
  void *outputs;        /**< bf16 [row_capacity, hidden]; NULL with `outputs_at_home` */

  void *attachments[PEERBUS_ATTACHMENTS]; /**< [row_capacity, configured bytes]; NULL if none */
  const peerbus_origin *origins;          /**< [row_capacity]; of rows that arrived */

  /* Only in layouts by rank, otherwise NULL. */
  const int32_t *slot_experts;  /**< [row_capacity, top_k] numbers of local experts, or -1 */
  const float *slot_weights;    /**< [row_capacity, top_k], 0 where the expert is -1 */
  const uint32_t *use_starts;   /**< [experts + 1] first entry of `uses` for each expert, then end */
  const peerbus_row_use *uses;  /**< by expert, then by row */
} peerbus_received;

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_EPLB_H
#define PEERBUS_C_EPLB_H

/**
 * @file
 * Plans of where experts lie, from their loads: EPLB and planners of peerbus.
 */

#include <peerbus_c/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Values of `peerbus_eplb_args.planner`. */
enum {
  PEERBUS_EPLB_PUBLISHED = 0,  /**< the algorithms of DeepSeek's EPLB, hierarchical or global */
  PEERBUS_EPLB_SPREAD = 1,     /**< no rank holds an expert twice */
  PEERBUS_EPLB_INCREMENTAL = 2 /**< likewise, by few changes of `old_map` */
};

/** The loads of experts, and the slots that they are planned for. */
typedef struct peerbus_eplb_args {
  uint32_t struct_bytes;  /**< sizeof(peerbus_eplb_args) */
  int32_t planner;        /**< PEERBUS_EPLB_... */
  uint64_t layers;        /**< each is planned apart */
  uint64_t experts;       /**< of a layer */
  uint64_t slots;         /**< physical experts of all ranks; EPLB's num_replicas */
  uint64_t groups;        /**< of PEERBUS_EPLB_PUBLISHED: num_groups */
  uint64_t nodes;         /**< of PEERBUS_EPLB_PUBLISHED: num_nodes */
  uint64_t ranks;         /**< num_gpus; rank r has the slots from r x slots / ranks on */
  const double *loads;    /**< [layers, experts] */
  const int64_t *old_map; /**< [layers, slots], of PEERBUS_EPLB_INCREMENTAL: experts of slots */
  double least_gain;      /**< of balancedness; layers that would gain less keep their map */
  uint64_t most_moves;    /**< experts of a layer that come to another rank; 0: any number */
  uint64_t fixed_slots;   /**< of each rank, the first ones, whose experts stay */
} peerbus_eplb_args;

/** The arrays that a plan is written to. All but the first may be NULL. */
typedef struct peerbus_eplb_tables {
  uint32_t struct_bytes;        /**< sizeof(peerbus_eplb_tables) */
  uint32_t reserved;            /**< 0 */
  int64_t *physical_to_logical; /**< [layers, slots]: the expert of each slot */
  int64_t *replica_of_slot;     /**< [layers, slots]: the number of its replica, from 0 on */
  int64_t *expert_count;        /**< [layers, experts]: how many slots an expert has */
  int64_t *moves;               /**< [layers]: of PEERBUS_EPLB_INCREMENTAL, otherwise set to 0 */
} peerbus_eplb_tables;

/**
 * Plans layers and writes the tables. Not collective: ranks with equal arguments have equal plans, on
 * all machines. EPLB's logical_to_physical_map has slot s at [expert of s, replica of s].
 * Errors: PEERBUS_INVALID_ARGUMENT for a NULL, an unknown planner, loads that are negative or not
 * finite, sizes that the planner cannot plan, and an illegal `old_map`. Nothing is written then.
 */
PEERBUS_API peerbus_code peerbus_eplb_plan(const peerbus_eplb_args *args,
                                           const peerbus_eplb_tables *tables);

#ifdef __cplusplus
}
#endif

#endif

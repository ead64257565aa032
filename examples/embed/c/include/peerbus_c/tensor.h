/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_TENSOR_H
#define PEERBUS_C_TENSOR_H

/**
 * @file
 * Tensors that DeepEP's calls take and return.
 */

#include <peerbus_c/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Values of `dtype_code`, those of DLPack. */
enum {
  PEERBUS_INT = 0,          /**< with 8, 32 or 64 bits */
  PEERBUS_UINT = 1,         /**< with 8 bits: taken for E4M3 */
  PEERBUS_FLOAT = 2,        /**< with 32 bits */
  PEERBUS_BFLOAT = 4,       /**< with 16 bits */
  PEERBUS_BOOL = 6,         /**< with 8 bits */
  PEERBUS_FLOAT8_E4M3FN = 10 /**< with 8 bits */
};

/**
 * A tensor of the caller, in the layout of DLPack's DLTensor, so that a pointer to a DLTensor may be
 * passed in its place. (DLPack's own header is not needed. Its older releases lack the dtype codes
 * of bool and E4M3.) Up to three dimensions, in memory of the CPU. NULL stands for Python's None.
 */
typedef struct peerbus_tensor {
  void *data;          /**< the memory; the first element is `byte_offset` behind it */
  int32_t device_type; /**< 1: CPU */
  int32_t device_id;   /**< not read */
  int32_t ndim;        /**< number of dimensions, 1 to 3 */
  uint8_t dtype_code;  /**< PEERBUS_INT and so on */
  uint8_t dtype_bits;  /**< of an element */
  uint16_t dtype_lanes; /**< 1 */
  int64_t *shape;      /**< [ndim] */
  int64_t *strides;    /**< [ndim], in elements, not negative; NULL: row by row, without gaps */
  uint64_t byte_offset; /**< of the first element */
} peerbus_tensor;

/** A tensor in memory of a buffer. It may be copied freely. */
typedef struct peerbus_array {
  void *data;           /**< the first element */
  int32_t ndim;         /**< number of dimensions; 0 stands for Python's None */
  uint8_t dtype_code;   /**< as in `peerbus_tensor` */
  uint8_t dtype_bits;   /**< of an element */
  uint16_t dtype_lanes; /**< 1 */
  int64_t shape[3];     /**< [ndim] */
  int64_t strides[3];   /**< [ndim], in elements */
} peerbus_array;

/** Returns a view of `array` as a tensor, valid as long as `array` itself and its memory are. */
static inline peerbus_tensor peerbus_tensor_of(peerbus_array *array) {
  peerbus_tensor view;
  view.data = array->data;
  view.device_type = 1;
  view.device_id = 0;
  view.ndim = array->ndim;
  view.dtype_code = array->dtype_code;
  view.dtype_bits = array->dtype_bits;
  view.dtype_lanes = array->dtype_lanes;
  view.shape = array->shape;
  view.strides = array->strides;
  view.byte_offset = 0;
  return view;
}

#ifdef __cplusplus
}
#endif

#endif

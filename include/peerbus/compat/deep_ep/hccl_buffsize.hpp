// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <peerbus/core/align.hpp>

/// @file
/// The sizes of HCCL_BUFFSIZE, the memory of one communication domain on Ascend, that the MoE
/// operators need. CANN's operator documents and DeepEP-Ascend publish the rules.
namespace peerbus::deep_ep {

/// The unit of HCCL_BUFFSIZE, in bytes.
inline constexpr std::size_t hccl_mb = std::size_t{1} << 20;
/// The value of HCCL_BUFFSIZE if it is not set, in MB.
inline constexpr std::size_t default_hccl_buffsize_mb = 200;

/// A published rule for HCCL_BUFFSIZE, either for an algorithm of CANN's operators (their argument
/// `commAlg`) or for DeepEP-Ascend.
enum class hccl_rule : std::uint8_t {
  a3_fullmesh_v1,          ///< CANN on A3, also for an empty `commAlg`
  a3_fullmesh_v2,          ///< CANN on A3, with flags among the data
  a2_fullmesh,             ///< CANN on A2
  a2_hierarchy,            ///< CANN on A2, layered by nodes
  deep_ep_ascend,          ///< DeepEP-Ascend, without hierarchy
  deep_ep_ascend_layered,  ///< DeepEP-Ascend on A2, layered by nodes
};

/// Returns the name of the enumerator, or "unknown".
constexpr std::string_view to_string(hccl_rule rule) noexcept {
  switch (rule) {
    case hccl_rule::a3_fullmesh_v1: return "a3_fullmesh_v1";
    case hccl_rule::a3_fullmesh_v2: return "a3_fullmesh_v2";
    case hccl_rule::a2_fullmesh: return "a2_fullmesh";
    case hccl_rule::a2_hierarchy: return "a2_hierarchy";
    case hccl_rule::deep_ep_ascend: return "deep_ep_ascend";
    case hccl_rule::deep_ep_ascend_layered: return "deep_ep_ascend_layered";
  }
  return "unknown";
}

/// The shape of the calls that a communication domain must have memory for.
struct hccl_shape {
  std::size_t max_tokens = 0;  ///< the largest number of tokens that one rank dispatches at once
  std::size_t hidden = 0;      ///< elements of a token
  std::size_t ranks = 0;       ///< at least 1
  std::size_t experts = 0;     ///< experts of all ranks, without shared experts
  std::size_t top_k = 0;       ///< slots of a token
  std::size_t shared_experts = 0;  ///< shared experts that each token also goes to
};

/// Returns the size in bytes that the rule requires. An element counts as two bytes even if int8
/// travels.
constexpr std::size_t hccl_bytes(hccl_rule rule, const hccl_shape& shape) noexcept {
  const std::size_t token = 2 * shape.hidden;
  const std::size_t local_experts = (shape.experts + shape.ranks - 1) / shape.ranks;
  const auto fullmesh_a3 = [&](std::size_t record) {
    return 2 * (local_experts * shape.max_tokens * shape.ranks * record +
                (shape.top_k + shape.shared_experts) * shape.max_tokens * align_up(token, 512));
  };
  const auto fullmesh_a2 = [&] {
    const std::size_t copies = std::min(local_experts, shape.top_k);
    return 2 * (shape.max_tokens * shape.ranks * copies * token + 2 * hccl_mb);
  };
  const auto layered = [&](std::size_t besides_mb) {
    return shape.experts * shape.max_tokens * (token + 16 * align_up(shape.top_k, 8)) +
           besides_mb * hccl_mb;
  };
  const std::size_t record = align_up(token, 32) + 64;
  switch (rule) {
    case hccl_rule::a3_fullmesh_v1: return fullmesh_a3(align_up(record, 512));
    // Of every 512 bytes, 32 are a flag.
    case hccl_rule::a3_fullmesh_v2: return fullmesh_a3((record + 479) / 480 * 512);
    case hccl_rule::a2_fullmesh:
    case hccl_rule::deep_ep_ascend: return fullmesh_a2();
    case hccl_rule::a2_hierarchy: return layered(4 + 100);
    case hccl_rule::deep_ep_ascend_layered: return layered(4 + 800);
  }
  return 0;
}

/// Returns the HCCL_BUFFSIZE for `bytes` bytes, in MB, and at least the default.
constexpr std::size_t hccl_buffsize_mb(std::size_t bytes) noexcept {
  return std::max(default_hccl_buffsize_mb, (bytes + hccl_mb - 1) / hccl_mb);
}

}  // namespace peerbus::deep_ep

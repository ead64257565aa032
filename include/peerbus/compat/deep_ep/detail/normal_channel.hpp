// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <peerbus/compat/deep_ep/detail/keyed_channel.hpp>
#include <peerbus/compat/deep_ep/detail/normal_routing.hpp>
#include <peerbus/compat/deep_ep/normal.hpp>
#include <peerbus/core/bf16.hpp>

namespace peerbus::deep_ep::detail {

/// What travels in a row of a normal dispatch; nothing if it only prepares a combine.
enum class payload : std::uint8_t { bf16, bytes, nothing };

/// What normal calls must have in common to share memory.
struct normal_shape {
  payload rows = payload::bf16;
  std::size_t hidden = 0;
  std::size_t experts = 0;  ///< that the exchange routes by: the model's, or one per rank
  std::size_t top_k = 0;
  std::size_t scale_bytes = 0;     ///< of a token
  std::size_t listed_experts = 0;  ///< of the model, where the exchange routes by ranks; else 0
  friend bool operator==(const normal_shape&, const normal_shape&) = default;
};

/// Normal calls of one shape, whatever carries them.
class normal_channel : public keyed_channel<normal_shape> {
 public:
  using keyed_channel::keyed_channel;

  /// `fresh`: with what only a dispatch without a handle returns.
  virtual dispatch_result dispatch(const dispatch_args& args,
                                   const std::shared_ptr<normal_routing>& routing, bool fresh) = 0;
  /// A dispatch without rows, so that `routing` can be combined again.
  virtual void prepare(normal_routing& routing, const std::optional<deadline>& until) = 0;
  /// Of the routing's latest dispatch, which `is_received`.
  virtual combine_result combine(const combine_args& args, normal_routing& routing) = 0;
};

/// What a normal batch has besides the exchange's memory; taken once, used again and again.
struct normal_arrays {
  normal_arrays(const normal_shape& shape, std::size_t ranks, std::size_t max_tokens,
                std::size_t local_experts)
      : rank_prefix(ranks),
        per_expert(local_experts),
        copies(max_tokens),
        recv_topk_idx{fresh<std::int64_t>(ranks * max_tokens * shape.top_k)},
        recv_src_idx{fresh<std::int32_t>(ranks * max_tokens)},
        scales{fresh<std::byte>(max_tokens * shape.scale_bytes)},
        combined{fresh<bf16>(max_tokens * shape.hidden)},
        combined_weights{fresh<float>(max_tokens * shape.top_k)} {}

  std::vector<std::int32_t> rank_prefix;
  std::vector<std::int32_t> per_expert;
  std::vector<std::uint32_t> copies;  ///< of each token: ranks that it went to
  std::unique_ptr<std::int64_t[]> recv_topk_idx;
  std::unique_ptr<std::int32_t[]> recv_src_idx;
  std::unique_ptr<std::byte[]> scales;  ///< of this rank's tokens, side by side
  std::unique_ptr<bf16[]> combined;
  std::unique_ptr<float[]> combined_weights;

 private:
  /// Untouched, so that memory is taken where rows come only.
  template <class T>
  static std::unique_ptr<T[]> fresh(std::size_t count) {
    return std::make_unique_for_overwrite<T[]>(count);
  }
};

}  // namespace peerbus::deep_ep::detail

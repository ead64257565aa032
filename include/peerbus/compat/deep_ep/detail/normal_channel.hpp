// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/keyed_channel.hpp>
#include <peerbus/compat/deep_ep/detail/normal_routing.hpp>
#include <peerbus/compat/deep_ep/detail/payload.hpp>
#include <peerbus/compat/deep_ep/normal.hpp>
#include <peerbus/core/bf16.hpp>

namespace peerbus::deep_ep::detail {

/// The key of a channel: normal calls whose shapes are equal, except for `max_tokens`, share the
/// latest exchange for them.
struct normal_shape {
  payload rows = payload::bf16;
  std::size_t max_tokens = 0;  ///< tokens of a rank: the bound of a call, or 0 if the call has no
                               ///< bound; the number that a channel has room for
  std::size_t hidden = 0;
  std::size_t experts = 0;  ///< experts of the exchange: the model's, or one per rank
  std::size_t top_k = 0;
  std::size_t scale_bytes = 0;  ///< size of the scales of a token
  /// Experts of the model if the exchange routes by ranks, otherwise 0.
  std::size_t listed_experts = 0;
  friend bool operator==(const normal_shape&, const normal_shape&) = default;
};

/// The names of the numbers of a `call_key` of normal calls.
inline constexpr std::array normal_parts{form_part,
                                         key_part{"num_max_tokens_per_rank"},
                                         key_part{"hidden"},
                                         key_part{"num_experts"},
                                         key_part{"num_topk"},
                                         key_part{"the type of x", payload_words},
                                         key_part{"bytes of x_scales of a token"},
                                         key_part{"topk_idx", {"given", "none"}},
                                         key_part{"the size of num_tokens_per_expert"}};

inline call_key numbers_of(const normal_shape& shape) noexcept {
  return {form_of_rows,        shape.max_tokens,
          shape.hidden,        shape.experts,
          shape.top_k,         static_cast<std::uint64_t>(shape.rows),
          shape.scale_bytes,   shape.listed_experts != 0,
          shape.listed_experts};
}

/// The interface of a channel of normal calls, independent of transport and codec.
class normal_channel : public keyed_channel<normal_shape> {
 public:
  using keyed_channel::keyed_channel;

  /// Carries out a dispatch. If `fresh`, the dispatch has no handle, and its result has all
  /// members.
  virtual dispatch_result dispatch(const dispatch_args& args,
                                   const std::shared_ptr<normal_routing>& routing, bool fresh) = 0;
  /// Dispatches without rows, so that `routing` can be combined again.
  virtual void prepare(normal_routing& routing, const std::optional<deadline>& until) = 0;
  /// Combines the routing's latest dispatch, which must be one for which `is_received` is true.
  virtual combine_result combine(const combine_args& args, normal_routing& routing) = 0;
};

/// The memory of a normal batch besides the exchange's, allocated once and reused.
struct normal_arrays {
  normal_arrays(const normal_shape& shape, std::size_t rank_count, std::size_t local_experts)
      : rank_prefix(rank_count),
        per_expert(local_experts),
        copies(shape.max_tokens),
        note(1 + (shape.listed_experts + 1) / 2),
        recv_topk_idx{uninitialised<std::int64_t>(rank_count * shape.max_tokens * shape.top_k)},
        recv_src_idx{uninitialised<std::int32_t>(rank_count * shape.max_tokens)},
        scales{uninitialised<std::byte>(shape.max_tokens * shape.scale_bytes)},
        combined{uninitialised<bf16>(shape.max_tokens * shape.hidden)},
        combined_weights{uninitialised<float>(shape.max_tokens * shape.top_k)} {}

  std::vector<std::int32_t> rank_prefix;
  std::vector<std::int32_t> per_expert;
  std::vector<std::uint32_t> copies;  ///< [tokens]: the number of ranks that each token went to
  /// The note of a dispatch to all ranks: the number of the call that made the handle, or 0. If the
  /// exchange routes by ranks, num_tokens_per_expert as int32 follows.
  std::vector<std::uint64_t> note;
  std::unique_ptr<std::int64_t[]> recv_topk_idx;
  std::unique_ptr<std::int32_t[]> recv_src_idx;
  std::unique_ptr<std::byte[]> scales;  ///< scales of this rank's tokens, without gaps
  std::unique_ptr<bf16[]> combined;
  std::unique_ptr<float[]> combined_weights;

 private:
  /// Allocates without initialising, so that pages are only committed where rows arrive.
  template <class T>
  static std::unique_ptr<T[]> uninitialised(std::size_t count) {
    return std::make_unique_for_overwrite<T[]>(count);
  }
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/keyed_channel.hpp>
#include <peerbus/compat/deep_ep/low_latency.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/moe/layout.hpp>

namespace peerbus::deep_ep::detail {

/// The format of the rows of low-latency dispatches.
enum class wire_format : std::uint8_t { bf16, fp8, fp8_rounded, fp8_ue8m0 };

/// The key of a channel: low-latency calls whose keys are equal, except for `max_tokens`, share the
/// exchange that has room for them.
struct low_latency_key {
  wire_format format = wire_format::bf16;
  std::size_t max_tokens = 0;  ///< tokens of a rank: the bound of a call, or the number that a
                               ///< channel has room for
  std::size_t hidden = 0;
  std::size_t experts = 0;
  std::size_t top_k = 0;
  bool weighted = false;  ///< rows bring the weights of their token
  friend bool operator==(const low_latency_key&, const low_latency_key&) = default;
};

/// The names of the numbers of a `call_key` of low-latency calls.
inline constexpr std::array low_latency_parts{
    key_part{"the call", {"low_latency_dispatch", "clean_low_latency_buffer"}},
    key_part{"num_max_dispatch_tokens_per_rank"},
    key_part{"hidden"},
    key_part{"num_experts"},
    key_part{"num_topk"},
    key_part{"use_fp8", true_or_false},
    key_part{"round_scale", true_or_false},
    key_part{"use_ue8m0", true_or_false},
    key_part{"topk_weights", {"absent", "given"}}};

inline call_key numbers_of(const low_latency_key& shape) noexcept {
  const wire_format format = shape.format;
  return {0,
          shape.max_tokens,
          shape.hidden,
          shape.experts,
          shape.top_k,
          format != wire_format::bf16,
          format == wire_format::fp8_rounded || format == wire_format::fp8_ue8m0,
          format == wire_format::fp8_ue8m0,
          shape.weighted};
}

/// The ranks that this rank sends nothing to: [ranks], 1 is masked. Empty if no rank is masked.
using rank_mask = std::span<const std::int32_t>;

/// The interface of a channel of low-latency calls, independent of transport and codec.
class low_latency_channel : public keyed_channel<low_latency_key> {
 public:
  using keyed_channel::keyed_channel;

  [[nodiscard]] bool has_room_for(const low_latency_key& wanted) const noexcept final {
    low_latency_key largest = wanted;
    largest.max_tokens = shape().max_tokens;
    return wanted.max_tokens != 0 && wanted.max_tokens <= largest.max_tokens && largest == shape();
  }
  virtual low_latency_dispatch_result dispatch(const low_latency_dispatch_args& args,
                                               rank_mask masked) = 0;
  /// Returns the largest number of tokens of a rank in dispatch `number`. If that is not one of the
  /// latest dispatches, returns the number that the channel has room for.
  [[nodiscard]] virtual std::size_t bound_of(std::uint64_t number) const noexcept = 0;
  virtual low_latency_combine_result combine(const low_latency_combine_args& args) = 0;
  /// Returns the place where the outputs of a dispatch may be written, to be combined without a
  /// copy. Collective if the dispatch has been combined.
  [[nodiscard]] virtual tensor combine_buffer(const argument& handle, std::uint64_t number) = 0;
};

/// The memory of a low-latency batch besides the exchange's, allocated once and reused.
struct low_latency_arrays {
  low_latency_arrays(const low_latency_key& shape, std::size_t rank_count,
                     std::size_t local_experts, std::size_t scale_bytes)
      : recv_count(local_experts),
        layout_range(local_experts * rank_count),
        topk_idx(shape.max_tokens * shape.top_k),
        routed(topk_idx.size()),
        src_info{uninitialised<std::int32_t>(local_experts * rank_count * shape.max_tokens)},
        weights{uninitialised<float>(shape.weighted ? local_experts * rank_count * shape.max_tokens
                                                    : 0)},
        source_ranks{uninitialised<std::int32_t>(
            shape.weighted ? local_experts * rank_count * shape.max_tokens : 0)},
        scales{in_large_pages(local_experts * rank_count * shape.max_tokens * scale_bytes)},
        combined{uninitialised<bf16>(shape.max_tokens * shape.hidden)} {}

  std::size_t bound = 0;  ///< the largest number of tokens of a rank in the dispatch
  tensor received;        ///< statistics to which received rows are added
  std::vector<std::int32_t> recv_count;
  std::vector<std::int64_t> layout_range;
  std::vector<std::int64_t> topk_idx;  ///< the ids that the caller gave
  std::vector<std::int64_t> routed;  ///< the ids that were sent: -1 for no expert, or a masked rank
  std::unique_ptr<std::int32_t[]> src_info;
  std::unique_ptr<float[]> weights;              ///< [L][R*B], if rows bring weights
  std::unique_ptr<std::int32_t[]> source_ranks;  ///< [L][R*B], if rows bring weights
  /// [L][32-bit words of a row][R*B]. If few rows arrive, the used parts of the columns are far
  /// apart. Touching pages of the usual size would then cost more than writing the words.
  mapping scales;
  std::unique_ptr<bf16[]> combined;

 private:
  static mapping in_large_pages(std::size_t bytes) {
    try {
      return mapping::anonymous(std::max<std::size_t>(bytes, 1));
    } catch (const error&) {
      throw std::bad_alloc{};  // As the other arrays do, so that all ranks get the same error.
    }
  }
  /// Allocates without initialising, so that pages are only committed where rows arrive.
  template <class T>
  static std::unique_ptr<T[]> uninitialised(std::size_t count) {
    return std::make_unique_for_overwrite<T[]>(count);
  }
};

/// The `Mode` of `channel` for low-latency calls: a row per (token, expert), with room for all rows
/// that may arrive.
struct low_latency_mode {
  using calls = low_latency_channel;
  using layout = moe::padded;
  using arrays = low_latency_arrays;
  static constexpr std::string_view prefix = "low_latency_";
  static constexpr std::string_view kept = "the arrays of low-latency calls";
  static constexpr bool weights_return = false;
};

}  // namespace peerbus::deep_ep::detail

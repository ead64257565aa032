// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_routing.hpp>
#include <peerbus/compat/deep_ep/detail/keyed_channel.hpp>
#include <peerbus/compat/deep_ep/detail/payload.hpp>
#include <peerbus/compat/deep_ep/detail/source_metadata.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::deep_ep::detail {

/// The key of a channel: expanded calls whose shapes are equal, except for `max_tokens`, share the
/// latest exchange for them.
struct expanded_shape {
  payload rows = payload::bf16;
  std::size_t max_tokens = 0;  ///< tokens of a rank: the bound of a call, or 0 if the call has no
                               ///< bound; the number that a channel has room for
  std::size_t hidden = 0;
  std::size_t experts = 0;
  std::size_t top_k = 0;
  std::size_t scale_bytes = 0;
  bool weighted = false;
  std::size_t alignment = 1;
  bool zero_padding = false;
  friend bool operator==(const expanded_shape&, const expanded_shape&) = default;
};

/// The names of the numbers of a `call_key` of expanded calls.
inline constexpr std::array expanded_parts{form_part,
                                           key_part{"num_max_tokens_per_rank"},
                                           key_part{"hidden"},
                                           key_part{"num_experts"},
                                           key_part{"num_topk"},
                                           key_part{"the type of x", payload_words},
                                           key_part{"bytes of x_scales of a token"},
                                           key_part{"topk_weights", {"none", "given"}},
                                           key_part{"expert_alignment"},
                                           key_part{"do_zero_padding", true_or_false}};

inline call_key numbers_of(const expanded_shape& shape) noexcept {
  return {form_expanded,     shape.max_tokens, shape.hidden,
          shape.experts,     shape.top_k,      static_cast<std::uint64_t>(shape.rows),
          shape.scale_bytes, shape.weighted,   shape.alignment,
          shape.zero_padding};
}

/// The interface of a channel of expanded calls, independent of transport and codec.
class expanded_channel : public keyed_channel<expanded_shape> {
 public:
  using keyed_channel::keyed_channel;

  /// Carries out a dispatch. If `fresh`, the dispatch has no handle, and makes `routing`.
  virtual elastic_dispatch_result dispatch(const elastic_dispatch_args& args,
                                           const std::shared_ptr<expanded_routing>& routing,
                                           bool fresh) = 0;
  /// Dispatches without rows, so that `routing` can be combined again.
  virtual void prepare(const std::shared_ptr<expanded_routing>& routing,
                       const std::optional<deadline>& until) = 0;
  /// Combines the latest dispatch of the handle's routing, for which `is_received` must be true.
  virtual elastic_combine_result combine(const elastic_combine_args& args) = 0;
};

/// The memory of an expanded batch besides the exchange's, allocated once and reused.
struct expanded_arrays {
  expanded_arrays(const expanded_shape& shape, std::size_t rank_count, std::size_t local_experts,
                  std::size_t most_rows)
      : sources{rank_count, shape.max_tokens, shape.top_k},
        ends(local_experts),
        counts(local_experts),
        aligned(local_experts),
        scales{std::make_unique_for_overwrite<std::byte[]>(shape.max_tokens * shape.scale_bytes)},
        weights{std::make_unique_for_overwrite<float[]>(shape.weighted ? most_rows : 0)},
        combined{std::make_unique_for_overwrite<bf16[]>(shape.max_tokens * shape.hidden)},
        combined_weights{std::make_unique_for_overwrite<float[]>(shape.max_tokens * shape.top_k)} {}

  std::shared_ptr<const expanded_routing> routing;
  source_metadata sources;
  std::vector<std::int32_t> ends;
  std::vector<std::int32_t> counts;
  std::vector<std::int32_t> aligned;
  std::unique_ptr<std::byte[]> scales;  ///< scales of this rank's tokens, without gaps
  std::unique_ptr<float[]> weights;     ///< [rows and gaps]
  std::unique_ptr<bf16[]> combined;
  std::unique_ptr<float[]> combined_weights;
};

}  // namespace peerbus::deep_ep::detail

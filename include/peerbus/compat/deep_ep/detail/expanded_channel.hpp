// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <peerbus/compat/deep_ep/detail/keyed_channel.hpp>
#include <peerbus/compat/deep_ep/detail/source_metadata.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/core/bf16.hpp>

namespace peerbus::deep_ep::detail {

/// What expanded calls must have in common to share memory.
struct expanded_shape {
  bool bytes = false;  ///< rows of bytes, otherwise of bf16
  std::size_t hidden = 0;
  std::size_t experts = 0;
  std::size_t top_k = 0;
  std::size_t scale_bytes = 0;
  bool weighted = false;
  std::size_t alignment = 1;
  bool zero_padding = false;
  friend bool operator==(const expanded_shape&, const expanded_shape&) = default;
};

/// Expanded calls of one shape, whatever carries them.
class expanded_channel : public keyed_channel<expanded_shape> {
 public:
  using keyed_channel::keyed_channel;

  virtual elastic_dispatch_result dispatch(const elastic_dispatch_args& args) = 0;
  virtual elastic_combine_result combine(const elastic_combine_args& args) = 0;
};

/// What an expanded batch has besides the exchange's memory; taken once, used again and again.
struct expanded_arrays {
  expanded_arrays(const expanded_shape& shape, std::size_t ranks, std::size_t max_tokens,
                  std::size_t local_experts, std::size_t most_rows)
      : ids(max_tokens * shape.top_k),
        sources{ranks, max_tokens, shape.top_k},
        ends(local_experts),
        counts(local_experts),
        aligned(local_experts),
        weights{std::make_unique_for_overwrite<float[]>(shape.weighted ? most_rows : 0)},
        combined{std::make_unique_for_overwrite<bf16[]>(max_tokens * shape.hidden)},
        combined_weights{std::make_unique_for_overwrite<float[]>(ids.size())} {}

  std::vector<std::int64_t> ids;
  source_metadata sources;
  std::vector<std::int32_t> ends;
  std::vector<std::int32_t> counts;
  std::vector<std::int32_t> aligned;
  std::unique_ptr<float[]> weights;  ///< of the rows that came
  std::unique_ptr<bf16[]> combined;
  std::unique_ptr<float[]> combined_weights;
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>
#include <peerbus/moe/token_index.hpp>

namespace peerbus::moe::detail {

/// The uses of the rows of a batch by the local experts, in a layout by rank. Only the constructor
/// allocates.
class use_index {
 public:
  /// Takes room for `most_uses` uses by `expert_count` local experts.
  use_index(std::size_t expert_count, std::size_t most_uses);

  /// Indexes the uses of the rows that arrived, by a counting sort. `experts` are the local expert
  /// ids of their slots, `width` for each row, from row 0.
  void index(const recv_plan& arriving, const std::int32_t* experts, std::size_t width) noexcept;

  /// Returns the index of the last `index`.
  [[nodiscard]] expert_index view() const noexcept { return {starts_, {uses_.get(), most_uses_}}; }

 private:
  template <class Visit>
  static void for_each_use(const recv_plan& arriving, const std::int32_t* experts,
                           std::size_t width, Visit&& visit) noexcept;

  std::vector<std::uint32_t> starts_;
  std::unique_ptr<row_use[]> uses_;
  std::size_t most_uses_;
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/use_index.ipp>  // IWYU pragma: keep
#endif

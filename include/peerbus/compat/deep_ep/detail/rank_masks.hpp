// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::deep_ep::detail {

/// The ranks that this rank sends nothing to, with the values of DeepEP's mask buffer: 1 is masked.
class rank_masks {
 public:
  rank_masks(std::size_t rank_count, bool enabled) : masks_(rank_count), enabled_{enabled} {}

  void update(std::size_t rank, bool masked) {
    require_enabled("low_latency_update_mask_buffer");
    if (rank >= masks_.size())
      throw error{errc::invalid_argument, concat("low_latency_update_mask_buffer: rank is ", rank,
                                                 ", expected less than ", masks_.size())};
    masks_[rank] = masked ? 1 : 0;
    mask_gone();
  }
  void query(const tensor& status) const {
    require_enabled("low_latency_query_mask_buffer");
    require_form({"low_latency_query_mask_buffer", "mask_status"}, status,
                 {{dtype::int32}, {masks_.size()}});
    std::copy(masks_.begin(), masks_.end(), status.as<std::int32_t>());
  }
  void clean() {
    require_enabled("low_latency_clean_mask_buffer");
    std::fill(masks_.begin(), masks_.end(), 0);
    mask_gone();
  }
  [[nodiscard]] bool enabled() const noexcept { return enabled_; }
  /// Masks the ranks in `gone`, which then stay masked.
  void lose(const std::vector<bool>& gone) {
    gone_ = gone;
    mask_gone();
  }

  /// Returns the masks, [ranks], or an empty span if no rank is masked.
  [[nodiscard]] std::span<const std::int32_t> current() const noexcept {
    if (std::all_of(masks_.begin(), masks_.end(), [](std::int32_t mask) { return mask == 0; }))
      return {};
    return masks_;
  }

 private:
  void mask_gone() noexcept {
    for (std::size_t rank = 0; rank < gone_.size(); ++rank)
      if (gone_[rank]) masks_[rank] = 1;
  }
  void require_enabled(std::string_view call) const {
    if (!enabled_)
      throw error{errc::invalid_argument,
                  concat(call,
                         ": this buffer has no masks, expected one made with "
                         "buffer_options{.enable_shrink = true}")};
  }

  std::vector<std::int32_t> masks_;
  std::vector<bool> gone_;  ///< empty while all ranks are there
  bool enabled_;
};

}  // namespace peerbus::deep_ep::detail

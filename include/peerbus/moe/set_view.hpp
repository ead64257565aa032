// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/memory_map.hpp>

namespace peerbus::moe {

/// The memory of one batch at one rank: its rows, the data that travels beside them, and their
/// outputs. Rows are numbered through all rows of the rank, gaps included. A view of two pointers.
/// It is empty for a rank whose memory cannot be reached by loads and stores.
class set_view {
 public:
  set_view() = default;
  /// Makes a view of batch set `set`. `part` is the start of the rank's part of the window of the
  /// exchange, or nullptr. `map` outlives the view.
  set_view(const memory_map& map, std::byte* part, std::size_t set) noexcept
      : map_{&map}, base_{part == nullptr ? nullptr : part + set * map.set_bytes} {}

  /// Returns whether loads and stores reach the memory. If not, no other function may be called.
  [[nodiscard]] explicit operator bool() const noexcept { return base_ != nullptr; }
  /// Returns the map that says where the arrays of the batch begin.
  [[nodiscard]] const memory_map& map() const noexcept { return *map_; }

  /// Returns the bytes of row `i`, as the codec encodes it.
  [[nodiscard]] std::byte* row(std::size_t i) const noexcept {
    return at(map_->rows, i, map_->format.row_bytes);
  }
  /// Returns the scales of row `i`, as the codec encodes them.
  [[nodiscard]] std::byte* scales(std::size_t i) const noexcept {
    return at(map_->scales, i, map_->format.scale_bytes);
  }
  /// Returns the place of the origin of row `i`.
  [[nodiscard]] wire_origin* origin(std::size_t i) const noexcept {
    return peerbus::detail::placed<wire_origin>(at(map_->origins, i, sizeof(wire_origin)));
  }
  /// Returns the local expert ids of the slots of row `i`. Layouts by rank only.
  [[nodiscard]] std::byte* experts(std::size_t i) const noexcept {
    return at(map_->experts, i, map_->slot_bytes);
  }
  /// Returns the weights of the slots of row `i`. Layouts by rank only.
  [[nodiscard]] std::byte* weights(std::size_t i) const noexcept {
    return at(map_->weights, i, map_->slot_bytes);
  }
  /// Returns attachment `a` of row `i`.
  [[nodiscard]] std::byte* attachment(std::size_t a, std::size_t i) const noexcept {
    return at(map_->attachments[a], i, map_->attachment_bytes[a]);
  }
  /// Returns the output of row `i`, if outputs lie at the expert.
  [[nodiscard]] bf16* output(std::size_t i) const noexcept { return values(map_->outputs, i); }
  /// Returns the output of row `i`, if outputs are sums of f32.
  [[nodiscard]] float* sum(std::size_t i) const noexcept {
    return peerbus::detail::placed<float>(at(map_->outputs, i, map_->output_bytes()));
  }
  /// Returns the output for copy `copy` of this rank's token `token`, if outputs lie at home.
  [[nodiscard]] bf16* home_slot(std::size_t token, std::size_t copy) const noexcept {
    return values(map_->outputs, token * map_->copies + copy);
  }
  /// Returns the output for copy `copy` of this rank's token `token`, if the expert's rank puts
  /// outputs home.
  [[nodiscard]] bf16* returned(std::size_t token, std::size_t copy) const noexcept {
    return values(map_->staged.returned, token * map_->copies + copy);
  }

  /// Returns the attachment that came home beside the output of copy `copy` of this rank's token
  /// `token`.
  [[nodiscard]] std::byte* returned_attachment(std::size_t token, std::size_t copy) const noexcept {
    return at(map_->returned_attachments, token * map_->copies + copy,
              map_->output_attachment_bytes);
  }
  /// Returns the attachment that is to go home beside the output of row `i`, if its home rank
  /// cannot be stored to.
  [[nodiscard]] std::byte* output_attachment(std::size_t i) const noexcept {
    return at(map_->output_attachments, i, map_->output_attachment_bytes);
  }

  /// Returns the weights of the slots of row `i` that a combine brought.
  [[nodiscard]] std::byte* late_weights(std::size_t i) const noexcept {
    return at(map_->late_weights, i, map_->late_weight_bytes);
  }
  /// Returns entry `i` of the weights that leave in a combine, in the order of destinations.
  [[nodiscard]] std::byte* leaving_weights(std::size_t i) const noexcept {
    return at(map_->leaving_weights, i, map_->late_weight_bytes);
  }

  /// Zeroes rows `begin` to `end`, their scales and their attachments.
  void zero(std::size_t begin, std::size_t end) const noexcept {
    std::fill(row(begin), row(end), std::byte{0});
    std::fill(scales(begin), scales(end), std::byte{0});
    for (std::size_t a = 0; a < max_attachments; ++a)
      std::fill(attachment(a, begin), attachment(a, end), std::byte{0});
  }

  /// Returns entry `i` of the array of the batch at `offset`. An entry has `bytes` bytes.
  [[nodiscard]] std::byte* at(std::size_t offset, std::size_t i, std::size_t bytes) const noexcept {
    return base_ + offset + i * bytes;  // NOLINT(clang-analyzer-core.NullPointerArithm): set
  }

 private:
  [[nodiscard]] bf16* values(std::size_t offset, std::size_t i) const noexcept {
    return peerbus::detail::placed<bf16>(at(offset, i, map_->output_bytes()));
  }

  const memory_map* map_ = nullptr;
  std::byte* base_ = nullptr;
};

}  // namespace peerbus::moe

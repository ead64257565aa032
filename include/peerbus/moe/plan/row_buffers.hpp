// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <peerbus/core/align.hpp>
#include <peerbus/moe/lane.hpp>

namespace peerbus::moe {

/// Memory for one row per lane, in which a lane makes a row before it copies it to its places.
class row_buffers {
 public:
  /// The longest row for which there is a buffer.
  static constexpr std::size_t most_bytes = std::size_t{32} * 1024;

  /// Makes a buffer of `longest_row` bytes, or of `most_bytes` if that is less, for each of
  /// `max_lanes` lanes. The buffers of different lanes share no page, and a page is committed when
  /// its lane first writes there.
  /// Throws: `std::bad_alloc`.
  explicit row_buffers(std::size_t longest_row)
      : stride_{align_up(std::min(longest_row, most_bytes), page_bytes)},
        memory_{std::make_unique_for_overwrite<std::byte[]>(max_lanes * stride_ + page_bytes)} {}

  /// Returns the buffer of a lane, aligned to a page.
  [[nodiscard]] std::byte* of(lane caller) const noexcept {
    const auto start = reinterpret_cast<std::uintptr_t>(memory_.get());
    return memory_.get() + (align_up(start, page_bytes) - start) + caller.index * stride_;
  }

 private:
  static constexpr std::size_t page_bytes = 4096;

  std::size_t stride_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace peerbus::moe

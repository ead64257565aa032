// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/transport/fabric/notice.hpp>

namespace peerbus::detail::ofi {

/// Puts the notices of each peer into the order in which they were sent. Providers may report
/// receives in another order than that in which messages came. A notice that comes early stays in
/// its receive buffer.
///
/// Threads: one at a time.
class arrivals {
  static constexpr std::uint32_t none = ~std::uint32_t{0};

 public:
  /// `buffers` are the receive buffers, numbered from 0.
  arrivals(std::size_t ranks, std::span<const notice_buffer> buffers)
      : buffers_{buffers}, peers_(ranks), next_(buffers.size(), none) {}

  /// Takes the notice in `buffer`, whose source exists. Calls `take(buffer)` for each notice whose
  /// turn it is, after which its buffer may receive again.
  template <class Take>
  void came(std::uint32_t buffer, Take&& take) noexcept {
    peer& from = peers_[buffers_[buffer].head.source];
    hold(from, buffer);
    while (from.first_held != none && sequence_of(from.first_held) == from.expected) {
      const std::uint32_t first = from.first_held;
      from.first_held = next_[first];
      ++from.expected;
      take(first);
    }
  }

 private:
  struct peer {
    std::uint32_t expected = 0;
    std::uint32_t first_held = none;  ///< the early notices, by sequence
  };

  [[nodiscard]] std::uint32_t sequence_of(std::uint32_t buffer) const noexcept {
    return buffers_[buffer].head.sequence;
  }

  void hold(peer& from, std::uint32_t buffer) noexcept {
    std::uint32_t* place = &from.first_held;
    // The distance wraps around, as sequences do.
    while (*place != none &&
           static_cast<std::int32_t>(sequence_of(*place) - sequence_of(buffer)) < 0)
      place = &next_[*place];
    next_[buffer] = *place;
    *place = buffer;
  }

  std::span<const notice_buffer> buffers_;
  std::vector<peer> peers_;
  std::vector<std::uint32_t> next_;  ///< of the buffers that are held, by buffer
};

}  // namespace peerbus::detail::ofi

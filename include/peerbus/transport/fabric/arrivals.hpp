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
  arrivals(std::size_t rank_count, std::span<const notice_buffer> buffers)
      : buffers_{buffers}, peers_(rank_count), next_(buffers.size(), none) {}

  /// Takes the notice in `buffer`, whose source exists and is not given up. Calls `take(buffer)`
  /// for each notice whose turn it is, after which its buffer may receive again.
  template <class Take>
  void came(std::uint32_t buffer, Take&& take) noexcept {
    peer& from = peers_[buffers_[buffer].head.source];
    hold(from, buffer);
    while (from.first_held != none && head_of(from.first_held).sequence == from.expected) {
      ++from.expected;
      take(pop(from));
    }
  }

  /// Returns whether any notice waits for one that was sent before it.
  [[nodiscard]] bool any_held() const noexcept { return held_ != 0; }
  /// Returns how many notices of `source` wait.
  [[nodiscard]] std::uint32_t held_of(std::size_t source) const noexcept {
    return peers_[source].held;
  }
  /// Nothing is expected of `source` any more. Calls `drop(buffer)` for each notice that waits.
  template <class Drop>
  void give_up(std::size_t source, Drop&& drop) noexcept {
    peer& from = peers_[source];
    from.is_given_up = true;
    while (from.first_held != none) drop(pop(from));
  }
  [[nodiscard]] bool is_given_up(std::size_t source) const noexcept {
    return peers_[source].is_given_up;
  }

 private:
  struct peer {
    std::uint32_t expected = 0;
    std::uint32_t first_held = none;  ///< the early notices, by sequence
    std::uint32_t held = 0;           ///< how many there are
    bool is_given_up = false;
  };

  /// Returns how far `number` is behind `other`. Numbers wrap around.
  [[nodiscard]] static std::int32_t behind(std::uint32_t number, std::uint32_t other) noexcept {
    return static_cast<std::int32_t>(other - number);
  }
  [[nodiscard]] const notice& head_of(std::uint32_t buffer) const noexcept {
    return buffers_[buffer].head;
  }

  void hold(peer& from, std::uint32_t buffer) noexcept {
    std::uint32_t* place = &from.first_held;
    while (*place != none && behind(head_of(*place).sequence, head_of(buffer).sequence) > 0)
      place = &next_[*place];
    next_[buffer] = *place;
    *place = buffer;
    ++from.held;
    ++held_;
  }
  std::uint32_t pop(peer& from) noexcept {
    const std::uint32_t first = from.first_held;
    from.first_held = next_[first];
    --from.held;
    --held_;
    return first;
  }

  std::span<const notice_buffer> buffers_;
  std::vector<peer> peers_;
  std::vector<std::uint32_t> next_;  ///< of the buffers that are held, by buffer
  std::uint32_t held_ = 0;           ///< of all peers
};

}  // namespace peerbus::detail::ofi

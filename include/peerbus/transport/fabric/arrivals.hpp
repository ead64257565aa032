// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/transport/fabric/notice.hpp>

namespace peerbus::detail::ofi {

/// Puts the notices of each peer into the order in which they were sent, because providers may
/// report receives in another order. An early notice stays in its receive buffer.
///
/// Threads: one at a time.
class arrivals {
  static constexpr std::uint32_t none = ~std::uint32_t{0};

 public:
  /// Makes the order for `rank_count` peers. `buffers` are the receive buffers, numbered from 0.
  arrivals(std::size_t rank_count, std::span<const notice_buffer> buffers)
      : buffers_{buffers}, peers_(rank_count), next_(buffers.size(), none) {}

  /// Takes the notice in `buffer`, whose source exists and is not given up. Calls `take(buffer)`
  /// for each notice that is next in order. Its buffer may receive again afterwards.
  template <class Take>
  void came(std::uint32_t buffer, Take&& take) noexcept {
    peer& from = peers_[buffers_[buffer].head.source];
    hold(from, buffer);
    while (from.first_held != none && head_of(from.first_held).sequence == from.expected) {
      ++from.expected;
      take(pop(from));
    }
  }

  /// Returns whether any notice waits for an earlier notice.
  [[nodiscard]] bool any_held() const noexcept { return held_ != 0; }
  /// Returns the number of waiting notices of `source`.
  [[nodiscard]] std::uint32_t held_of(std::size_t source) const noexcept {
    return peers_[source].held;
  }
  /// Gives `source` up: no further notice of it is expected. Calls `drop(buffer)` for each waiting
  /// notice.
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
    std::uint32_t first_held = none;  ///< the first early notice, in the order of sequences
    std::uint32_t held = 0;           ///< number of early notices
    bool is_given_up = false;
  };

  /// Returns the distance from `number` to `other`. Numbers wrap around.
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
  std::vector<std::uint32_t> next_;  ///< the next held buffer, indexed by buffer
  std::uint32_t held_ = 0;           ///< number of early notices of all peers
};

}  // namespace peerbus::detail::ofi

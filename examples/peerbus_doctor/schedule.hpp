// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

namespace peerbus_doctor {

/// All ordered pairs, in the order in which they have their turns, numbered from 1.
struct schedule {
  std::uint64_t ranks;

  struct pair {
    std::size_t from;
    std::size_t to;
  };
  [[nodiscard]] std::uint64_t pairs() const { return ranks * (ranks - 1); }
  /// The number that tells ranks that no pair is left.
  [[nodiscard]] std::uint64_t end() const { return pairs() + 1; }
  [[nodiscard]] pair at(std::uint64_t number) const {
    const std::size_t from = (number - 1) / (ranks - 1);
    return {from, (from + 1 + (number - 1) % (ranks - 1)) % ranks};
  }
};

}  // namespace peerbus_doctor

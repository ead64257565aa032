// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <peerbus/moe/row_traffic.hpp>

#include "ep_bench/outcome.hpp"

namespace ep_bench {

/// Adds up what a transport of several planes counts for the operations, and leaves out what it
/// counts for the plain puts between them. The transport does not see rows that are stored at near
/// ranks, nor outputs that are loaded from there: those are as many as the exchange says.
class plane_tally {
 public:
  /// Leaves out everything since the last call of this class.
  template <class Planes>
  void leave_out(const Planes& bus) noexcept {
    before_ = counts_of(bus);
  }
  /// Adds everything since `leave_out`.
  template <class Planes>
  void take(const Planes& bus) noexcept {
    const counts now = counts_of(bus);
    sum_.near_bytes += now.near_bytes - before_.near_bytes;
    sum_.near_messages += now.near_messages - before_.near_messages;
    sum_.far_bytes += now.far_bytes - before_.far_bytes;
    sum_.far_messages += now.far_messages - before_.far_messages;
  }
  /// Returns the counts for one of `pairs` dispatches with their combines.
  [[nodiscard]] plane_counts per_pair(std::size_t near_ranks, std::size_t pairs,
                                      const peerbus::moe::row_traffic& rows) const noexcept {
    const auto each = [&](std::uint64_t all) {
      return static_cast<double>(all) / static_cast<double>(pairs);
    };
    return {near_ranks,
            rows,
            each(sum_.near_bytes),
            each(sum_.near_messages),
            each(sum_.far_bytes),
            each(sum_.far_messages)};
  }

 private:
  struct counts {
    std::uint64_t near_bytes = 0;
    std::uint64_t near_messages = 0;
    std::uint64_t far_bytes = 0;
    std::uint64_t far_messages = 0;
  };
  template <class Planes>
  static counts counts_of(const Planes& bus) noexcept {
    const auto near = bus.near_traffic();
    const auto far = bus.far_traffic();
    return {near.bytes, near.messages, far.bytes, far.messages};
  }

  counts before_;
  counts sum_;
};

}  // namespace ep_bench

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <peerbus/moe/row_traffic.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/planes/traffic.hpp>

#include "ep_bench/outcome.hpp"

namespace ep_bench {

/// What the planes of a transport have moved so far.
struct moved_by_planes {
  peerbus::plane_traffic near;
  peerbus::plane_traffic far;
};
/// Returns it, or nothing if the transport is no `planes`.
[[nodiscard]] std::optional<moved_by_planes> moved_by(peerbus::any_transport& bus) noexcept;

/// Adds up what a transport of several planes counts for the operations, and leaves out what it
/// counts for the plain puts between them. The transport does not see rows that are stored at near
/// ranks, nor outputs that are loaded from there: those are as many as the exchange says.
class plane_tally {
 public:
  /// Leaves out everything since the last call of this class.
  void leave_out(const moved_by_planes& now) noexcept { before_ = now; }
  /// Adds everything since `leave_out`.
  void take(const moved_by_planes& now) noexcept {
    add(sum_.near, now.near, before_.near);
    add(sum_.far, now.far, before_.far);
  }
  /// Returns the counts for one of `pairs` dispatches with their combines.
  [[nodiscard]] plane_counts per_pair(std::size_t near_ranks, std::size_t pairs,
                                      const peerbus::moe::row_traffic& rows) const noexcept {
    const auto each = [&](std::uint64_t all) {
      return static_cast<double>(all) / static_cast<double>(pairs);
    };
    return {near_ranks,
            rows,
            each(sum_.near.bytes),
            each(sum_.near.messages),
            each(sum_.far.bytes),
            each(sum_.far.messages)};
  }

 private:
  static void add(peerbus::plane_traffic& sum, const peerbus::plane_traffic& now,
                  const peerbus::plane_traffic& before) noexcept {
    sum.bytes += now.bytes - before.bytes;
    sum.messages += now.messages - before.messages;
  }

  moved_by_planes before_;
  moved_by_planes sum_;
};

}  // namespace ep_bench

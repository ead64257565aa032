// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/awaited_members.hpp>
#include <peerbus/bootstrap/detail/offered_place.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// Returns the settings of the place that processes call to join the group of `settings`. They
/// differ only in the job, so that ranks of another start do not meet there.
template <class Settings>
[[nodiscard]] Settings settings_to_join(Settings settings) {
  settings.job += "/running";
  return settings;
}

/// The way in which processes come to a running group. They call a member at one place. Then they
/// meet all members at another place, which that member offers for this once. `admission` and
/// `join_running` do the rest, which is the same for all kinds of places.
class admission_place {
 public:
  admission_place() = default;
  admission_place(const admission_place&) = delete;
  admission_place& operator=(const admission_place&) = delete;
  virtual ~admission_place() = default;

  /// Returns the place that processes call to join. Each makes one connection.
  [[nodiscard]] virtual rendezvous_place& calls() = 0;
  /// Offers a place to meet. Called by a member.
  /// Throws: `error` system.
  [[nodiscard]] virtual offered_place offer() const = 0;
  /// Collective: makes the bootstrap of `count` ranks that meet at `place`, in which the caller is
  /// `member`. Rank 0 is the rank that offered the place. `awaited` reports the ranks that end
  /// before they have come.
  /// Throws: `error` as the constructor of the bootstrap.
  [[nodiscard]] virtual std::unique_ptr<bootstrap> meet(const offered_place& place, rank_id member,
                                                        std::size_t count,
                                                        const awaited_members& awaited,
                                                        deadline until) const = 0;
};

}  // namespace peerbus::detail

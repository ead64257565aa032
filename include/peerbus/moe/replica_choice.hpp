// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace peerbus::moe {

/// The rule by which a rank chooses among the replicas of an expert. All rules are deterministic
/// and need no communication. A replica whose rank is gone is never chosen.
enum class replica_policy : std::uint32_t {
  /// The replica at the least distance from this rank. Equally near replicas take turns.
  nearest = 0,
  /// Replica (token + rank + expert) % replicas, in the order of physical experts, where `token` is
  /// the index of the token in the batch of its rank.
  round_robin = 1,
  /// Replicas take turns in proportion to their quotas.
  weighted = 2,
  /// One replica for all rows of this rank.
  fixed = 3
};

/// Returns the name of a policy, such as "round_robin".
constexpr std::string_view describe(replica_policy policy) noexcept {
  switch (policy) {
    case replica_policy::nearest: return "nearest";
    case replica_policy::round_robin: return "round_robin";
    case replica_policy::weighted: return "weighted";
    case replica_policy::fixed: return "fixed";
  }
  return "unknown";
}

/// The choice of a rank among the replicas of each expert. Ranks may differ in it. The memory of
/// the spans is the caller's, and only the call that gets them reads it.
struct replica_choice {
  replica_policy policy = replica_policy::nearest;  ///< the rule
  /// The quota of each physical expert, such as a number of rows, for `weighted`: [physical
  /// experts]. The shares of the rows of an expert are exact, or rounded to multiples of 1/256.
  std::span<const std::uint32_t> quotas{};
  /// The physical expert to which this rank sends the rows of each logical expert, for `fixed`:
  /// [experts]. If the rank of that expert is gone, the nearest other replica takes its place.
  std::span<const std::uint32_t> chosen{};
  /// The distance of each rank from this one, such as 0 for this rank, 1 for its host and 2 for its
  /// group of hosts: [ranks]. Empty: 0 for this rank, 1 for ranks whose memory it stores to, 2 for
  /// the others.
  std::span<const std::uint32_t> distances{};
};

}  // namespace peerbus::moe

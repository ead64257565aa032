// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

#include <peerbus/core/error.hpp>

namespace peerbus {

/// A rule that says which requests of a rank meet a fault. Requests are puts, gets, signals and
/// `fetch_add`s; a `put_signal` is a put and a signal. Each rank numbers its requests from 1. Waits
/// are not requests, because the number of waits in a program depends on time.
struct fault_rule {
  double chance = 0;        ///< the share of requests that meet the fault: 0 for none, 1 for all
  std::uint64_t first = 1;  ///< the number of the first request that may meet it
  /// The largest number of requests that meet the fault.
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();

  /// Returns a rule for request number `request`, or for the first later request that can meet the
  /// fault.
  [[nodiscard]] static constexpr fault_rule once_at(std::uint64_t request) noexcept {
    return {1, request, 1};
  }
};

/// The faults that a `fault` transport produces on one rank. Only the seed, the rank and the number
/// of a request decide which requests meet them. Ranks may have different schedules.
///
/// `delay`, `reorder` and `stall` keep to the contract of `transport`: a correct program does not
/// notice them. By default, some requests are delayed and reordered, and nothing else happens.
/// `fail` and `drop` are failures that the contract describes. `corrupt` breaks the contract.
struct fault_schedule {
  std::uint64_t seed = 1;  ///< the seed of all random choices

  /// Requests that are held on this rank and carried out in a later call: puts, gets or signals.
  fault_rule delay{.chance = 0.25};
  /// Puts or gets that are held on this rank and carried out before calls that were made earlier.
  /// No put passes a signal to the same peer, in either direction.
  fault_rule reorder{.chance = 0.5};
  /// The largest number of further requests and looks after which a held call is carried out, at
  /// least 1. The actual number is between 1 and this number. A look is a call of `progress` or
  /// `value`, or a check of the signal in a wait.
  std::uint64_t longest_delay = 16;
  /// The number of calls that can be held at once, at least 2. If there is no room, all held calls
  /// are carried out.
  std::size_t held_calls = 256;

  /// Requests at which the rank does nothing for `stall_time`, or calls `on_stall` if it is set.
  fault_rule stall{};
  std::chrono::microseconds stall_time{2000};  ///< the length of a stall
  std::function<void()> on_stall{};            ///< called instead of sleeping

  /// Requests that do nothing and return `fail_with`, as if the connection to the peer had broken.
  /// Later calls to that peer, and waits for it or for any rank, return `unreachable`, or
  /// `peer_dead` if `fail_with` is that.
  fault_rule fail{};
  errc fail_with = errc::system;  ///< anything but ok

  /// The request at which the rank is lost. It calls `on_drop` if that is set, which may end the
  /// process, for instance by `raise(SIGKILL)`. If `on_drop` returns, this and all later requests
  /// and waits return `peer_dead`, and nothing leaves this rank any more. To the others this looks
  /// like a host that is cut off.
  fault_rule drop{};
  std::function<void()> on_drop{};  ///< called once, at the request that meets `drop`

  /// Puts that lose 1 to 8 bytes at their end, or move by 1 to 8 bytes inside the window. No error
  /// reports it, so that tests can show that their comparisons notice. Empty puts are spared.
  fault_rule corrupt{};
};

/// The numbers of faults that a rank has met, by kind. Equal programs with equal schedules get
/// equal numbers, except for `reordered`, which depends on the calls that are still held.
struct fault_counts {
  std::uint64_t requests = 0;   ///< requests that were made, with or without a fault
  std::uint64_t delayed = 0;    ///< puts, gets and signals that were delayed
  std::uint64_t reordered = 0;  ///< puts and gets that took a place before an earlier call
  std::uint64_t stalled = 0;    ///< requests at which the rank stalled
  std::uint64_t failed = 0;     ///< requests that failed
  std::uint64_t dropped = 0;    ///< 1 once the rank is lost
  std::uint64_t corrupted = 0;  ///< puts with wrong bounds

  friend bool operator==(const fault_counts&, const fault_counts&) = default;
};

}  // namespace peerbus

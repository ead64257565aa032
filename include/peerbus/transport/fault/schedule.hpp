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
/// are no requests, because how often a program waits depends on time.
struct fault_rule {
  double chance = 0;        ///< the share of requests that meet the fault: 0 for none, 1 for all
  std::uint64_t first = 1;  ///< the number of the first request that may meet it
  /// The largest number of requests that meet the fault.
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();

  /// Returns the rule for request number `request` alone, or for the first one after it that can
  /// meet the fault.
  [[nodiscard]] static constexpr fault_rule once_at(std::uint64_t request) noexcept {
    return {1, request, 1};
  }
};

/// The faults that a `fault` transport gives on one rank. Which requests meet them depends on the
/// seed, the rank and the number of the request alone. Ranks may have different schedules.
///
/// `delay`, `reorder` and `stall` keep to the contract of `transport`: a program that is right does
/// not notice them. Without further settings, some requests are delayed and reordered, and nothing
/// else happens. `fail` and `drop` are the failures that the contract speaks of. `corrupt` breaks
/// the contract.
struct fault_schedule {
  std::uint64_t seed = 1;  ///< of everything that is drawn

  /// A put, get or signal is held on this rank, and done in a later call.
  fault_rule delay{.chance = 0.25};
  /// A put or get is held on this rank, and then done before calls that were made earlier. No put
  /// passes a signal to the same peer, in either direction.
  fault_rule reorder{.chance = 0.5};
  /// A held call is done after 1 to this many further requests and looks. `progress`, `value` and
  /// each look of a wait at its signal count as looks. At least 1.
  std::uint64_t longest_delay = 16;
  /// The number of calls that are held at once, at least 2. If there is no room, all are done.
  std::size_t held_calls = 256;

  /// The rank does nothing for `stall_time`, or calls `on_stall` if that is set, and then goes on.
  fault_rule stall{};
  std::chrono::microseconds stall_time{2000};  ///< the length of a stall
  std::function<void()> on_stall{};            ///< called instead of sleeping

  /// The request does nothing and returns `fail_with`, as if the connection to its peer had broken.
  /// Later calls to that peer, and waits for it, return `unreachable`, or `peer_dead` if
  /// `fail_with` is that.
  fault_rule fail{};
  errc fail_with = errc::system;  ///< anything but ok

  /// The rank is lost: `on_drop` is called if it is set, and may end the process, for instance by
  /// `raise(SIGKILL)`. If it returns, this and all later requests and waits return `peer_dead`, and
  /// nothing leaves this rank any more, which looks to the others like a host that is cut off.
  fault_rule drop{};
  std::function<void()> on_drop{};  ///< called once, at the request that meets `drop`

  /// A put loses 1 to 8 bytes at its end, or moves by 1 to 8 bytes inside the window. No error
  /// tells of it, so that tests can show that their comparisons notice. Empty puts are spared.
  fault_rule corrupt{};
};

/// The number of faults that a rank has been given, by kind. Equal programs with equal schedules
/// get equal numbers, except that `reordered` depends on which calls had not been done yet.
struct fault_counts {
  std::uint64_t requests = 0;   ///< requests that were made, with or without a fault
  std::uint64_t delayed = 0;    ///< puts, gets and signals that were delayed
  std::uint64_t reordered = 0;  ///< puts and gets that took a place before an earlier call
  std::uint64_t stalled = 0;    ///< stalls
  std::uint64_t failed = 0;     ///< requests that failed
  std::uint64_t dropped = 0;    ///< 1 once the rank is lost
  std::uint64_t corrupted = 0;  ///< puts with wrong bounds

  friend bool operator==(const fault_counts&, const fault_counts&) = default;
};

}  // namespace peerbus

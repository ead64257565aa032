// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>

#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/way_trials.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective::detail {

/// The times of a team's calls that are part of a trial. The notice of a call's first round says
/// when its rank came, and when it left the previous timed call. Therefore all ranks know the same
/// times, one call later, without an additional message.
class timed_calls {
 public:
  explicit timed_calls(page_exchange& pages) noexcept : pages_{pages} {}

  /// Writes into this rank's notice of `round` the time now if it `comes` to a timed call,
  /// otherwise 0, and the time when it left the last timed call.
  void tell(std::uint64_t round, bool comes) noexcept;
  /// Takes the times from the notices of all ranks in `round`. If a rank has not told when it came,
  /// `call` is not timed.
  void take(std::uint64_t round, way_trials::running& call) noexcept;
  /// Forgets the last timed call, whose end some ranks may not have told.
  void forget() noexcept { left_.reset(); }
  /// Counts `call`, and records that this rank leaves it.
  void leave(const way_trials::running& call) noexcept;

 private:
  page_exchange& pages_;
  std::optional<way_trials::running> left_;  // The last timed call, until all have told its end.
  std::uint32_t ended_ = 0;
};

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/timed_calls.ipp>  // IWYU pragma: keep
#endif

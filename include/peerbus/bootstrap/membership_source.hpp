// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// The state of a rank. A rank announces its state in memory that all ranks read, or in messages if
/// the ranks share no memory. A rank that died cannot announce its state. Its death is seen by its
/// pidfd or its connection, or its parent process announces it if `run_local` started the rank.
enum class rank_state : std::uint32_t {
  running = 0,   ///< zero, so that zeroed memory has this state
  left = 1,      ///< ended normally and takes part in no further operation
  failed = 2,    ///< ended by an exception
  died = 3,      ///< ended unannounced; `membership::state` reports it as `failed`
  followed = 4,  ///< ended because another rank was gone; reported as `failed`
  lost = 5,      ///< out of reach, state unknown; reported as `failed`
  excluded = 6   ///< the others went on without it; reported as `failed`
};

/// A source of rank states for a group whose ranks share no memory. A `membership` calls `look`
/// each time before it reads the state words, so `look` must be cheap if nothing has arrived.
///
/// Threads: all functions may be called from any thread of the rank.
class membership_source {
 public:
  membership_source() = default;
  membership_source(const membership_source&) = delete;
  membership_source& operator=(const membership_source&) = delete;
  virtual ~membership_source() = default;

  /// Updates the state words with the news that has arrived. Does not wait. If nothing has arrived,
  /// allocates nothing.
  virtual void look() noexcept = 0;
  /// Sends the final state of this rank to the other ranks.
  virtual void tell(rank_state state) noexcept = 0;
  /// Waits until `peer` has ended, but no longer than `patience`.
  /// Returns: whether `peer` has ended.
  virtual bool ends_within(rank_id peer, std::chrono::milliseconds patience) noexcept = 0;
};
/// The former name of `membership_source`.
using membership_news [[deprecated("use membership_source")]] = membership_source;

}  // namespace peerbus

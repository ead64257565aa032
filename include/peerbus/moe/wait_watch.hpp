// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/deadline.hpp>

namespace peerbus::moe {

/// Is asked from time to time while a call of an exchange waits for other ranks
/// (`exchange::watch_waits`). A layer above the exchange can thereby learn by a way of its own that
/// the other ranks will not come, and refuse the operation on this rank or on theirs.
class wait_watch {
 public:
  wait_watch() = default;
  wait_watch(const wait_watch&) = delete;
  wait_watch& operator=(const wait_watch&) = delete;
  virtual ~wait_watch() = default;

  /// Looks once. The first look comes about a millisecond after the wait began, further ones after
  /// pauses that grow to 64 ms. `until` is the deadline of the waiting call. An exception ends that
  /// call.
  virtual void look(deadline until) = 0;
};

}  // namespace peerbus::moe

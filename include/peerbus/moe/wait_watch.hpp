// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/deadline.hpp>

namespace peerbus::moe {

/// An object that an exchange asks from time to time while a call waits for other ranks
/// (`exchange::watch_waits`). A layer above the exchange can thereby learn by its own means that
/// other ranks will not come, and refuse the operation on this rank or on theirs.
class wait_watch {
 public:
  wait_watch() = default;
  wait_watch(const wait_watch&) = delete;
  wait_watch& operator=(const wait_watch&) = delete;
  virtual ~wait_watch() = default;

  /// Looks once for a reason to end the wait. The first look comes about a millisecond after the
  /// wait began, further looks after pauses that grow to 64 ms. `until` is the deadline of the
  /// waiting call. An exception that `look` throws ends that call.
  virtual void look(deadline until) = 0;
};

}  // namespace peerbus::moe

// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/direct.hpp>
#include <peerbus/transport/memory_hook.hpp>

namespace peerbus {

namespace detail {

/// Makes a window of memory files that all ranks map. Contract as `make_window` of `transport`.
direct_window make_shared_window(bootstrap& boot, window_shape shape, const memory_hook& on_memory,
                                 deadline until);

}  // namespace detail

/// Emulates the Unified Bus of a CloudMatrix384 among processes of one host. Each rank's part of a
/// window is an unnamed memory file (memfd), which peers get over the bootstrap and map. It has no
/// name, needs no /dev/shm, and is gone with the last process that maps it, even if processes are
/// killed. Threads of one process may be ranks too.
///
/// Memory is committed as it is touched. If the machine then runs out of memory, the kernel kills a
/// process, and its peers get `peer_dead`.
/// Cost: `make_window` takes two calls of `bootstrap::allgather`, and maps the part of each rank.
template <wait_policy Wait = adaptive_wait>
class basic_unified_bus : public direct_path {
 public:
  /// The ranks that `run` starts for this transport.
  static constexpr rank_kind ranks_are = rank_kind::processes;

  /// Makes the transport over `boot`, and keeps a reference to it. The ranks must be on one host.
  /// `on_memory` is called for the memory of each window.
  explicit basic_unified_bus(bootstrap& boot, Wait policy = {}, memory_hook on_memory = {})
      : direct_path{boot, policy.thresholds(boot.ranks_here(), boot.cores_here())},
        on_memory_{std::move(on_memory)} {}

  /// Makes a window of memory files that all ranks map. Contract as `make_window` of `transport`.
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    return detail::make_shared_window(boot(), shape, on_memory_, until);
  }

 private:
  memory_hook on_memory_;
};

/// The transport among processes of one host, with the default wait policy.
using unified_bus = basic_unified_bus<>;
static_assert(direct_transport<unified_bus> && runnable_transport<unified_bus>);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/unified_bus.ipp>  // IWYU pragma: keep
#endif

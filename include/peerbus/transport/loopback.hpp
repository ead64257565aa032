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
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

namespace detail {

/// Checks that the ranks of `boot` are threads of one process.
/// Throws: `error` unsupported if they are not.
void require_shared_addresses(const bootstrap& boot);

/// Makes a window of memory of this process. Contract as `make_window` of `transport`.
direct_window make_private_window(bootstrap& boot, window_shape shape, const memory_hook& on_memory,
                                  deadline until);

/// Makes a window of `memory`. Contract as `adopt_window` of `transport`.
direct_window make_adopted_window(bootstrap& boot, window_memory memory, deadline until);

}  // namespace detail

/// Connects threads of one process. A window is memory of that process.
/// Cost: `make_window` takes one call of `bootstrap::allgather`.
template <wait_policy Wait = adaptive_wait>
class basic_loopback : public direct_path {
 public:
  /// The ranks that `run` starts for this transport.
  static constexpr rank_kind ranks_are = rank_kind::threads;

  /// The refinements of a direct transport, and windows of existing memory.
  static constexpr transport_refinements refines{.peer_memory = true,
                                                 .signal_each = true,
                                                 .adopt_window = true,
                                                 .local_signals = true,
                                                 .private_memory = true};

  /// Makes the transport over `boot`, and keeps a reference to it. `on_memory` is called for the
  /// memory of each window that `make_window` makes.
  /// Throws: `error` unsupported if the ranks of `boot` are not threads of one process.
  explicit basic_loopback(bootstrap& boot, Wait policy = {}, memory_hook on_memory = {})
      : direct_path{boot, policy.thresholds(boot.ranks_here(), boot.cores_here())},
        on_memory_{std::move(on_memory)} {
    detail::require_shared_addresses(boot);
  }

  /// Makes a window of memory of this process. Contract as `make_window` of `transport`.
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    return detail::make_private_window(boot(), shape, on_memory_, until);
  }
  /// Makes a window of memory that the ranks already have. Contract as `adopt_window` of
  /// `transport`.
  /// Throws, on all ranks: `error` mismatch if the parts differ in size; invalid_argument if a part
  /// is missing or not aligned to a cache line.
  [[nodiscard]] window adopt_window(window_memory memory, deadline until) {
    return detail::make_adopted_window(boot(), std::move(memory), until);
  }

 private:
  memory_hook on_memory_;
};

/// The transport among threads of one process, with the default wait policy.
using loopback = basic_loopback<>;
static_assert(direct_transport<loopback> && adopting_transport<loopback> &&
              runnable_transport<loopback>);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/loopback.ipp>  // IWYU pragma: keep
#endif

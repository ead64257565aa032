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

/// Throws: `error` unsupported if the ranks of `boot` are not threads of one process.
void require_shared_addresses(const bootstrap& boot);

/// Makes a window of this process's own memory. Contract as `make_window` of `transport`.
direct_window make_private_window(bootstrap& boot, window_shape shape, const memory_hook& on_memory,
                                  deadline until);

}  // namespace detail

/// Ranks are threads of one process; a window is that process's own memory.
/// Cost: `make_window` takes one call of `bootstrap::allgather`.
template <wait_policy Wait = adaptive_wait>
class basic_loopback : public direct_path {
 public:
  /// The ranks that `run` starts for this transport.
  static constexpr rank_kind ranks_are = rank_kind::threads;

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

 private:
  memory_hook on_memory_;
};

/// The transport among threads of one process, with the default wait policy.
using loopback = basic_loopback<>;
static_assert(direct_transport<loopback> && runnable_transport<loopback>);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/impl/loopback.hpp>  // IWYU pragma: keep
#endif

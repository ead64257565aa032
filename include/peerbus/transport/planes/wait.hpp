// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>

namespace peerbus::detail {

/// The calls of two planes that a wait needs.
struct plane_calls {
  function_ref<std::uint64_t()> poll;  ///< takes arrivals; returns the signal's value
  function_ref<errc()> health;         ///< returns ok, or the reason why nothing can arrive any
                                       ///< more
  function_ref<bool()> arm;            ///< arms as `arm` of `transport` does, for at least one
                                       ///< signal
  function_ref<void()> disarm;         ///< disarms as `disarm` of `transport` does
  int fd;                              ///< descriptor, readable when something arrives while armed
};

/// Waits until `word` is at least `target`. The caller has spun already. Yields, then sleeps on the
/// descriptor, and checks whether the peers are alive. A thread that cannot be armed sleeps on the
/// futex of the word, and polls every `check_interval`.
/// Returns: as `wait` of `transport`.
[[nodiscard]] errc wait_on_planes(signal_word& word, std::uint64_t target, deadline until,
                                  const wait_thresholds& thresholds,
                                  const plane_calls& planes) noexcept;

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/planes/wait.ipp>  // IWYU pragma: keep
#endif

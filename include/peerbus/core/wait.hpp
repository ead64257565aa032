// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// Tells the core that this is a spin loop, so that a sibling hardware thread gets its resources.
inline void pause_core() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // Pauses, unlike `yield`, which is a no-op on most cores.
#endif
}

/// Limits for the phases of a wait. In this order, a waiter does `tight` loads of its word back to
/// back (for the lowest latency), `paused` loads with a pause between them, and `yields` loads with
/// a sched_yield between them. Then it parks on a futex and wakes at least every `check_interval`
/// to check the health of its peers.
struct wait_thresholds {
  std::uint32_t tight;                      ///< loads back to back
  std::uint32_t paused;                     ///< loads with a pause after each
  std::uint32_t yields;                     ///< loads with a sched_yield after each
  std::chrono::nanoseconds check_interval;  ///< the longest time to sleep at once
};

/// A policy that chooses the thresholds for a host. `ranks_here` ranks of the group run on it, and
/// `cores` cores are available to all of them together.
template <class P>
concept wait_policy = std::default_initializable<P> && std::copyable<P> &&
                      requires(const P policy, std::size_t ranks_here, std::size_t cores) {
                        {
                          policy.thresholds(ranks_here, cores)
                        } noexcept -> std::same_as<wait_thresholds>;
                      };

/// Spins for long only if every rank can have its own core. Otherwise a spinning rank would hold
/// the core that its peer needs. A waiter then loads its word a few times, yields a few times
/// (about 1 us each) and parks. With more than 32 ranks for each core, waiters wake less often in
/// proportion, because waking them would take the cores from ranks that have work. A rank that dies
/// is then noticed later, after 32 ms at most if 512 ranks share a core.
struct adaptive_wait {
  /// Returns the thresholds for `ranks_here` ranks on `cores` cores.
  [[nodiscard]] constexpr wait_thresholds thresholds(std::size_t ranks_here,
                                                     std::size_t cores) const noexcept {
    using std::chrono::milliseconds;
    if (ranks_here <= cores) return {4096, 4096, 64, milliseconds{2}};
    const auto sharing = static_cast<std::int64_t>(ranks_here / (cores == 0 ? 1 : cores));
    return {16, 0, 4, milliseconds{2} * (sharing <= 32 ? 1 : (sharing + 31) / 32)};
  }
};
static_assert(wait_policy<adaptive_wait>);

namespace detail {

/// Returns the time at which a waiter looks again if it waits for something that may arrive without
/// waking it: at most 2 ms from now, whatever the policy, and not after `until`.
[[nodiscard]] inline deadline next_look(deadline until,
                                        const wait_thresholds& thresholds) noexcept {
  constexpr std::chrono::milliseconds longest_sleep{2};
  const deadline soon =
      deadline::after(std::min<std::chrono::nanoseconds>(thresholds.check_interval, longest_sleep));
  return until.when() < soon.when() ? until : soon;
}

}  // namespace detail

}  // namespace peerbus

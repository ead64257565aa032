// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace peerbus {

/// Tells the core that this is a spin loop, so that a sibling hardware thread gets its resources.
inline void pause_core() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // Longer than `yield`, which most cores treat as a no-op.
#endif
}

/// How long a waiter looks at its word before it asks the kernel for help. The three phases, in
/// order: `tight` loads back to back (lowest latency), `paused` loads with a pause between them,
/// `yields` loads with a sched_yield between them; then the waiter parks on a futex and wakes at
/// least every `check_interval` to look after its peers' health.
struct wait_thresholds {
  std::uint32_t tight;
  std::uint32_t paused;
  std::uint32_t yields;
  std::chrono::nanoseconds check_interval;
};

/// A wait policy says, for a group of ranks on this host, which thresholds to use.
template <class P>
concept wait_policy = std::default_initializable<P> && std::copyable<P> &&
                      requires(const P policy, std::size_t ranks_here, std::size_t cores) {
                        {
                          policy.thresholds(ranks_here, cores)
                        } noexcept -> std::same_as<wait_thresholds>;
                      };

/// Spins only while every rank can have a core of its own; otherwise a spinning rank holds the
/// very core that its peer needs, so it yields a few times (about 1 us each) and parks.
struct adaptive_wait {
  [[nodiscard]] constexpr wait_thresholds thresholds(std::size_t ranks_here,
                                                     std::size_t cores) const noexcept {
    using std::chrono::milliseconds;
    if (ranks_here <= cores) return {4096, 4096, 64, milliseconds{2}};
    return {16, 0, 4, milliseconds{2}};
  }
};
static_assert(wait_policy<adaptive_wait>);

}  // namespace peerbus

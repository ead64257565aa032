// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <peerbus/core/event_clock.hpp>

namespace peerbus::detail {

#if defined(__x86_64__)
/// Returns whether the counter has one rate at all times and on all cores.
PEERBUS_INLINE bool has_steady_counter() noexcept {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned invariant = 1U << 8U;  // Source: Intel SDM, CPUID leaf 80000007H.
  return __get_cpuid(0x80000007U, &eax, &ebx, &ecx, &edx) != 0 && (edx & invariant) != 0;
}
#endif

PEERBUS_INLINE std::int64_t event_clock::read() noexcept {
  const auto kernel_time = [] {
    return std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count();
  };
#if defined(__x86_64__)
  static const bool is_steady = has_steady_counter();
  if (!is_steady) return kernel_time();
  const std::uint64_t before = ::__rdtsc();
  const moment found{before, std::max<std::int64_t>(kernel_time(), latest_)};
  // A thread that lost its core in between, or a machine that moved, begins anew.
  constexpr std::uint64_t most_apart = 4000;
  trusted_ticks_ = 0;
  const bool is_one_moment = ::__rdtsc() - before < most_apart;
  if (!is_one_moment || found.ticks <= first_.ticks) {
    first_ = {};
    return found.time;
  }
  if (first_.time == 0) first_ = found;
  // Over shorter spans the rate would be inexact, and longer ones are not needed.
  constexpr std::int64_t millisecond = 1'000'000;
  const std::int64_t span = found.time - first_.time;
  if (span < millisecond) return found.time;
  const double ticks = static_cast<double>(found.ticks - first_.ticks) / static_cast<double>(span);
  rate_ = static_cast<std::uint64_t>(static_cast<double>(std::uint64_t{1} << rate_bits) / ticks);
  trusted_ticks_ = static_cast<std::uint64_t>(static_cast<double>(millisecond) * ticks);
  read_ = found;
  // The rate changes a little, because the kernel adjusts its clock.
  if (span > 1000 * millisecond) first_ = found;
  return found.time;
#else
  return kernel_time();
#endif
}

}  // namespace peerbus::detail

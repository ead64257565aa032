// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// Rows that a rank has stored to the memory of a rank, which may be its own, or loaded from it.
struct row_access {
  const void* memory = nullptr;  ///< any byte of that rank's part of a window
  std::size_t rows = 0;
  std::size_t bytes = 0;  ///< the total size of the rows
};

/// A clock that a thread's deadlines read instead of the steady clock if time is simulated. Its
/// calls may take simulated time and let other ranks run.
class virtual_clock {
 public:
  virtual_clock() = default;
  virtual_clock(const virtual_clock&) = delete;
  virtual_clock& operator=(const virtual_clock&) = delete;

  ///@{
  /// Returns the simulated time. `glance` takes no simulated time and lets no other rank run.
  [[nodiscard]] virtual std::chrono::steady_clock::time_point now() noexcept = 0;
  [[nodiscard]] virtual std::chrono::steady_clock::time_point glance() const noexcept = 0;
  ///@}

  ///@{
  /// Sleeps as `futex_wait`, or wakes as `futex_wake_all`, among the ranks that this thread
  /// simulates. `until` is a simulated time.
  virtual void sleep(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                     std::chrono::steady_clock::time_point until) noexcept = 0;
  virtual void wake(const std::atomic<std::uint32_t>& word) noexcept = 0;
  ///@}

  ///@{
  /// Charges this rank the simulated time of its accesses. Noted stores are complete before the
  /// next signal to the same rank is seen. `note_loads` returns when the loads are complete.
  virtual void note_stores(std::span<const row_access> stored) noexcept = 0;
  virtual void note_loads(std::span<const row_access> loaded) noexcept = 0;
  ///@}

 protected:
  ~virtual_clock() = default;
};

/// The clock of this thread's deadlines, or null for the steady clock. This is the only place where
/// the library meets simulated time. Code that takes times from `deadline`, waits by a futex and
/// notes its accesses runs under simulation unchanged.
inline constinit thread_local virtual_clock* clock_of_thread = nullptr;

}  // namespace peerbus::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// Rows that a rank has stored to the memory of a rank, which may be its own, or loaded from there.
struct row_access {
  const void* memory = nullptr;  ///< any byte of that rank's part of a window
  std::size_t rows = 0;
  std::size_t bytes = 0;  ///< of all rows
};

/// A clock that a thread's deadlines read in place of the steady clock, where time is simulated.
/// Its calls may take time, and let other ranks run.
class virtual_clock {
 public:
  virtual_clock() = default;
  virtual_clock(const virtual_clock&) = delete;
  virtual_clock& operator=(const virtual_clock&) = delete;

  ///@{
  /// Returns the simulated time. `glance` takes none, and lets nobody run.
  [[nodiscard]] virtual std::chrono::steady_clock::time_point now() noexcept = 0;
  [[nodiscard]] virtual std::chrono::steady_clock::time_point glance() const noexcept = 0;
  ///@}

  ///@{
  /// Does what `futex_wait` and `futex_wake_all` do, among the ranks that this thread simulates.
  /// `until` is a simulated time.
  virtual void sleep(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                     std::chrono::steady_clock::time_point until) noexcept = 0;
  virtual void wake(const std::atomic<std::uint32_t>& word) noexcept = 0;
  ///@}

  ///@{
  /// Takes the time of stores, which end before the next signal to their rank is seen, and of
  /// loads, for which the caller waits.
  virtual void note_stores(std::span<const row_access> stored) noexcept = 0;
  virtual void note_loads(std::span<const row_access> loaded) noexcept = 0;
  ///@}

 protected:
  ~virtual_clock() = default;
};

/// The clock of this thread's deadlines; null: the steady clock. The library meets
/// simulated time here only: what counts time by `deadline`, waits by a futex or writes what it
/// does also runs there.
inline constinit thread_local virtual_clock* clock_of_thread = nullptr;

}  // namespace peerbus::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>

/// Recorders of the events of the ranks of a job, and trace files that tools can show.
namespace peerbus {

/// Options of a recorder.
struct recorder_options {
  /// The number of events that are kept for each thread. Newer events overwrite older ones.
  std::size_t events = 8192;
  /// The largest number of threads whose events are kept, such as the lanes of an exchange.
  std::size_t threads = 8;
};

/// A listener that keeps the latest events of a rank, in one ring for each thread that uses the
/// group. Because each lane is a thread, each lane has a ring.
///
/// Cost: the constructor allocates 64 bytes for each event, and touches them. An event costs what
/// `event_listener` says, and a write of one cache line that no other thread writes. No lock and no
/// system call.
///
/// Threads: events may come from any number of threads. `read` and `lost` must only be called while
/// no operation runs.
class recorder final : public event_listener {
 public:
  /// Allocates the rings.
  /// Throws: `error` invalid_argument if an option is 0.
  explicit recorder(const recorder_options& options = {});

  [[nodiscard]] bool hears_begins() const noexcept override { return false; }
  void on_begin(const operation_event& /*event*/) noexcept override {}
  PEERBUS_INLINE void on_end(const operation_event& event) noexcept override;

  /// Returns the events of each thread, in the order of their begins. An event that contains others
  /// comes before them. Threads have the order of their first events.
  /// Cost: allocates and sorts.
  [[nodiscard]] std::vector<std::vector<operation_event>> read() const;
  /// Returns the number of lost events: those that were overwritten, and those of threads beyond
  /// the number in the options.
  [[nodiscard]] std::uint64_t lost() const noexcept;

 private:
  /// An event in one cache line. Each member is written separately, because copying an
  /// `operation_event` that was just written would read wider than it was written, which stalls
  /// processors.
  struct alignas(cache_line_bytes) line {
    line() noexcept = default;
    explicit line(const operation_event& event) noexcept;
    [[nodiscard]] operation_event event() const noexcept;

    const char* name;
    std::int64_t begun;
    std::int64_t ended;
    std::uint64_t number;
    std::uint64_t epoch;
    std::uint64_t bytes;
    std::uint32_t lane;
    std::uint32_t peer;
    group_operation operation;
    operation_phase phase;
    event_kind kind;
    bool has_peer;
    errc fault;
  };
  static_assert(sizeof(line) == cache_line_bytes);
  /// The events of one thread.
  struct alignas(cache_line_bytes) ring {
    std::atomic<const void*> owner{nullptr};  ///< identifies the thread; null if there is none yet
    std::uint64_t written = 0;                ///< the number of events so far
    std::size_t next = 0;                     ///< the place of the next event
    std::unique_ptr<line[]> events;
  };
  /// Returns the ring of the calling thread, or null if no ring is left.
  [[nodiscard]] ring* find_ring() noexcept;

  std::size_t events_;
  std::vector<ring> rings_;
  std::atomic<std::uint64_t> refused_{0};  ///< the number of events of threads without a ring
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/trace/recorder.ipp>  // IWYU pragma: keep
#endif

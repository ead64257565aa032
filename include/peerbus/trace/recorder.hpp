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

/// Records of what the ranks of a job do, and the files in which tools show them.
namespace peerbus {

/// Options of a recorder.
struct recorder_options {
  /// The number of events of each thread that are kept. Older ones are overwritten.
  std::size_t events = 8192;
  /// The largest number of threads whose events are kept, such as the lanes of an exchange.
  std::size_t threads = 8;
};

/// A listener that keeps the latest events of a rank, in a ring for each thread that uses the
/// group. As a lane is a thread, that is a ring per lane.
///
/// Cost: the constructor allocates 64 bytes for each event, and touches them. An event costs a
/// cache line written to memory that no other thread writes, beside what `event_listener` says; no
/// lock and no system call.
///
/// Threads: events may come from any number of threads. `read` and `lost` are called while no
/// operation runs.
class recorder final : public event_listener {
 public:
  /// Allocates the rings.
  /// Throws: `error` invalid_argument if an option is 0.
  explicit recorder(const recorder_options& options = {});

  [[nodiscard]] bool hears_begins() const noexcept override { return false; }
  void on_begin(const operation_event& /*event*/) noexcept override {}
  PEERBUS_INLINE void on_end(const operation_event& event) noexcept override;

  /// Returns the events of each thread, in the order of their begins, those that contain others
  /// first. Threads have the order of their first events.
  /// Cost: allocates and sorts.
  [[nodiscard]] std::vector<std::vector<operation_event>> read() const;
  /// Returns the number of events that were overwritten, or that came from threads beyond those of
  /// the options.
  [[nodiscard]] std::uint64_t lost() const noexcept;

 private:
  /// An event in one cache line, each part written once: a copy would read wider than what was just
  /// written, for which processors wait.
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
    std::uint64_t written = 0;                ///< events so far
    std::size_t next = 0;                     ///< the place of the next event
    std::unique_ptr<line[]> events;
  };
  /// Returns the ring of the calling thread, or null if there is none left.
  [[nodiscard]] ring* find_ring() noexcept;

  std::size_t events_;
  std::vector<ring> rings_;
  std::atomic<std::uint64_t> refused_{0};  ///< events of threads without a ring
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/trace/recorder.ipp>  // IWYU pragma: keep
#endif

// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/core/rank.hpp>

/// Counts of the operations of a rank, and a file of them in the text form of Prometheus.
namespace peerbus::c_library {

/// The counts of one operation, such as dispatch, at one rank.
struct operation_counts {
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;           ///< other than by a refusal
  std::uint64_t refused_here = 0;     ///< because this rank's arguments were bad
  std::uint64_t refused_by_peer = 0;  ///< because those of another rank were
  std::uint64_t nanoseconds = 0;      ///< within its calls, by the first lane
  std::uint64_t bytes = 0;            ///< moved by this rank
};

/// The waits that ended when one rank had come.
struct wait_counts {
  std::uint64_t waits = 0;
  std::uint64_t nanoseconds = 0;
};

/// The counts of a rank at one moment.
struct metrics_snapshot {
  static constexpr std::size_t operation_kinds =
      static_cast<std::size_t>(group_operation::reduce_scatter_v) + 1;

  rank_id rank{};          ///< the slot of the rank, as all ranks here
  std::size_t ranks = 0;   ///< the number of ranks in the communicator
  std::uint64_t view = 0;  ///< the number of the view of the ranks
  std::array<operation_counts, operation_kinds> operations{};  ///< by `group_operation`
  std::vector<wait_counts> waits{};                            ///< by the slot that came last
  wait_counts other_waits{};                                   ///< where nobody knows who did
};

/// Returns a snapshot in the text form of Prometheus, version 0.0.4. Operations and peers without
/// counts are left out.
/// Source: https://prometheus.io/docs/instrumenting/exposition_formats/
std::string prometheus_text(const metrics_snapshot& counts);

/// The counts of a rank, and the file in which it shows them.
///
/// The file is written when the object is made, by `write_if_due` and by `try_write`. It is
/// replaced as a whole, so that a reader sees one snapshot. Threads: any number may count and
/// write.
class metrics {
 public:
  /// Counts for this rank of `boot`, in the file `path`, which has the counts from now on. Ranks
  /// are numbered by their slots, which they keep when others are gone. `view` is the number of the
  /// present view.
  /// Throws: `error` invalid_argument if it cannot be written.
  metrics(const bootstrap& boot, std::uint64_t view, std::string path);
  /// Returns the metrics that the environment variable PEERBUS_METRICS asks this rank of `boot`
  /// for, or null. Its value is a path, in which "{rank}" stands for the slot of the rank.
  /// Throws: `error` invalid_argument if ranks would share a file, or as the constructor.
  static std::unique_ptr<metrics> from_environment(const bootstrap& boot, std::uint64_t view);

  /// Counts an event that has ended, whose peer came last if it is a wait.
  void count(const operation_event& event) noexcept;
  /// Sets the number of the view.
  void set_view(std::uint64_t number) noexcept {
    view_.store(number, std::memory_order_relaxed);  // order: relaxed; guards no other data.
  }
  /// Returns the counts of one moment, unless other threads count all the time.
  [[nodiscard]] metrics_snapshot read() const;

  /// Writes the file, as `try_write`, unless that was done within the last second.
  /// Cost: a clock read; once a second also that of `try_write`.
  void write_if_due() noexcept;
  /// Leaves the file to another object: it is not written any more.
  void end() noexcept {
    has_ended_.store(true, std::memory_order_relaxed);  // order: relaxed; guards no other data.
  }
  /// Writes the file. If it cannot be written, it stays as it was.
  /// Cost: makes the text, and opens, writes and renames a file.
  void try_write() const noexcept;

 private:
  /// Writes the file. Throws: `error` system.
  void write() const;

  // Places of the numbers: six for each operation, in the order of `operation_counts`, then two for
  // each peer, then those of other waits.
  static constexpr std::size_t per_operation = 6;
  static constexpr std::size_t first_wait = metrics_snapshot::operation_kinds * per_operation;
  void add(std::size_t place, std::uint64_t amount) noexcept {
    // order: relaxed; `read` compares two readings, and the numbers guard no other data.
    numbers_[place].fetch_add(amount, std::memory_order_relaxed);
  }
  [[nodiscard]] std::vector<std::uint64_t> read_numbers() const;

  rank_id rank_;
  std::size_t ranks_;
  std::size_t slots_;
  std::string path_;
  std::vector<std::atomic<std::uint64_t>> numbers_;
  std::atomic<std::uint64_t> view_;
  std::atomic<std::int64_t> next_write_{0};
  std::atomic<bool> has_ended_{false};
};

/// Counts the events of a group in metrics, which may be those of a larger group.
class counting_listener final : public event_listener {
 public:
  /// Counts for a group whose rank i has the number `ranks[i]` in the metrics.
  counting_listener(std::shared_ptr<metrics> counts, std::vector<rank_id> ranks)
      : counts_{std::move(counts)}, ranks_{std::move(ranks)} {}

  void on_begin(const operation_event&) noexcept override {}
  void on_end(const operation_event& event) noexcept override;

  [[nodiscard]] const std::shared_ptr<metrics>& counts() const noexcept { return counts_; }
  /// Returns the number of `rank` in the metrics.
  [[nodiscard]] rank_id number_of(rank_id rank) const noexcept { return ranks_[rank.index()]; }

 private:
  std::shared_ptr<metrics> counts_;
  std::vector<rank_id> ranks_;
};

}  // namespace peerbus::c_library

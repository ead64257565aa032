// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/trace/clock_offset.hpp>
#include <peerbus/trace/recorder.hpp>

namespace peerbus {

/// A trace of a group: a recorder on each rank, whose events are written to one file
/// (docs/errors.md). Make it before the exchanges that it records.
///
/// Threads: no thread may use the group while this object is made, written or destroyed.
class job_trace {
 public:
  /// Begins to record the events of this rank in the group of `boot`, which must outlive this
  /// object. Collective.
  /// Cost: a recorder, and `measure_clock`.
  /// Throws, on all ranks: `error` out_of_memory or as `recorder` if the recorder of a rank cannot
  /// be made; or as `measure_clock`.
  job_trace(bootstrap& boot, deadline until, const recorder_options& options = {});
  job_trace(const job_trace&) = delete;
  job_trace& operator=(const job_trace&) = delete;
  /// Stops recording. Writes nothing.
  ~job_trace();

  /// Returns the recorder of this rank.
  [[nodiscard]] const recorder& events() const noexcept { return *recorder_; }

  /// Writes the events of all ranks to the file `path` on rank 0, or on the first rank that is
  /// left. Collective. Unless `quiet`, that rank prints a line on stderr with the largest error of
  /// a clock and the number of lost events.
  /// Cost: as `measure_clock`, and an allgather of about 200 bytes of text for each event, up to 48
  /// MiB a rank and 1 GiB in all. Beyond that, the earliest events are left out.
  /// Throws, on all ranks: `error` as `bootstrap::allgather`, such as when ranks are gone, or
  /// out_of_memory. Each rank then tries to write its events to a file of its own, `path` followed
  /// by ".rank" and its number.
  /// Throws, on the rank that writes: system if the file cannot be written.
  void write(const std::string& path, deadline until, bool quiet = false);
  /// Writes the events of this rank only to the file `path`. Not collective. Uses the clock offset
  /// that was measured when recording began.
  /// Throws: `error` system if the file cannot be written.
  void write_own(const std::string& path) const;

 private:
  /// The texts of all ranks, with the largest clock error and the number of lost events.
  struct gathered {
    std::vector<std::string> texts;  ///< [ranks left] on the rank that writes, otherwise empty
    std::int64_t error = 0;          ///< the largest error of a clock, in nanoseconds
    std::uint64_t lost = 0;
  };
  [[nodiscard]] gathered gather(deadline until);
  [[nodiscard]] std::string text(const clock_offset& end, std::size_t most_bytes) const;

  bootstrap* boot_;
  std::unique_ptr<recorder> recorder_;
  clock_offset begin_;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/trace/job_trace.ipp>  // IWYU pragma: keep
#endif

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

/// A recorder of each rank of a group, whose events end in one file (docs/errors.md). Make it
/// before the exchanges that it is to record.
///
/// Threads: none uses the group while this is made, written or destroyed.
class job_trace {
 public:
  /// Starts to record what this rank does in the group of `boot`, which outlives this. Collective.
  /// Cost: a recorder, and `measure_clock`.
  /// Throws, on all ranks: `error` out_of_memory or as `recorder` if a rank has no recorder; or as
  /// `measure_clock`.
  job_trace(bootstrap& boot, deadline until, const recorder_options& options = {});
  job_trace(const job_trace&) = delete;
  job_trace& operator=(const job_trace&) = delete;
  /// Stops to record. Writes nothing.
  ~job_trace();

  /// Returns the recorder of this rank.
  [[nodiscard]] const recorder& events() const noexcept { return *recorder_; }

  /// Writes the events of all ranks to the file `path` of rank 0. Collective. Rank 0 prints a line
  /// on stderr, with the largest error of a clock and the number of lost events, unless `quiet`.
  /// Cost: as `measure_clock`; every rank gets the events of all, about 200 bytes of text for each,
  /// up to 48 MiB a rank and 1 GiB in all. Earlier events are then left out.
  /// Throws, on all ranks: `error` as `bootstrap::allgather`, such as when ranks are gone, or
  /// out_of_memory. The events of each rank are then in a file of its own, `path` with ".rank" and
  /// its number behind. On rank 0: system if the
  /// file cannot be written.
  void write(const std::string& path, deadline until, bool quiet = false);
  /// Writes the events of this rank alone to the file `path`. Not collective. The offset of its
  /// clock is that of when recording began.
  /// Throws: `error` system if the file cannot be written.
  void write_own(const std::string& path) const;

 private:
  /// The events of all ranks, and how exact they are.
  struct gathered {
    std::vector<std::string> texts;  ///< [ranks] on rank 0, otherwise empty
    std::int64_t error = 0;          ///< the largest of a clock, in nanoseconds
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

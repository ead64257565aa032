// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/trace/clock_offset.hpp>

namespace peerbus {

/// The events of one rank, with what a trace says of them.
struct rank_trace {
  rank_id rank{};                                     ///< of the job
  std::string name;                                   ///< beside the rank, such as of the host
  std::vector<std::vector<operation_event>> threads;  ///< as `recorder::read` returns them
  std::uint64_t lost = 0;                             ///< events that are missing
  clock_offset begin{};                               ///< of the rank's clock, at the begin
  clock_offset end{};                                 ///< likewise, at the end
};

/// Returns the events of a rank as JSON objects with commas between them, in the format of Chrome's
/// trace viewer, which Perfetto reads: a process for each rank, a thread for each lane, complete
/// events ("X") for operations, waits and steps, and asynchronous ones ("b", "e") for messages.
/// Categories are those of NCCL's profiler: coll, p2p and step. Arguments are `seqNumber`, `epoch`,
/// `bytes`, `fault`, `peer` of messages and refusals, and `waited_for` of waits; an operation has
/// the bytes of its steps, and the rank of its longest wait in `waited_for`. Times are those of
/// rank 0, in microseconds.
///
/// If the text has more than `most_bytes`, the events that began first are left out and count as
/// lost.
/// Format: "Trace Event Format", Google 2016.
[[nodiscard]] std::string chrome_events(const rank_trace& trace, std::size_t most_bytes);

/// Returns a whole file of the texts that `chrome_events` has returned for each rank.
[[nodiscard]] std::string chrome_file(std::span<const std::string> ranks);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/trace/chrome_trace.ipp>  // IWYU pragma: keep
#endif

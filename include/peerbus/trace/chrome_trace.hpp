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

/// The events of one rank, with the data that a trace shows beside them.
struct rank_trace {
  rank_id rank{};                                     ///< the rank in the job
  std::string name;                                   ///< a name to show beside the rank, such as
                                                      ///< the host
  std::vector<std::vector<operation_event>> threads;  ///< the events, as `recorder::read` returns
                                                      ///< them
  std::uint64_t lost = 0;                             ///< the number of events that are missing
  clock_offset begin{};                               ///< the offset of the rank's clock at the
                                                      ///< begin
  clock_offset end{};                                 ///< the offset of the rank's clock at the end
};

/// Returns the events of a rank as JSON objects with commas between them, in the format of Chrome's
/// trace viewer, which Perfetto reads. Each rank is a process and each lane a thread. Operations,
/// waits and steps are complete events ("X"), messages are asynchronous ones ("b", "e"). Categories
/// are those of NCCL's profiler: coll, p2p and step. Arguments are `seqNumber`, `epoch`, `bytes`,
/// `fault`, `peer` of messages and refusals, and `waited_for` of waits. An operation has the bytes
/// of its steps, and the rank of its longest wait in `waited_for`. Times are those of rank 0, in
/// microseconds.
///
/// If the text would exceed `most_bytes`, the events that began first are left out and count as
/// lost.
/// Format: "Trace Event Format", Google 2016.
[[nodiscard]] std::string chrome_events(const rank_trace& trace, std::size_t most_bytes);

/// Returns the text of a trace file. `ranks` has the text of `chrome_events` for each rank.
[[nodiscard]] std::string chrome_file(std::span<const std::string> ranks);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/trace/chrome_trace.ipp>  // IWYU pragma: keep
#endif

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/function_ref.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/batch_input.hpp>
#include <peerbus/moe/plan/put_order.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>
#include <peerbus/moe/plan/row_buffers.hpp>
#include <peerbus/moe/plan/send_plan.hpp>

namespace peerbus::moe {

/// A batch as its path sees it.
struct row_path_batch {
  const batch_input& input;    ///< tokens and attachments of this rank
  const send_plan& leaving;    ///< places of the copies that this rank sends
  const recv_plan& arriving;   ///< computed after `send`, which must not use it
  const wire_origin* origins;  ///< origins of arrived rows, from row 0; may lie in the window
  put_order* order;            ///< null unless `Path::needs.stages`
  std::size_t set;             ///< number of the batch's memory, below in_flight
  bool attached;               ///< true if output attachments go home with the outputs
  std::size_t stream_from;     ///< bytes of a batch from which rows are stored by a `row_stream`
  const row_buffers& buffers;  ///< buffers in which lanes make rows
};

/// A step of lane 0, in `lane_meeting`.
using lane_step = peerbus::detail::function_ref<void()>;
/// A meeting of the lanes. All lanes call it. When all have called, lane 0 does the step, and then
/// all lanes return. It throws the exception of the step, or an error if a lane does not call.
using lane_meeting = peerbus::detail::function_ref<void(lane_step)>;

}  // namespace peerbus::moe

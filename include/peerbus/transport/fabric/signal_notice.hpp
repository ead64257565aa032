// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>

#include <peerbus/core/signal.hpp>
#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/registration.hpp>

namespace peerbus::detail::ofi {

/// Acts on the notice of a signal: writes its payload, then raises the signal. Does nothing if the
/// window was released, or lacks the signal or the place.
inline void raise_signal(const window_table& windows, const notice_buffer& arrival) noexcept {
  const notice& head = arrival.head;
  const window_part* const part = windows.find(head.window);
  if (part == nullptr || index(head.id) >= part->shape.signals) return;
  if (head.bytes != 0) {
    if (head.offset > part->shape.bytes || head.bytes > part->shape.bytes - head.offset) return;
    std::memcpy(part->memory.data.data() + head.offset, arrival.payload.data(), head.bytes);
  }
  part->signal(head.id).raise_at_least(head.value);
}

}  // namespace peerbus::detail::ofi

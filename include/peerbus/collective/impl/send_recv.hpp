// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/detail/batch.hpp>
#include <peerbus/collective/send_recv.hpp>
#include <peerbus/collective/transfer.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective {

PEERBUS_INLINE void batch_send_recv(channels& on, std::span<const transfer> messages,
                                    const call_options& options) {
  detail::batch{on, messages, options}.run();
}

}  // namespace peerbus::collective

// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/batch.hpp>
#include <peerbus/collective/send_recv.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective {

PEERBUS_INLINE void batch_send_recv(channels& channels, std::span<const transfer> messages,
                                    const call_options& options) {
  detail::batch{channels, messages, options}.run();
}

}  // namespace peerbus::collective

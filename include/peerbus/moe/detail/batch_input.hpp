// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/call_options.hpp>

namespace peerbus::moe::detail {

/// What a rank gives to a dispatch besides the routing; the caller's memory, read until
/// `dispatch_recv` returns.
struct batch_input {
  std::span<const bf16> tokens;  ///< [count, hidden]
  attachments attached;          ///< each [count, configured bytes]
};

}  // namespace peerbus::moe::detail

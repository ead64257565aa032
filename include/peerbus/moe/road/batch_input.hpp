// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include <peerbus/moe/call_options.hpp>

namespace peerbus::moe {

/// What a rank gives to a dispatch besides the routing; the caller's memory, read until
/// `dispatch_recv` returns.
template <class Token>
struct batch_input {
  std::span<const Token> tokens;  ///< [count, hidden]
  attachments attached;           ///< each [count, configured bytes]
};

}  // namespace peerbus::moe

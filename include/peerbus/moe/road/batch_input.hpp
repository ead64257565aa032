// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include <peerbus/moe/call_options.hpp>

namespace peerbus::moe {

/// The input of a rank to a dispatch, without the routing. The memory is the caller's, and roads
/// read it until `dispatch_recv` returns.
template <class Token>
struct batch_input {
  std::span<const Token> tokens;  ///< [count, hidden]
  attachments attached;           ///< each [count, configured bytes]
};

}  // namespace peerbus::moe

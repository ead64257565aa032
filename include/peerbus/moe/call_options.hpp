// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/combine_terms.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/lane.hpp>

namespace peerbus::moe {

/// The tensors that travel with the tokens, in the order of `exchange_config::attachments`; empty
/// where none is configured.
using attachments = std::array<std::span<const std::byte>, max_attachments>;

/// What a call of an exchange may say beyond its data. Each member says which calls read it.
struct call_options {
  std::optional<deadline> until{};  ///< none: the communicator's default, from the call on
  lane as{};
  moe::attachments attachments{};  ///< `dispatch` and `dispatch_send`
  combine_terms terms{};           ///< `combine` and `combine_recv`
  /// `dispatch`, `dispatch_send`, `combine`, `combine_send`: the caller has found something wrong
  /// with its part itself, so the operation is to be refused, on all ranks.
  bool refuse = false;
  /// All calls that wait: [ranks], or empty. Nanoseconds that the call waited for each rank, from
  /// when it began to wait, are added. What finds slow ranks; such waits look often and sleep
  /// little. A long wait may count a sixteenth too much.
  std::span<std::int64_t> waited{};
};

}  // namespace peerbus::moe

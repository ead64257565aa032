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

// Options of the calls of an exchange. Members of the same name mean the same in all of them:
//
// - `until` is the deadline; without it the communicator's default counts, from the call on.
// - `as` is the lane that calls.
// - `refuse` says that the caller has found something wrong with its part itself, so that the
//   operation is to be refused, on all ranks.
// - `attached` says that the rows' output attachments are filled and go home with the outputs. Each
//   rank may say so or not; `exchange::attached_by` tells the others.
// - `waited` is [ranks], or empty. Nanoseconds that the call waited for each rank, from when it
//   began to wait, are added. What finds slow ranks; such waits look often and sleep little. A long
//   wait may count a sixteenth too much.

/// Options of `dispatch` and `dispatch_send`, which waits only if its own input is bad.
///
/// `note` has `exchange_config::note_bytes` bytes, or none, in which case peers find none. It is
/// read before `dispatch_send` returns, travels in the message of counts at no cost but its bytes,
/// and is what `exchange::note` gives at every rank.
struct dispatch_options {
  std::optional<deadline> until{};
  lane as{};
  moe::attachments attachments{};
  bool refuse = false;
  std::span<std::int64_t> waited{};
  std::span<const std::byte> note{};
};

/// Options of `dispatch_recv`.
struct receive_options {
  std::optional<deadline> until{};
  lane as{};
  std::span<std::int64_t> waited{};
};

/// Options of `combine`.
struct combine_options {
  std::optional<deadline> until{};
  lane as{};
  combine_terms terms{};
  bool refuse = false;
  bool attached = false;
  std::span<std::int64_t> waited{};
};

/// Options of `combine_send`.
struct publish_options {
  std::optional<deadline> until{};
  lane as{};
  bool refuse = false;
  bool attached = false;
};

/// Options of `combine_recv`.
struct sum_options {
  std::optional<deadline> until{};
  lane as{};
  combine_terms terms{};
  std::span<std::int64_t> waited{};
};

}  // namespace peerbus::moe

// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/signal.hpp>

namespace peerbus::detail::ofi {

enum class notice_kind : std::uint32_t {
  signal,       ///< raises a signal, after it has written the payload to the window
  ack_request,  ///< asks for `ack` with the same value, after all earlier notices were taken
  ack,          ///< answers `ack_request`
  leave,        ///< acts as `ack_request`; then the sender's end closes
  check,        ///< asks for `checked`; the sequences of both show what was lost
  checked,
  lost  ///< says that the sender has broken its link; taken out of turn, as earlier notices may be
        ///< missing
};

/// The start of each message between two ranks. A payload of `bytes` may follow. Host byte order;
/// `protocol_version` and the byte order are compared when ranks connect.
struct notice {
  static constexpr std::uint64_t protocol_version = 4;
  /// The largest payload, in bytes, that is cheaper to copy than to write by a separate request.
  static constexpr std::size_t most_payload = 216;

  std::uint32_t source = 0;    ///< the sender's rank
  std::uint32_t sequence = 0;  ///< number among the sender's notices to this peer, from 0
  notice_kind kind = notice_kind::signal;
  std::uint32_t window = 0;
  signal_id id{};
  std::uint32_t bytes = 0;
  std::uint64_t value = 0;
  std::uint64_t offset = 0;  ///< the payload's byte offset in the window
};
static_assert(sizeof(notice) == 40);

/// A message with room for the longest payload.
struct notice_buffer {
  notice head;
  std::array<std::byte, notice::most_payload> payload;

  /// Returns the number of bytes that are sent.
  [[nodiscard]] std::size_t size() const noexcept { return sizeof head + head.bytes; }
};
static_assert(sizeof(notice_buffer) == 256);

}  // namespace peerbus::detail::ofi

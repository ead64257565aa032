// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/registration.hpp>
#include <peerbus/transport/registered/pending_calls.hpp>

namespace peerbus::detail::ofi {

/// A call on a bulk window that has returned, and is sent in slices later.
struct pending_call {
  enum class kind : std::uint8_t { write, read, notice };

  kind what = kind::notice;
  ///@{
  /// The part of a write or a read that is not posted yet.
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  void* key = nullptr;
  remote_place place{};
  ///@}
  notice head{};
  std::array<std::byte, notice::most_payload> payload;  ///< payload, of which `head.bytes` bytes
                                                        ///< are set
};

/// The pending calls to one peer, in their order.
using pending_calls = registered::pending_calls<pending_call>;

}  // namespace peerbus::detail::ofi

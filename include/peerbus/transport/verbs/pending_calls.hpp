// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <peerbus/transport/registered/pending_calls.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/rail_keys.hpp>
#include <peerbus/transport/verbs/registration.hpp>

namespace peerbus::detail::rdma {

/// A call on a bulk window that has returned, and is sent in slices later.
struct pending_call {
  enum class kind : std::uint8_t {
    write,
    read,
    notice,
    noted  ///< the call is noted, but the device had no room for its requests yet
  };

  kind what = kind::noted;
  ///@{
  /// The part of a write or a read that is not noted yet.
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  const rail_keys* key = nullptr;
  remote_place place;
  ///@}
  raised_signal raised;
};

/// The pending calls to one peer, in their order.
using pending_calls = registered::pending_calls<pending_call>;

}  // namespace peerbus::detail::rdma

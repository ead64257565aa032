// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::detail::registered {

/// The start of registered memory of a peer: its address, and the key for it.
template <class Key>
struct remote_place {
  std::uint64_t address = 0;
  Key key{};
};

/// One rank's part of a window: registered memory, signal words, which no device writes, and the
/// places of all ranks' parts.
///
/// `Registration` makes memory reachable for a device until it is destroyed. It converts to false
/// if it is empty. It has a `local_key()` and a `remote_key()`, and an `address(memory)` at which
/// requests of peers find the memory.
template <class Registration>
struct window_part {
  using registration_type = Registration;
  using local_key = decltype(Registration{}.local_key());
  using remote_key = decltype(Registration{}.remote_key());
  using place_type = remote_place<remote_key>;

  std::uint32_t number = 0;  ///< the window's number, the same on all ranks
  window_shape shape{};
  window_memory memory;
  Registration registration;  ///< destroyed before `memory`; empty if there are no bytes
  std::vector<place_type> parts;
  std::atomic<bool> released{false};  ///< whether this rank has released the window; peers may
                                      ///< still access the memory
  bool reported = false;              ///< whether all ranks have been told of the release

  [[nodiscard]] std::uintptr_t address() const noexcept {
    return reinterpret_cast<std::uintptr_t>(memory.data.data());
  }
  /// Returns the place of byte `offset` in the part of `peer`.
  [[nodiscard]] place_type place(rank_id peer, std::size_t offset) const noexcept {
    const place_type& base = parts[peer.index()];
    return {base.address + offset, base.key};
  }
  [[nodiscard]] signal_word& signal(signal_id id) const noexcept {
    return memory.signals[index(id)];
  }
};

}  // namespace peerbus::detail::registered

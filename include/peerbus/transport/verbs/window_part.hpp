// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/core/mapping.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>

namespace peerbus::detail::rdma {

/// One rank's part of a window: registered memory, signal words, which no device writes, and where
/// the parts of all ranks are.
struct window_part {
  std::uint32_t number = 0;  ///< the same on all ranks
  window_shape shape{};
  mapping data;
  mapping signals;
  memory_region registration;  ///< destroyed before `data`; empty if there are no bytes
  std::vector<remote_place> parts;
  std::atomic<bool> released{false};  ///< by this rank; peers may still reach for it
  bool reported = false;              ///< and all ranks have been told so

  [[nodiscard]] std::uint64_t address() const noexcept {
    return reinterpret_cast<std::uintptr_t>(data.data());
  }
  /// Where the part of `peer` has byte `offset`.
  [[nodiscard]] remote_place place(rank_id peer, std::size_t offset) const noexcept {
    const remote_place& base = parts[peer.index()];
    return {base.address + offset, base.key};
  }
  [[nodiscard]] signal_word& signal(signal_id id) const noexcept {
    // Fresh mapped memory is all zero, which is the value representation of a fresh signal_word.
    return reinterpret_cast<signal_word*>(signals.data())[index(id)];
  }
};

}  // namespace peerbus::detail::rdma

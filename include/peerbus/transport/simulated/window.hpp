// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::detail {

/// The parts of a window of `simulated`, as one rank knows them. Messages on their way keep them.
struct simulated_parts {
  /// The part of a rank.
  struct part {
    std::byte* data;
    signal_word* signals;
    std::uint32_t rank;                 ///< the rank's number in the simulation
    std::shared_ptr<const void> owner;  ///< keeps the memory
  };

  window_shape shape;
  rank_id own_rank;
  std::vector<part> of;  ///< [ranks]

  /// Returns whether bytes of a rank's part exist.
  [[nodiscard]] bool holds(rank_id peer, std::size_t offset, std::size_t bytes) const noexcept {
    return peer.index() < of.size() && offset <= shape.bytes && bytes <= shape.bytes - offset;
  }
  /// Returns whether a rank's signal exists.
  [[nodiscard]] bool has(rank_id peer, signal_id id) const noexcept {
    return peer.index() < of.size() && index(id) < shape.signals;
  }
  /// Returns the caller's own part.
  [[nodiscard]] const part& own() const noexcept { return of[own_rank.index()]; }
};

/// A part of a window as memory of this process. The kernel commits its pages, which are small, at
/// the first touch, so that the windows of a thousand ranks cost what is used.
struct simulated_memory {
  std::byte* data = nullptr;
  signal_word* signals = nullptr;
  std::uint32_t rank = 0;

  /// Maps zeroed memory.
  /// Throws: `error` out_of_memory.
  simulated_memory(window_shape shape, std::uint32_t number);
  simulated_memory(const simulated_memory&) = delete;
  simulated_memory& operator=(const simulated_memory&) = delete;
  ~simulated_memory();

 private:
  std::size_t mapped_ = 0;
};

}  // namespace peerbus::detail

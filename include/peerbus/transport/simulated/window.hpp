// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::detail {

struct simulated_memory;

/// The parts of a window of `simulated`, which all ranks share. Messages on their way keep them.
struct simulated_parts {
  /// The part of a rank.
  struct part {
    std::byte* data;
    std::uint64_t* signals;
    std::shared_ptr<const void> owner;  ///< keeps the memory
  };

  window_shape shape;
  std::vector<part> of;  ///< [ranks]
  /// The number of each rank in the simulation: [ranks]. May outlive the parts.
  std::shared_ptr<const std::vector<std::uint32_t>> numbers;

  /// Makes the parts of `memories`: [ranks], none of them null.
  [[nodiscard]] static std::shared_ptr<const simulated_parts> over(
      window_shape shape, std::span<const std::shared_ptr<const simulated_memory>> memories);

  /// Returns whether bytes of a rank's part exist.
  [[nodiscard]] bool holds(rank_id peer, std::size_t offset, std::size_t bytes) const noexcept {
    return peer.index() < of.size() && offset <= shape.bytes && bytes <= shape.bytes - offset;
  }
  /// Returns whether a rank's signal exists.
  [[nodiscard]] bool has(rank_id peer, signal_id id) const noexcept {
    return peer.index() < of.size() && index(id) < shape.signals;
  }
};

/// A part of a window as memory of this process. The kernel commits its pages, which are small, at
/// the first touch, so that the windows of a thousand ranks cost what is used. Signals are plain
/// words, because one thread runs all ranks.
struct simulated_memory {
  std::byte* data = nullptr;
  std::uint64_t* signals = nullptr;
  std::uint32_t rank = 0;
  /// Of the first rank's part: what the first rank that knew all parts has made of them.
  mutable std::weak_ptr<const simulated_parts> all;

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

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

/// The parts of a window of `simulated`, which all ranks share. Messages under way keep them alive.
struct simulated_parts {
  /// The part of a rank.
  struct part {
    std::byte* data;
    std::uint64_t* signals;
    std::shared_ptr<const void> owner;  ///< keeps the memory
  };

  window_shape shape;
  std::vector<part> of;  ///< the parts, indexed by [rank]
  /// The number of each rank in the simulation, indexed by [rank]. May outlive the parts.
  std::shared_ptr<const std::vector<std::uint32_t>> numbers;

  /// Makes the parts of `memories`, which has one element per rank, none of them null.
  [[nodiscard]] static std::shared_ptr<const simulated_parts> over(
      window_shape shape, std::span<const std::shared_ptr<const simulated_memory>> memories);

  /// Returns whether `peer` exists and its part has `bytes` bytes at `offset`.
  [[nodiscard]] bool holds(rank_id peer, std::size_t offset, std::size_t bytes) const noexcept {
    return peer.index() < of.size() && offset <= shape.bytes && bytes <= shape.bytes - offset;
  }
  /// Returns whether `peer` and signal `id` exist.
  [[nodiscard]] bool has(rank_id peer, signal_id id) const noexcept {
    return peer.index() < of.size() && index(id) < shape.signals;
  }
};

/// A part of a window as memory of this process. The kernel commits its pages, which are small, at
/// the first touch, so that the windows of a thousand ranks only take the memory that is used.
/// Signals are plain words, because one thread runs all ranks.
struct simulated_memory {
  std::byte* data = nullptr;
  std::uint64_t* signals = nullptr;
  std::uint32_t rank = 0;
  /// The parts of the window, made by the first rank that knew all of them. Only the first rank's
  /// memory has it.
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

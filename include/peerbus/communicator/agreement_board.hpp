// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/placed.hpp>
#include <peerbus/core/signal.hpp>

namespace peerbus::detail {

/// The memory in which a rank of `view_agreement` writes for the others. `revised` counts the sets
/// that it has written, `begun` those that it has begun to write, so that a reader detects a torn
/// set. `gathered` is the turn of its latest contribution; contributions alternate in `given`.
/// After the board come the bits of the ranks that are gone, then of the gone ranks that may live,
/// as far as the writer knows. Zeroed memory is a board.
///
/// Threads: one writer at a time, any number of readers.
struct agreement_board {
  /// The most bytes of a contribution.
  static constexpr std::size_t most_bytes = 1024;

  struct contribution {
    std::atomic<std::uint64_t> what;  ///< a hash of the purpose and the number of bytes
    std::uint64_t size;
    std::array<std::byte, most_bytes> bytes;
  };

  signal_word revised;
  std::atomic<std::uint64_t> begun;
  std::atomic<std::uint64_t> view;
  signal_word gathered;
  std::array<contribution, 2> given;

  [[nodiscard]] static constexpr std::size_t words_of(std::size_t ranks) noexcept {
    return (ranks + 63) / 64;
  }
  /// Returns the size of a board with its bits, in bytes.
  [[nodiscard]] static constexpr std::size_t bytes_for(std::size_t ranks) noexcept {
    return sizeof(agreement_board) + 2 * words_of(ranks) * sizeof(std::atomic<std::uint64_t>);
  }
  [[nodiscard]] static agreement_board& at(std::byte* memory) noexcept {
    return *placed<agreement_board>(memory);
  }
  /// Returns the bits of the ranks that are gone, and of the gone ranks that may live: [2][words].
  [[nodiscard]] const std::atomic<std::uint64_t>* gone() const noexcept {
    return placed<std::atomic<std::uint64_t>>(reinterpret_cast<const std::byte*>(this + 1));
  }
  [[nodiscard]] std::atomic<std::uint64_t>* gone() noexcept {
    return placed<std::atomic<std::uint64_t>>(reinterpret_cast<std::byte*>(this + 1));
  }

  /// Writes `words`, the bits of `gone()`, and the view's `number`. `revision` must exceed all
  /// earlier ones.
  void write(std::uint64_t revision, std::uint64_t number,
             std::span<const std::uint64_t> words) noexcept {
    // order: relaxed, before the releases below, whose values a reader acquires before it reads
    // `begun` again.
    begun.store(revision, std::memory_order_relaxed);
    view.store(number, std::memory_order_release);
    for (std::size_t word = 0; word < words.size(); ++word)
      gone()[word].store(words[word], std::memory_order_release);
    revised.raise(revision);
  }

  /// Publishes `bytes` for `turn`. All ranks must have read the contribution of `turn - 2`.
  void give(std::uint64_t turn, std::uint64_t what, std::span<const std::byte> bytes) noexcept {
    contribution& place = given[turn % 2];
    std::copy(bytes.begin(), bytes.end(), place.bytes.begin());
    place.size = bytes.size();
    // order: relaxed; the signal publishes it.
    place.what.store(what, std::memory_order_relaxed);
    gathered.raise(turn);
  }
};

}  // namespace peerbus::detail

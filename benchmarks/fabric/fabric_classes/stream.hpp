// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/traffic_class.hpp>
#include <peerbus/window.hpp>

namespace fabric_classes {

/// A stream of chunks from rank 0 to rank 1, which says how many it has seen. Rank 0 sends as many
/// chunks ahead as there are slots. It moves only by calls of `step`.
template <peerbus::transport Transport>
class stream {
 public:
  /// Collective. `chunk` is the size of a put in bytes, a multiple of 8.
  stream(peerbus::communicator<Transport>& comm, peerbus::traffic_class traffic, std::size_t chunk,
         std::size_t slots)
      : comm_{&comm},
        chunk_{chunk},
        slots_{slots},
        window_{comm.make_window({.bytes = chunk * slots, .signals = 2, .traffic = traffic})} {}

  /// Sends or receives what can be without waiting. Each look at a signal advances the transport,
  /// as `progress` would.
  void step() {
    if (is_sender()) {
      const std::uint64_t seen = window_.value(seen_signal);
      if (is_on_ && sent_ < seen + slots_) send_next();
    } else {
      const std::uint64_t arrived = window_.value(sent_signal);
      for (; taken_ < arrived; ++taken_) is_right_ = is_right_ && has_number(taken_ + 1);
      if (taken_ != told_) {
        peerbus::check(window_.signal(sender, seen_signal, taken_), "the stream's answer");
        told_ = taken_;
      }
    }
  }
  /// Starts or stops to send.
  void turn(bool on) noexcept { is_on_ = on; }
  /// Returns the bytes of the chunks that rank 1 has seen, as rank 0 knows it.
  [[nodiscard]] std::size_t bytes_seen() const noexcept {
    return static_cast<std::size_t>(window_.value(seen_signal)) * chunk_;
  }
  /// Returns whether rank 0 knows that rank 1 has seen all; true on rank 1.
  [[nodiscard]] bool is_drained() const noexcept {
    return !is_sender() || window_.value(seen_signal) == sent_;
  }
  /// Returns whether each chunk so far had its number at its start and at its end.
  [[nodiscard]] bool is_right() const noexcept { return is_right_; }

 private:
  static constexpr peerbus::rank_id sender{0};
  static constexpr peerbus::rank_id receiver{1};
  static constexpr peerbus::signal_id sent_signal{0};
  static constexpr peerbus::signal_id seen_signal{1};

  [[nodiscard]] bool is_sender() const noexcept { return comm_->rank() == sender; }
  [[nodiscard]] std::span<std::byte> slot_of(std::uint64_t number) const noexcept {
    return window_.local().subspan((number % slots_) * chunk_, chunk_);
  }
  [[nodiscard]] static std::span<std::uint64_t> words(std::span<std::byte> bytes) noexcept {
    return {reinterpret_cast<std::uint64_t*>(bytes.data()), bytes.size() / sizeof(std::uint64_t)};
  }
  void send_next() {
    const auto slot = slot_of(++sent_);
    words(slot).front() = words(slot).back() = sent_;
    const std::size_t offset = (sent_ % slots_) * chunk_;
    peerbus::check(window_.put_signal(receiver, offset, slot, sent_signal, sent_), "a chunk");
  }
  [[nodiscard]] bool has_number(std::uint64_t number) const noexcept {
    const auto chunk = words(slot_of(number));
    return chunk.front() == number && chunk.back() == number;
  }

  peerbus::communicator<Transport>* comm_;
  std::size_t chunk_;
  std::size_t slots_;
  peerbus::window<Transport> window_;
  std::uint64_t sent_ = 0;   ///< chunks, by rank 0
  std::uint64_t taken_ = 0;  ///< chunks, by rank 1
  std::uint64_t told_ = 0;
  bool is_on_ = false;
  bool is_right_ = true;
};

}  // namespace fabric_classes

// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/align.hpp>

#include "peers/ucx_put/endpoint.hpp"
#include "support/clock.hpp"
#include "support/numbered_message.hpp"

namespace ucx_put {

/// How the receiver learns that a payload is there.
enum class arrival {
  by_flag,    ///< a second put, ordered behind the payload by a fence: what UCX promises
  by_payload  ///< the payload's own words change: no second put, but order within a put is luck
};

/// Messages from one rank to the other and back.
class ping_pong {
 public:
  /// Bytes that the memory of an endpoint needs.
  [[nodiscard]] static constexpr std::size_t memory_bytes(std::size_t payload) noexcept {
    return places * place_bytes(payload);
  }

  /// `number`: of the last message that went through the same memory; equal on both ranks.
  ping_pong(endpoint& here, std::size_t payload, bool first, std::uint64_t number)
      : here_{&here}, message_{payload}, first_{first}, number_{number} {}

  /// Collective. Returns: nanoseconds one way.
  double play(arrival how, std::size_t rounds) {
    place_ = (place_ + 1) % places;
    const auto start = bench::clock::now();
    for (std::size_t i = 0; i < rounds; ++i) {
      ++number_;
      if (first_) send(how);
      await(how);
      if (!first_) send(how);
    }
    const double spent = bench::nanoseconds(bench::clock::now() - start);
    right_ = right_ && message_.is_all_of(arrived(), number_);
    return spent / static_cast<double>(2 * rounds);
  }

  /// Of the last message.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

  /// Whether every message so far arrived as it was sent.
  [[nodiscard]] bool right() const noexcept { return right_; }

 private:
  /// How far a line travels depends on its address: see raw_ping_pong.
  static constexpr std::size_t places = 16;
  /// Apart from the flag: neighbouring lines are prefetched together.
  static constexpr std::size_t payload_at = 4 * peerbus::cache_line_bytes;

  static constexpr std::size_t place_bytes(std::size_t payload) noexcept {
    return payload_at + peerbus::align_up(payload, 4 * peerbus::cache_line_bytes);
  }
  [[nodiscard]] std::size_t place() const noexcept {
    return place_ * place_bytes(message_.bytes());
  }
  [[nodiscard]] const std::byte* arrived() const noexcept {
    return here_->local() + place() + payload_at;
  }

  void send(arrival how) {
    here_->put(std::as_bytes(message_.numbered(number_)), place() + payload_at);
    if (how == arrival::by_payload) return;
    here_->fence();
    here_->put(std::as_bytes(std::span{&number_, 1}), place());
  }

  void await(arrival how) {
    const std::size_t last = message_.bytes() - sizeof(std::uint64_t);
    const std::byte* const polled =
        how == arrival::by_flag ? here_->local() + place() : arrived() + last;
    for (std::size_t polls = 1; word(polled) != number_; ++polls)
      // Only setting up a connection needs it, over shared memory.
      if (polls % 1024 == 0) here_->progress();
    if (how == arrival::by_payload) {
      while (word(arrived()) != number_) {
      }
    }
    right_ = right_ && message_.is(arrived(), number_);
  }

  static std::uint64_t word(const std::byte* at) noexcept {
    auto& word = *reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(at));
    // order: acquire; pairs with the fence of the sender's UCX.
    return std::atomic_ref{word}.load(std::memory_order_acquire);
  }

  endpoint* here_;
  bench::numbered_message message_;
  bool first_;
  std::uint64_t number_;
  bool right_ = true;
  std::size_t place_ = 0;
};

}  // namespace ucx_put

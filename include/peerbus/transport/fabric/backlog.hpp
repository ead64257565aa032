// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::ofi {

/// The limit of messages that one peer may have been sent and not taken yet. Counts sent messages,
/// and says when a question (`notice_kind::ack_request`) must come next. Nothing follows a question
/// until the peer has answered the question `most_open - 1` before it.
///
/// Providers such as tcp keep each message that arrives before it is asked for, and continue to
/// receive while anything arrives. Without a limit, a rank that sends without pause could fill the
/// memory of its peer, and keep it from returning at its deadline.
class backlog {
 public:
  static constexpr std::uint64_t most_open = 4;
  static constexpr std::size_t most_bytes = std::size_t{32} << 20U;  ///< limit of a latency link
  ///@{
  /// The weight of a message besides its bytes. A notice weighs the buffer that tcp;ofi_rxm keeps
  /// for a message that comes early. For a write, the peer keeps nothing; its weight stands for the
  /// time that it takes.
  static constexpr std::size_t notice_weight = 16384;
  static constexpr std::size_t write_weight = 4096;
  ///@}

  /// Sets the limit, in bytes.
  void limit(std::size_t most) noexcept { most_ = most; }
  /// Counts a message of `weight` bytes.
  void add(std::size_t weight) noexcept { weight_ += weight; }
  /// Returns whether a question must come next.
  [[nodiscard]] bool needs_question() const noexcept { return weight_ >= most_ / most_open; }
  /// Notes that a question was sent.
  void note_asked() noexcept { weight_ = 0; }

 private:
  std::size_t most_ = most_bytes;
  std::size_t weight_ = 0;  ///< weight of the messages after the last question
};

}  // namespace peerbus::detail::ofi

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

/// A message of a batch, as one of its ends sees it. `send_to` and `recv_from` make it. It refers
/// to the caller's elements.
class transfer {
 public:
  /// Takes the message's elements: `input` if this rank `sends`, otherwise `output`, to be written.
  transfer(rank_id peer, const detail::element_type& element, std::span<const std::byte> input,
           std::span<std::byte> output, bool sends) noexcept
      : peer_{peer}, element_{element}, input_{input}, output_{output}, sends_{sends} {}

  /// Returns the rank at the other end.
  [[nodiscard]] rank_id peer() const noexcept { return peer_; }
  /// Returns whether this rank sends the message.
  [[nodiscard]] bool sends() const noexcept { return sends_; }
  /// Returns the type of the elements.
  [[nodiscard]] const detail::element_type& element() const noexcept { return element_; }
  /// Returns the bytes to send; empty if this rank receives.
  [[nodiscard]] std::span<const std::byte> input() const noexcept { return input_; }
  /// Returns the range for received bytes; empty if this rank sends.
  [[nodiscard]] std::span<std::byte> output() const noexcept { return output_; }
  /// Returns the bytes of the message at this end.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return sends_ ? input_ : std::span<const std::byte>{output_};
  }

 private:
  rank_id peer_;
  detail::element_type element_;
  std::span<const std::byte> input_;
  std::span<std::byte> output_;
  bool sends_;
};

/// Returns the message that sends `input` to `peer`.
template <spannable Input>
[[nodiscard]] transfer send_to(rank_id peer, const Input& input) noexcept {
  return {peer,
          detail::element_type::of<detail::element_of<Input>>(),
          std::as_bytes(std::span{input}),
          {},
          true};
}

/// Returns the message that receives from `peer` into `output`.
template <detail::output_range Output>
[[nodiscard]] transfer recv_from(rank_id peer, Output&& output) noexcept {
  return {peer,
          detail::element_type::of<detail::element_of<Output>>(),
          {},
          std::as_writable_bytes(std::span{output}),
          false};
}

}  // namespace peerbus::collective

// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <peerbus/bootstrap/bulletin.hpp>
#include <peerbus/bootstrap/detail/message_cursor.hpp>
#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// A piece of news that one rank sends to another: two numbers of 4 bytes and, if it is a message,
/// the bytes of the message.
struct news {
  static constexpr std::size_t head_bytes = 8;
  /// The bit that marks a message. It is in the second number, beside the length.
  static constexpr std::uint32_t is_message = std::uint32_t{1} << 31U;

  std::uint32_t subject = 0;  ///< a rank, or the channel of a message
  std::uint32_t state = 0;    ///< a `rank_state`, or `is_message` and the number of bytes
  std::span<const std::byte> message;

  [[nodiscard]] bool has_message() const noexcept { return (state & is_message) != 0; }

  [[nodiscard]] static std::array<std::byte, head_bytes> encode_head(std::uint32_t subject,
                                                                     std::uint32_t state) noexcept {
    std::array<std::byte, head_bytes> head;
    message_cursor<std::byte> cursor{head};
    cursor.put(subject);
    cursor.put(state);
    return head;
  }
};

/// Cuts the bytes that arrive from a rank into pieces of news. Does not trust the sender.
class news_stream {
 public:
  enum class status { more, piece, malformed };

  /// Allows messages from now on. Before this call, messages are malformed news.
  void allow_messages() {
    takes_messages_ = true;
    buffer_.resize(news::head_bytes + bulletin::most_bytes);
  }

  /// Returns the memory for the next bytes. Not empty after `next` has returned `more`.
  [[nodiscard]] std::span<std::byte> room() noexcept { return std::span{buffer_}.subspan(filled_); }
  /// Adds `count` bytes that were written to `room()`.
  void add(std::size_t count) noexcept { filled_ += count; }

  /// Moves the next piece into `piece`, whose message is valid until the next call.
  /// Returns: `more` if the piece is not complete yet.
  [[nodiscard]] status next(news& piece) noexcept {
    const std::span<const std::byte> rest = std::span{buffer_}.first(filled_).subspan(taken_);
    if (rest.size() < news::head_bytes) return need_more();
    message_cursor<const std::byte> cursor{rest};
    piece.subject = cursor.get();
    piece.state = cursor.get();
    piece.message = {};
    taken_ += news::head_bytes;
    if (!piece.has_message()) return status::piece;
    const std::size_t bytes = piece.state & ~news::is_message;
    if (!takes_messages_ || bytes > bulletin::most_bytes) return status::malformed;
    if (rest.size() - news::head_bytes < bytes) {
      taken_ -= news::head_bytes;
      return need_more();
    }
    piece.message = rest.subspan(news::head_bytes, bytes);
    taken_ += bytes;
    return status::piece;
  }

 private:
  /// Moves the remaining bytes to the front, so that there is room for the rest of the piece.
  status need_more() noexcept {
    if (taken_ != 0) std::memmove(buffer_.data(), buffer_.data() + taken_, filled_ - taken_);
    filled_ -= taken_;
    taken_ = 0;
    return status::more;
  }

  std::vector<std::byte> buffer_ = std::vector<std::byte>(16 * news::head_bytes);
  std::size_t filled_ = 0;
  std::size_t taken_ = 0;
  bool takes_messages_ = false;
};

}  // namespace peerbus::detail

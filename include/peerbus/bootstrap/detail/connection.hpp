// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// How far a connection is with its handshake, which shows that both ends belong to one group.
enum class handshake : std::uint8_t {
  more,          ///< waits for bytes of the other end
  done,          ///< both ends belong to one group
  closed,        ///< the other end hung up
  stranger,      ///< the other end speaks another protocol
  other_secret,  ///< the other end has another secret
  no_secret      ///< one end has a secret and the other has none
};

/// Carries the bytes of a connection in another form, such as TLS.
class cipher_layer {
 public:
  cipher_layer() = default;
  cipher_layer(const cipher_layer&) = delete;
  cipher_layer& operator=(const cipher_layer&) = delete;
  virtual ~cipher_layer() = default;

  /// Contract as the function of `connection` of the same name.
  virtual handshake shake_hands(int socket) noexcept = 0;
  virtual ssize_t receive(int socket, std::span<std::byte> target) noexcept = 0;
  virtual ssize_t send(int socket, std::span<const std::byte> bytes) noexcept = 0;
  [[nodiscard]] virtual bool is_mid_send() const noexcept = 0;
};

/// A stream between two ranks. No call blocks. Empty by default.
class connection {
 public:
  connection() = default;
  /// Implicit: a bare socket is a connection whose bytes travel as they are.
  connection(unique_fd socket) noexcept : socket_{std::move(socket)} {}
  connection(unique_fd socket, std::unique_ptr<cipher_layer> layer) noexcept
      : socket_{std::move(socket)}, layer_{std::move(layer)} {}

  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(socket_); }
  /// The socket, for poll(2) and its options.
  [[nodiscard]] int get() const noexcept { return socket_.get(); }

  /// Advances the handshake as far as the bytes that have arrived allow. Before it is `done`,
  /// nothing can be received or sent.
  [[nodiscard]] handshake shake_hands() noexcept {
    return layer_ ? layer_->shake_hands(get()) : handshake::done;
  }

  /// As recv(2) with MSG_DONTWAIT. errno is EBADMSG if the bytes were changed on their way.
  [[nodiscard]] ssize_t receive(std::span<std::byte> target) noexcept {
    if (layer_) return layer_->receive(get(), target);
    return ::recv(get(), target.data(), target.size(), MSG_DONTWAIT);
  }

  /// As send(2) with MSG_DONTWAIT and MSG_NOSIGNAL. If `is_mid_send` after it, the next call must
  /// bring the same bytes again, and may add others behind them.
  [[nodiscard]] ssize_t send(std::span<const std::byte> bytes) noexcept {
    if (layer_) return layer_->send(get(), bytes);
    return ::send(get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  /// Returns whether bytes that `send` did not report as sent are already bound to be.
  [[nodiscard]] bool is_mid_send() const noexcept { return layer_ && layer_->is_mid_send(); }

  /// Ends both directions. The socket stays open.
  void hang_up() noexcept { ::shutdown(get(), SHUT_RDWR); }

 private:
  unique_fd socket_;
  std::unique_ptr<cipher_layer> layer_;
};

}  // namespace peerbus::detail

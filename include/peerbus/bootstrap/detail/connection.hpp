// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The progress of a connection's handshake, which proves that both ends belong to one group.
enum class handshake : std::uint8_t {
  more,          ///< waits for bytes from the other end
  done,          ///< both ends belong to one group
  closed,        ///< the other end closed the connection
  stranger,      ///< the other end speaks another protocol
  other_secret,  ///< the other end has another secret
  no_secret,     ///< one end has a secret and the other has none
  other_job      ///< the other end is of another job
};

/// A layer that changes the form of a connection's bytes on the wire, such as TLS.
class cipher_layer {
 public:
  cipher_layer() = default;
  cipher_layer(const cipher_layer&) = delete;
  cipher_layer& operator=(const cipher_layer&) = delete;
  virtual ~cipher_layer() = default;

  ///@{
  /// Implements the function of the same name in `connection`, which states the contract.
  virtual handshake shake_hands(int socket) noexcept = 0;
  virtual ssize_t receive(int socket, std::span<std::byte> target) noexcept = 0;
  virtual ssize_t send(int socket, std::span<const std::byte> bytes) noexcept = 0;
  [[nodiscard]] virtual bool is_mid_send() const noexcept = 0;
  ///@}
};

/// A byte stream between two ranks. No call blocks. Empty by default.
class connection {
 public:
  connection() = default;
  /// Makes a connection without a cipher. Implicit, because a plain socket is a complete
  /// connection.
  explicit(false) connection(unique_fd socket) noexcept : socket_{std::move(socket)} {}
  connection(unique_fd socket, std::unique_ptr<cipher_layer> layer) noexcept
      : socket_{std::move(socket)}, layer_{std::move(layer)} {}

  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(socket_); }
  /// Returns the socket, for poll(2) and socket options.
  [[nodiscard]] int get() const noexcept { return socket_.get(); }

  /// Advances the handshake as far as the bytes that have arrived allow. Before it is `done`,
  /// nothing can be received or sent.
  [[nodiscard]] handshake shake_hands() noexcept {
    return layer_ ? layer_->shake_hands(get()) : handshake::done;
  }

  /// Receives as recv(2) with MSG_DONTWAIT. errno is EBADMSG if the bytes were changed on the way.
  [[nodiscard]] ssize_t receive(std::span<std::byte> target) noexcept {
    if (layer_) return layer_->receive(get(), target);
    return ::recv(get(), target.data(), target.size(), MSG_DONTWAIT);
  }

  /// Sends as send(2) with MSG_DONTWAIT and MSG_NOSIGNAL. If `is_mid_send` is true afterwards, the
  /// next call must pass the same bytes again, and may append more.
  [[nodiscard]] ssize_t send(std::span<const std::byte> bytes) noexcept {
    if (layer_) return layer_->send(get(), bytes);
    return ::send(get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  /// Returns whether the connection is committed to bytes that `send` has not reported as sent.
  [[nodiscard]] bool is_mid_send() const noexcept { return layer_ && layer_->is_mid_send(); }

  /// Returns whether the other end has closed the connection. Only for a connection on which no
  /// bytes are expected.
  [[nodiscard]] bool has_ended() const noexcept {
    std::byte first{};
    const ssize_t got = ::recv(get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  }

  /// Makes the socket send a reset when it is closed. The other end then sees that the connection
  /// failed, and not that this process has ended.
  void reset_at_close() noexcept {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    (void)::setsockopt(get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

  /// Shuts down both directions. The socket stays open.
  void hang_up() noexcept { ::shutdown(get(), SHUT_RDWR); }

 private:
  unique_fd socket_;
  std::unique_ptr<cipher_layer> layer_;
};

}  // namespace peerbus::detail

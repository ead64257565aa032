// SPDX-License-Identifier: MIT
#pragma once

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/tcp_tls_group.hpp>

namespace peerbus::detail {

/// A TLS layer on one connection between two ranks of a group.
///
/// No call blocks. If bytes or room are missing, `receive` and `send` return -1 with errno EAGAIN.
class tls_layer final : public cipher_layer {
 public:
  enum class end { accepting, calling };

  tls_layer(std::shared_ptr<const tls_group> group, end side) noexcept
      : group_{std::move(group)}, end_{side} {}

  handshake shake_hands(int socket) noexcept override {
    // TLS starts here and not earlier, so that a silent caller costs no memory.
    if (!tls_ && !start()) return handshake::closed;
    const int result = enter(socket, [](::SSL* tls) { return ::SSL_do_handshake(tls); });
    if (result == 1) {
      wire_.unread_budget = SIZE_MAX;
      return ::SSL_session_reused(tls_.get()) == 1 ? handshake::done : handshake::stranger;
    }
    switch (::SSL_get_error(tls_.get(), result)) {
      case SSL_ERROR_WANT_READ: return handshake::more;
      case SSL_ERROR_SSL: return explain_failure();
      default: return handshake::closed;
    }
  }

  ssize_t receive(int socket, std::span<std::byte> target) noexcept override {
    std::size_t got = 0;
    const int result = enter(
        socket, [&](::SSL* tls) { return ::SSL_read_ex(tls, target.data(), target.size(), &got); });
    return result == 1 ? static_cast<ssize_t>(got) : report(result);
  }

  ssize_t send(int socket, std::span<const std::byte> bytes) noexcept override {
    std::size_t put = 0;
    const int result = enter(
        socket, [&](::SSL* tls) { return ::SSL_write_ex(tls, bytes.data(), bytes.size(), &put); });
    is_mid_send_ = result != 1 && ::SSL_want(tls_.get()) == SSL_WRITING;
    if (result == 1) return static_cast<ssize_t>(put);
    if (const ssize_t failed = report(result); failed != 0) return failed;
    errno = EPIPE;  // 0 means a closed connection only in `receive`.
    return -1;
  }

  [[nodiscard]] bool is_mid_send() const noexcept override { return is_mid_send_; }

 private:
  [[nodiscard]] bool start() noexcept {
    tls_ = group_->make_end(wire_);
    if (!tls_) return false;
    SSL_set_app_data(tls_.get(), this);
    if (end_ == end::accepting) {
      ::SSL_set_psk_find_session_callback(tls_.get(), find_session);
      ::SSL_set_accept_state(tls_.get());
    } else {
      ::SSL_set_psk_use_session_callback(tls_.get(), use_session);
      // No certificate is trusted, so that an end that does not know the key fails.
      ::SSL_set_verify(tls_.get(), SSL_VERIFY_PEER, nullptr);
      ::SSL_set_connect_state(tls_.get());
    }
    return true;
  }

  /// Calls OpenSSL after clearing its error queue. Otherwise errors of other connections in the
  /// queue would be taken for errors of this connection.
  template <class Operation>
  int enter(int socket, Operation operation) noexcept {
    wire_.socket = socket;
    ::ERR_clear_error();
    return operation(tls_.get());
  }

  /// Returns -1 with errno set, or 0 if the other end has closed, as recv(2) does.
  [[nodiscard]] ssize_t report(int result) const noexcept {
    switch (::SSL_get_error(tls_.get(), result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
      case SSL_ERROR_ZERO_RETURN: return 0;
      case SSL_ERROR_SYSCALL: errno = wire_.number; return wire_.number == 0 ? 0 : -1;
      default: errno = EBADMSG; return -1;
    }
  }

  /// Returns the reason for which a handshake failed. Rank 0 checks the key first. A caller sees by
  /// the alert what is wrong with its key.
  [[nodiscard]] handshake explain_failure() const noexcept {
    const int reason = ERR_GET_REASON(::ERR_peek_error());
    if (is_other_job_) return handshake::other_job;
    if (end_ == end::accepting) return names_group_ ? handshake::other_secret : handshake::stranger;
    if (reason == SSL_R_TLSV1_ALERT_INTERNAL_ERROR) return handshake::other_job;
    if (reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER) return handshake::other_secret;
    if (reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE) return handshake::no_secret;
    return handshake::stranger;
  }

  static int find_session(::SSL* tls, const unsigned char* identity, std::size_t size,
                          ::SSL_SESSION** found) noexcept {
    auto& layer = *static_cast<tls_layer*>(SSL_get_app_data(tls));
    const std::string_view named{reinterpret_cast<const char*>(identity), size};
    if (named.starts_with(tls_group::identity_with_secret) ||
        named.starts_with(tls_group::identity_without_secret))
      layer.names_group_ = true;
    *found = named == layer.group_->identity() ? layer.group_->make_session(tls) : nullptr;
    layer.is_other_job_ = layer.group_->is_other_job(named);
    return layer.is_other_job_ ? 0 : 1;  // 0 sends another alert than an unknown secret does.
  }

  static int use_session(::SSL* tls, const ::EVP_MD* /*digest*/, const unsigned char** identity,
                         std::size_t* size, ::SSL_SESSION** used) noexcept {
    const auto& group = *static_cast<const tls_layer*>(SSL_get_app_data(tls))->group_;
    *identity = reinterpret_cast<const unsigned char*>(group.identity().data());
    *size = group.identity().size();
    *used = group.make_session(tls);
    return *used != nullptr ? 1 : 0;
  }

  std::shared_ptr<const tls_group> group_;
  end end_;
  tls_wire wire_;
  openssl_ptr<::SSL> tls_;
  bool names_group_ = false;
  bool is_other_job_ = false;
  bool is_mid_send_ = false;
};

}  // namespace peerbus::detail

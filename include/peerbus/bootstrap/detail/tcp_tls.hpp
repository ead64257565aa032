// SPDX-License-Identifier: MIT
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// Throws `error` system with OpenSSL's reason, unless `succeeded`.
inline void require_openssl(bool succeeded, const char* doing) {
  if (succeeded) return;
  std::array<char, 256> reason{};
  ::ERR_error_string_n(::ERR_get_error(), reason.data(), reason.size());
  throw error{errc::system, concat("OpenSSL failed at ", doing, ": ", reason.data())};
}

struct openssl_delete {
  void operator()(::BIO_METHOD* owned) const noexcept { ::BIO_meth_free(owned); }
  void operator()(::SSL_CTX* owned) const noexcept { ::SSL_CTX_free(owned); }
  void operator()(::SSL* owned) const noexcept { ::SSL_free(owned); }
};
template <class T>
using openssl_ptr = std::unique_ptr<T, openssl_delete>;

/// The functions and the state by which OpenSSL uses the socket of a connection.
struct tls_wire {
  /// The limit of the bytes that are read from the other end before the handshake is done. A read
  /// fails if OpenSSL asks for more than the rest.
  static constexpr std::size_t most_handshake_bytes = 16384;

  int socket = -1;
  /// The errno of the last call that failed, or 0 if the other end has closed.
  int number = 0;
  std::size_t unread_budget = most_handshake_bytes;

  static tls_wire& of(::BIO* bio) noexcept { return *static_cast<tls_wire*>(::BIO_get_data(bio)); }

  static int read(::BIO* bio, char* target, std::size_t size, std::size_t* done) noexcept {
    tls_wire& wire = of(bio);
    ::BIO_clear_retry_flags(bio);
    if (size > wire.unread_budget) {
      wire.number = EMSGSIZE;
      return 0;
    }
    const ssize_t got = ::recv(wire.socket, target, size, MSG_DONTWAIT);
    if (got <= 0) return failed(bio, got, BIO_FLAGS_READ);
    *done = static_cast<std::size_t>(got);
    if (wire.unread_budget != SIZE_MAX) wire.unread_budget -= *done;
    return 1;
  }

  static int write(::BIO* bio, const char* bytes, std::size_t size, std::size_t* done) noexcept {
    ::BIO_clear_retry_flags(bio);
    const ssize_t put = ::send(of(bio).socket, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put <= 0) return failed(bio, put, BIO_FLAGS_WRITE);
    *done = static_cast<std::size_t>(put);
    return 1;
  }

  static int failed(::BIO* bio, ssize_t result, int direction) noexcept {
    of(bio).number = result == 0 ? 0 : errno;
    if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
      ::BIO_set_flags(bio, direction | BIO_FLAGS_SHOULD_RETRY);
    return 0;
  }

  static long control(::BIO* /*bio*/, int command, long /*number*/, void* /*more*/) noexcept {
    return command == BIO_CTRL_FLUSH ? 1 : 0;  // Nothing is buffered.
  }
};

/// The key and the settings of a group's TLS connections. They use TLS 1.3 with one suite and one
/// key: no certificate, no ticket, no session that could be resumed, no early data. The key is an
/// external pre-shared key, and each connection has a Diffie-Hellman exchange as well, so that
/// recorded bytes stay secret if the group's secret becomes known later.
///
/// The key is SHA-256 of `key_label` followed by the group's secret, which may be empty.
class tls_group {
 public:
  static constexpr std::string_view key_label = "peerbus pre-shared key 1:";
  /// The identity that a caller sends first, in plain text.
  static constexpr std::string_view identity_with_secret = "peerbus group with a secret";
  static constexpr std::string_view identity_without_secret = "peerbus group without a secret";

  /// Derives the key from `secret`. Throws: `error` system.
  explicit tls_group(std::string_view secret)
      : identity_{secret.empty() ? identity_without_secret : identity_with_secret},
        key_{derive_key(secret)},
        wire_method_{::BIO_meth_new(BIO_TYPE_SOURCE_SINK, "peerbus socket")},
        context_{::SSL_CTX_new(::TLS_method())} {
    require_openssl(wire_method_ && context_, "making a TLS context");
    ::BIO_meth_set_read_ex(wire_method_.get(), tls_wire::read);
    ::BIO_meth_set_write_ex(wire_method_.get(), tls_wire::write);
    ::BIO_meth_set_ctrl(wire_method_.get(), tls_wire::control);
    ::SSL_CTX* const context = context_.get();
    require_openssl(::SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                        ::SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
                        ::SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
                        ::SSL_CTX_set_num_tickets(context, 0) == 1,
                    "choosing TLS 1.3 with TLS_AES_128_GCM_SHA256");
    ::SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    ::SSL_CTX_set_mode(context,
                       SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  }
  tls_group(const tls_group&) = delete;
  tls_group& operator=(const tls_group&) = delete;
  ~tls_group() { ::OPENSSL_cleanse(key_.data(), key_.size()); }

  [[nodiscard]] std::string_view identity() const noexcept { return identity_; }
  [[nodiscard]] bool has_secret() const noexcept { return identity_ == identity_with_secret; }

  /// Returns an end of a new connection, or an empty pointer if there is no memory.
  [[nodiscard]] openssl_ptr<::SSL> make_end(tls_wire& wire) const noexcept {
    openssl_ptr<::SSL> end{::SSL_new(context_.get())};
    ::BIO* const bio = ::BIO_new(wire_method_.get());
    if (!end || bio == nullptr) {
      ::BIO_free(bio);
      return {};
    }
    ::BIO_set_data(bio, &wire);
    ::BIO_set_init(bio, 1);
    ::SSL_set_bio(end.get(), bio, bio);
    return end;
  }

  /// Returns a session that holds the key, or null if there is no memory. The caller owns it. Each
  /// connection needs a new session, because OpenSSL refuses sessions that are some minutes old.
  [[nodiscard]] ::SSL_SESSION* make_session(::SSL* end) const noexcept {
    constexpr std::array<unsigned char, 2> suite{0x13, 0x01};  // TLS_AES_128_GCM_SHA256
    ::SSL_SESSION* const made = ::SSL_SESSION_new();
    const ::SSL_CIPHER* const cipher = ::SSL_CIPHER_find(end, suite.data());
    if (made != nullptr && cipher != nullptr && ::SSL_SESSION_set_cipher(made, cipher) == 1 &&
        ::SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) == 1 &&
        ::SSL_SESSION_set1_master_key(made, key_.data(), key_.size()) == 1)
      return made;
    ::SSL_SESSION_free(made);
    return nullptr;
  }

 private:
  [[nodiscard]] static std::array<unsigned char, 32> derive_key(std::string_view secret) {
    std::array<unsigned char, 32> key{};
    std::string text = concat(key_label, secret);
    const bool derived =
        ::EVP_Digest(text.data(), text.size(), key.data(), nullptr, ::EVP_sha256(), nullptr) == 1;
    ::OPENSSL_cleanse(text.data(), text.size());
    require_openssl(derived, "deriving the key of the group");
    return key;
  }

  std::string_view identity_;
  std::array<unsigned char, 32> key_;
  openssl_ptr<::BIO_METHOD> wire_method_;
  openssl_ptr<::SSL_CTX> context_;
};

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

  /// Calls OpenSSL after clearing its error queue. Errors of other connections in the queue would
  /// be taken for errors of this one.
  template <class Operation>
  int enter(int socket, Operation operation) noexcept {
    wire_.socket = socket;
    ::ERR_clear_error();
    return operation(tls_.get());
  }

  /// Returns -1 with errno set, or 0 if the other end has closed, as recv(2) and send(2) do.
  [[nodiscard]] ssize_t report(int result) const noexcept {
    switch (::SSL_get_error(tls_.get(), result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
      case SSL_ERROR_ZERO_RETURN: return 0;
      case SSL_ERROR_SYSCALL: errno = wire_.number; return wire_.number == 0 ? 0 : -1;
      default: errno = EBADMSG; return -1;
    }
  }

  /// Returns the reason why a handshake failed. Rank 0 checks the key first, and a caller sees by
  /// the alert what is wrong with its own.
  [[nodiscard]] handshake explain_failure() const noexcept {
    const int reason = ERR_GET_REASON(::ERR_peek_error());
    if (end_ == end::accepting) return names_group_ ? handshake::other_secret : handshake::stranger;
    if (reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER) return handshake::other_secret;
    if (reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE) return handshake::no_secret;
    return handshake::stranger;
  }

  static int find_session(::SSL* tls, const unsigned char* identity, std::size_t size,
                          ::SSL_SESSION** found) noexcept {
    auto& layer = *static_cast<tls_layer*>(SSL_get_app_data(tls));
    const std::string_view named{reinterpret_cast<const char*>(identity), size};
    if (named == tls_group::identity_with_secret || named == tls_group::identity_without_secret)
      layer.names_group_ = true;
    *found = named == layer.group_->identity() ? layer.group_->make_session(tls) : nullptr;
    return 1;
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
  bool is_mid_send_ = false;
};

}  // namespace peerbus::detail

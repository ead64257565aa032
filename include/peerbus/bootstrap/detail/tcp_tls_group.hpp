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
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// Throws `error` system with OpenSSL's reason, unless `succeeded`. `doing` names the activity in
/// errors.
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
  /// The largest number of bytes that are read from the other end before the handshake is done. A
  /// read fails if OpenSSL asks for more than the rest.
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
    if (result < 0 && (errno == EAGAIN || errno == EINTR))
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

  /// Derives the key from `secret`. The identity ends with `job`, if it is not empty.
  /// Throws: `error` system.
  explicit tls_group(std::string_view secret, std::string_view job = {})
      : identity_{concat(secret.empty() ? identity_without_secret : identity_with_secret,
                         job.empty() ? "" : " of job ", job)},
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
    require_suite_allowed();
    ::SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    ::SSL_CTX_set_mode(context,
                       SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  }
  tls_group(const tls_group&) = delete;
  tls_group& operator=(const tls_group&) = delete;
  ~tls_group() { ::OPENSSL_cleanse(key_.data(), key_.size()); }

  [[nodiscard]] std::string_view identity() const noexcept { return identity_; }
  [[nodiscard]] bool has_secret() const noexcept {
    return identity_.starts_with(identity_with_secret);
  }
  /// Returns whether `identity` differs from this group's identity only by its job.
  [[nodiscard]] bool is_other_job(std::string_view identity) const noexcept {
    return identity != identity_ &&
           identity.starts_with(has_secret() ? identity_with_secret : identity_without_secret);
  }

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
  /// Checks that this machine's OpenSSL may use the only suite. Otherwise a handshake would fail as
  /// if the other end spoke another protocol.
  /// Throws: `error` unsupported.
  void require_suite_allowed() const {
    const openssl_ptr<::SSL> end{::SSL_new(context_.get())};
    require_openssl(end != nullptr, "making a TLS connection");
    STACK_OF(SSL_CIPHER)* const allowed = ::SSL_get1_supported_ciphers(end.get());
    const bool has_suite = allowed != nullptr && sk_SSL_CIPHER_num(allowed) > 0;
    sk_SSL_CIPHER_free(allowed);
    if (!has_suite)
      throw error{
          errc::unsupported,
          concat("the OpenSSL policy of this machine, at security level ",
                 ::SSL_get_security_level(end.get()),
                 ", forbids TLS_AES_128_GCM_SHA256, by which ranks connect; expected "
                 "SECLEVEL 3 or less in openssl.cnf, or OPENSSL_CONF to name another file")};
  }

  [[nodiscard]] static std::array<unsigned char, 32> derive_key(std::string_view secret) {
    std::array<unsigned char, 32> key{};
    std::string text = concat(key_label, secret);
    const bool derived =
        ::EVP_Digest(text.data(), text.size(), key.data(), nullptr, ::EVP_sha256(), nullptr) == 1;
    ::OPENSSL_cleanse(text.data(), text.size());
    require_openssl(derived, "deriving the key of the group");
    return key;
  }

  std::string identity_;
  std::array<unsigned char, 32> key_;
  openssl_ptr<::BIO_METHOD> wire_method_;
  openssl_ptr<::SSL_CTX> context_;
};

}  // namespace peerbus::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/detail/sha256.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/version.hpp>

namespace peerbus::detail {

// How a rank and rank 0 prove to each other that they know the secret of their group:
//
//   rank 0 -> rank   challenge   who speaks, by which version, and 32 fresh random bytes
//   rank -> rank 0   hello       who comes, 32 fresh random bytes, and a proof over both messages
//   rank 0 -> rank   verdict     a proof over all of it, or that the proof was wrong
//
// A proof is HMAC-SHA-256 under the secret, with a label for its direction, so that neither an old
// one nor one of the other direction is worth anything. The rank proves first: a stranger who calls
// learns nothing that a secret could be guessed from at leisure. All messages have one size and
// layout for ever, whatever the version of the rest, so that builds that differ can say so.

using random_bytes = std::array<std::byte, 32>;

/// Throws: `error` system.
template <std::size_t Count>
void fill_random(std::array<std::byte, Count>& bytes) {
  static_assert(Count <= 256, "getrandom gives these whole, without an interruption");
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw system_failure("drawing random bytes", errno);
}

/// The builds of two ranks work together if these are equal.
struct tcp_version {
  static constexpr std::uint32_t expected_protocol = 1;

  std::uint32_t protocol = expected_protocol;
  std::uint32_t library =
      PEERBUS_VERSION_MAJOR << 20 | PEERBUS_VERSION_MINOR << 10 | PEERBUS_VERSION_PATCH;
  /// Written as the host keeps its numbers: what ranks exchange later is not converted.
  std::uint32_t byte_order = std::endian::native == std::endian::little ? 0x0403'0201 : 0x0102'0304;

  friend bool operator==(const tcp_version&, const tcp_version&) = default;

  friend void append_text(std::string& out, const tcp_version& of) {
    out += concat("peerbus ", of.library >> 20, ".", of.library >> 10 & 1023, ".",
                  of.library & 1023, ", protocol ", of.protocol, ", ",
                  of.byte_order == 0x0403'0201   ? "little endian"
                  : of.byte_order == 0x0102'0304 ? "big endian"
                                                 : "unknown byte order");
  }
};

/// Reads or writes numbers of a message from its start, the most significant byte first.
template <class Byte>
class message_cursor {
 public:
  constexpr explicit message_cursor(std::span<Byte> message) noexcept : rest_{message} {}

  constexpr void put(std::uint32_t value) noexcept {
    for (unsigned shift = 32; shift != 0; shift -= 8)
      rest_[(32 - shift) / 8] = static_cast<std::byte>(value >> (shift - 8));
    rest_ = rest_.subspan(4);
  }
  constexpr void put(std::span<const std::byte> bytes) noexcept {
    std::copy(bytes.begin(), bytes.end(), rest_.begin());
    rest_ = rest_.subspan(bytes.size());
  }
  [[nodiscard]] constexpr std::uint32_t get() noexcept {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i)
      value = value << 8 | std::to_integer<std::uint32_t>(rest_[i]);
    rest_ = rest_.subspan(4);
    return value;
  }
  constexpr void get(std::span<std::byte> bytes) noexcept {
    std::copy_n(rest_.begin(), bytes.size(), bytes.begin());
    rest_ = rest_.subspan(bytes.size());
  }

 private:
  std::span<Byte> rest_;
};

/// "peerbusT": what a TCP connection between ranks opens with, at both ends.
inline constexpr std::array<std::byte, 8> tcp_magic{std::byte{'p'}, std::byte{'e'}, std::byte{'e'},
                                                    std::byte{'r'}, std::byte{'b'}, std::byte{'u'},
                                                    std::byte{'s'}, std::byte{'T'}};

inline bool has_magic(std::span<const std::byte> message) noexcept {
  return std::equal(tcp_magic.begin(), tcp_magic.end(), message.begin());
}

struct challenge {
  using message = std::array<std::byte, 56>;

  tcp_version version;
  bool has_secret = false;
  random_bytes nonce{};

  [[nodiscard]] message encode() const noexcept {
    message out{};
    message_cursor<std::byte> to{out};
    to.put(tcp_magic);
    for (const auto part : {version.protocol, version.library, version.byte_order}) to.put(part);
    to.put(has_secret ? 1 : 0);
    to.put(nonce);
    return out;
  }
  /// `from` has the magic.
  [[nodiscard]] static challenge decode(const message& from) noexcept {
    challenge said;
    message_cursor<const std::byte> at{std::span{from}.subspan(tcp_magic.size())};
    for (auto* part : {&said.version.protocol, &said.version.library, &said.version.byte_order})
      *part = at.get();
    said.has_secret = at.get() != 0;
    at.get(said.nonce);
    return said;
  }
};

/// What one of a rank's two connections is for.
enum class tcp_channel : std::uint32_t {
  collectives = 0,  ///< frames
  watch = 1         ///< what became of ranks
};
inline constexpr std::size_t tcp_channels = 2;

struct tcp_hello {
  using message = std::array<std::byte, 112>;
  static constexpr std::size_t proof_at = 80;

  tcp_version version;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  tcp_channel channel = tcp_channel::collectives;
  /// The process: the same in the hellos of its connections.
  std::array<std::byte, 16> instance{};
  random_bytes nonce{};

  /// All but the proof, which is left zero.
  [[nodiscard]] message encode() const noexcept {
    message out{};
    message_cursor<std::byte> to{out};
    to.put(tcp_magic);
    for (const auto part : {version.protocol, version.library, version.byte_order, rank, size,
                            static_cast<std::uint32_t>(channel)})
      to.put(part);
    to.put(instance);
    to.put(nonce);
    return out;
  }
  /// `from` has the magic.
  [[nodiscard]] static tcp_hello decode(const message& from) noexcept {
    tcp_hello said;
    message_cursor<const std::byte> at{std::span{from}.subspan(tcp_magic.size())};
    for (auto* part : {&said.version.protocol, &said.version.library, &said.version.byte_order,
                       &said.rank, &said.size})
      *part = at.get();
    said.channel = static_cast<tcp_channel>(at.get());
    at.get(said.instance);
    at.get(said.nonce);
    return said;
  }
};

struct verdict {
  using message = std::array<std::byte, 44>;
  static constexpr std::size_t proof_at = 12;
  enum class kind : std::uint32_t { welcome = 0, other_secret = 1 };

  [[nodiscard]] static message encode(kind what, const sha256::digest& proof) noexcept {
    message out{};
    message_cursor<std::byte> to{out};
    to.put(tcp_magic);
    to.put(static_cast<std::uint32_t>(what));
    to.put(proof);
    return out;
  }
};

/// What every member of a group knows and nobody else. Empty where there is none.
class group_secret {
 public:
  explicit group_secret(std::string_view text) : text_{text} {}

  [[nodiscard]] bool given() const noexcept { return !text_.empty(); }

  /// A rank's proof, over the challenge and all of its hello before the proof.
  [[nodiscard]] sha256::digest proof_of_rank(const challenge::message& challenged,
                                             const tcp_hello::message& hello) const noexcept {
    return prove("peerbus tcp rank", challenged, std::span{hello}.first(tcp_hello::proof_at));
  }
  /// Rank 0's, over the rank's proof as well.
  [[nodiscard]] sha256::digest proof_of_rank_0(const challenge::message& challenged,
                                               const tcp_hello::message& hello) const noexcept {
    return prove("peerbus tcp rank 0", challenged, hello);
  }

 private:
  [[nodiscard]] sha256::digest prove(std::string_view label, std::span<const std::byte> first,
                                     std::span<const std::byte> second) const noexcept {
    return hmac_sha256(std::as_bytes(std::span{text_}),
                       {std::as_bytes(std::span{label}), first, second});
  }

  std::string text_;
};

/// The same text on both ends.
inline std::string describe_other_build(rank_id rank, const tcp_version& theirs,
                                        const tcp_version& of_rank_0) {
  return concat(rank, " is of another build (", theirs, ") than rank 0 (", of_rank_0,
                "): expected one build of peerbus on all ranks");
}

}  // namespace peerbus::detail

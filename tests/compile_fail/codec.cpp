// SPDX-License-Identifier: MIT
// Near misses of `token_codec`: a codec with one thing lost each.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/codec/archetype.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>

using peerbus::bf16;
using bytes = std::span<std::byte>;
using const_bytes = std::span<const std::byte>;

/// What the near misses are made from; nothing lost.
struct complete {
  using element = bf16;
  static constexpr std::string_view name = "complete";
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return 2 * hidden; }
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 0; }
  void encode(std::span<const bf16>, bytes, bytes) const noexcept {}
  void decode(const_bytes, const_bytes, std::span<float>) const noexcept {}
};
static_assert(peerbus::token_codec<complete> && !peerbus::verbatim_codec<complete>);

struct complete_verbatim : complete {
  static constexpr bool verbatim = true;
};
static_assert(peerbus::verbatim_codec<complete_verbatim>);

struct complete_of_groups : complete {
  static constexpr std::size_t hidden_multiple = 128;
};
static_assert(peerbus::token_codec<complete_of_groups>);

#if PEERBUS_CASE == 1
// case 1: expect "static.assert.*failed.*encode needs a mutable codec"
struct near_miss : complete {
  void encode(std::span<const bf16>, bytes, bytes) noexcept {}
};
static_assert(peerbus::token_codec<near_miss>, "encode needs a mutable codec");
#endif

#if PEERBUS_CASE == 2
// case 2: expect "static.assert.*failed.*encode may throw"
struct near_miss : complete {
  void encode(std::span<const bf16>, bytes, bytes) const {}
};
static_assert(peerbus::token_codec<near_miss>, "encode may throw");
#endif

#if PEERBUS_CASE == 3
// case 3: expect "static.assert.*failed.*decode may throw"
struct near_miss : complete {
  void decode(const_bytes, const_bytes, std::span<float>) const {}
};
static_assert(peerbus::token_codec<near_miss>, "decode may throw");
#endif

#if PEERBUS_CASE == 4
// case 4: expect "static.assert.*failed.*decode needs a mutable codec"
struct near_miss : complete {
  void decode(const_bytes, const_bytes, std::span<float>) noexcept {}
};
static_assert(peerbus::token_codec<near_miss>, "decode needs a mutable codec");
#endif

#if PEERBUS_CASE == 5
// case 5: expect "static.assert.*failed.*decode takes mutable rows"
struct near_miss : complete {
  void decode(bytes, const_bytes, std::span<float>) const noexcept {}
};
static_assert(peerbus::token_codec<near_miss>, "decode takes mutable rows");
#endif

#if PEERBUS_CASE == 6
// case 6: expect "static.assert.*failed.*encode takes mutable tokens"
struct near_miss : complete {
  void encode(std::span<bf16>, bytes, bytes) const noexcept {}
};
static_assert(peerbus::token_codec<near_miss>, "encode takes mutable tokens");
#endif

#if PEERBUS_CASE == 7
// case 7: expect "static.assert.*failed.*encode returns something"
struct near_miss : complete {
  int encode(std::span<const bf16>, bytes, bytes) const noexcept { return 0; }
};
static_assert(peerbus::token_codec<near_miss>, "encode returns something");
#endif

#if PEERBUS_CASE == 8
// case 8: expect "static.assert.*failed.*row_bytes is no constant"
struct near_miss : complete {
  static std::size_t row_bytes(std::size_t hidden) noexcept { return 2 * hidden; }
};
static_assert(peerbus::token_codec<near_miss>, "row_bytes is no constant");
#endif

#if PEERBUS_CASE == 9
// case 9: expect "static.assert.*failed.*row_bytes may throw"
struct near_miss : complete {
  static constexpr std::size_t row_bytes(std::size_t hidden) { return 2 * hidden; }
};
static_assert(peerbus::token_codec<near_miss>, "row_bytes may throw");
#endif

#if PEERBUS_CASE == 10
// case 10: expect "static.assert.*failed.*scale_bytes is signed"
struct near_miss : complete {
  static constexpr int scale_bytes(std::size_t) noexcept { return 0; }
};
static_assert(peerbus::token_codec<near_miss>, "scale_bytes is signed");
#endif

#if PEERBUS_CASE == 11
// case 11: expect "static.assert.*failed.*scale_bytes is no multiple of 4"
struct near_miss : complete {
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 2; }
};
static_assert(peerbus::token_codec<near_miss>, "scale_bytes is no multiple of 4");
#endif

#if PEERBUS_CASE == 12
// case 12: expect "static.assert.*failed.*row_bytes is no multiple of the element"
struct near_miss : complete {
  struct element {
    char three[3];
  };
};
static_assert(peerbus::token_codec<near_miss>, "row_bytes is no multiple of the element");
#endif

#if PEERBUS_CASE == 13
// case 13: expect "static.assert.*failed.*the name is no constant"
struct near_miss : complete {
  inline static std::string_view name = "x";
};
static_assert(peerbus::token_codec<near_miss>, "the name is no constant");
#endif

#if PEERBUS_CASE == 14
// case 14: expect "static.assert.*failed.*the name is empty"
struct near_miss : complete {
  static constexpr std::string_view name = "";
};
static_assert(peerbus::token_codec<near_miss>, "the name is empty");
#endif

#if PEERBUS_CASE == 15
// case 15: expect "static.assert.*failed.*the name is a pointer"
struct near_miss : complete {
  static constexpr const char* name = "x";
};
static_assert(peerbus::token_codec<near_miss>, "the name is a pointer");
#endif

#if PEERBUS_CASE == 16
// case 16: expect "static.assert.*failed.*the element is not trivially copyable"
struct near_miss : complete {
  using element = std::string;
};
static_assert(peerbus::token_codec<near_miss>, "the element is not trivially copyable");
#endif

#if PEERBUS_CASE == 17
// case 17: expect "static.assert.*failed.*the element is aligned to 32"
struct near_miss : complete {
  struct alignas(32) element {
    char bytes[32];
  };
};
static_assert(peerbus::token_codec<near_miss>, "the element is aligned to 32");
#endif

#if PEERBUS_CASE == 18
// case 18: expect "static.assert.*failed.*copying may throw"
struct near_miss : complete {
  near_miss() = default;
  near_miss(const near_miss&) {}
};
static_assert(peerbus::token_codec<near_miss>, "copying may throw");
#endif

#if PEERBUS_CASE == 19
// case 19: expect "static.assert.*failed.*verbatim is false"
struct near_miss : complete {
  static constexpr bool verbatim = false;
};
static_assert(peerbus::token_codec<near_miss>);
static_assert(peerbus::verbatim_codec<near_miss>, "verbatim is false");
#endif

#if PEERBUS_CASE == 20
// case 20: expect "static.assert.*failed.*verbatim with scales"
struct near_miss : complete {
  static constexpr bool verbatim = true;
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 4; }
};
static_assert(peerbus::token_codec<near_miss>);
static_assert(peerbus::verbatim_codec<near_miss>, "verbatim with scales");
#endif

#if PEERBUS_CASE == 21
// case 21: expect "static.assert.*failed.*verbatim with another element"
struct near_miss : complete {
  static constexpr bool verbatim = true;
  using element = short;
};
static_assert(peerbus::token_codec<near_miss>);
static_assert(peerbus::verbatim_codec<near_miss>, "verbatim with another element");
#endif

#if PEERBUS_CASE == 22
// case 22: expect "static.assert.*failed.*verbatim with longer rows"
struct near_miss : complete {
  static constexpr bool verbatim = true;
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return 2 * hidden + 16; }
};
static_assert(peerbus::token_codec<near_miss>);
static_assert(peerbus::verbatim_codec<near_miss>, "verbatim with longer rows");
#endif

#if PEERBUS_CASE == 23
// case 23: expect "static.assert.*failed.*hidden a multiple of 0"
struct near_miss : complete {
  static constexpr std::size_t hidden_multiple = 0;
};
static_assert(peerbus::token_codec<near_miss>, "hidden a multiple of 0");
#endif

#if PEERBUS_CASE == 24
// case 24: expect "static.assert.*failed.*hidden_multiple of another type"
struct near_miss : complete {
  static constexpr int hidden_multiple = 128;
};
static_assert(peerbus::token_codec<near_miss>, "hidden_multiple of another type");
#endif

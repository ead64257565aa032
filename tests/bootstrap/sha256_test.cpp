// SPDX-License-Identifier: MIT
//
// Against the published vectors: FIPS 180-4 (NIST's examples) and RFC 4231.
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/detail/sha256.hpp>

using peerbus::detail::equal_in_constant_time;
using peerbus::detail::hmac_sha256;
using peerbus::detail::sha256;

namespace {

std::string hex(const sha256::digest& of) {
  std::string text;
  for (const std::byte one : of)
    for (const unsigned half :
         {std::to_integer<unsigned>(one) >> 4, std::to_integer<unsigned>(one) & 15U})
      text += "0123456789abcdef"[half];
  return text;
}

std::span<const std::byte> bytes(std::string_view of) { return std::as_bytes(std::span{of}); }

std::string digest_of(std::string_view text) {
  sha256 hash;
  hash.update(bytes(text));
  return hex(hash.finish());
}

std::string mac_of(std::string_view key, std::string_view text) {
  return hex(hmac_sha256(bytes(key), {bytes(text)}));
}

// The compiler's own check: it is constant evaluation all the way.
constexpr std::byte first_of_empty = sha256{}.finish()[0];
static_assert(first_of_empty == std::byte{0xe3});

}  // namespace

TEST_CASE("sha-256: the published examples") {
  CHECK(digest_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(digest_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(digest_of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopq"
                  "klmnopqrlmnopqrsmnopqrstnopqrstu") ==
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(digest_of(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha-256: parts make the same digest as the whole, at every length") {
  std::string text;
  for (std::size_t length = 0; length < 200; ++length) {
    sha256 parts;
    const std::size_t cut = length * 7 % (length + 1);
    parts.update(bytes(std::string_view{text}.substr(0, cut)));
    parts.update(bytes(std::string_view{text}.substr(cut)));
    CHECK(hex(parts.finish()) == digest_of(text));
    text += static_cast<char>('a' + length % 26);
  }
}

TEST_CASE("hmac-sha-256: the cases of RFC 4231") {
  CHECK(mac_of(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(mac_of("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(mac_of(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (char one = 1; one <= 25; ++one) counting += one;
  CHECK(mac_of(counting, std::string(50, '\xcd')) ==
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(
      mac_of(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(mac_of(std::string(131, '\xaa'),
               "This is a test using a larger than block-size key and a larger than block-size "
               "data. The key needs to be hashed before being used by the HMAC algorithm.") ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
  CHECK(hex(hmac_sha256(bytes("Jefe"),
                        {bytes("what do ya "), bytes(""), bytes("want for nothing?")})) ==
        mac_of("Jefe", "what do ya want for nothing?"));
}

TEST_CASE("digests are compared to their end") {
  sha256::digest one{};
  for (std::size_t i = 0; i < one.size(); ++i) {
    auto other = one;
    CHECK(equal_in_constant_time(one, other));
    other[i] = std::byte{0x80};
    CHECK_FALSE(equal_in_constant_time(one, other));
  }
  CHECK_FALSE(equal_in_constant_time(one, std::span{one}.first(31)));
  CHECK(equal_in_constant_time({}, {}));
}

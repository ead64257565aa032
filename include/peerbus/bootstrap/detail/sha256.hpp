// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace peerbus::detail {

/// SHA-256 as in FIPS 180-4. Plain and portable: it digests a few hundred bytes per rank, once.
class sha256 {
 public:
  static constexpr std::size_t block_bytes = 64;
  using digest = std::array<std::byte, 32>;

  constexpr void update(std::span<const std::byte> bytes) noexcept {
    total_ += bytes.size();
    for (const std::byte one : bytes) {
      block_[filled_++] = one;
      if (filled_ == block_bytes) compress();
    }
  }

  /// Nothing may follow.
  [[nodiscard]] constexpr digest finish() noexcept {
    const std::uint64_t bits = total_ * 8;
    block_[filled_++] = std::byte{0x80};
    constexpr std::size_t length_at = block_bytes - sizeof bits;
    if (filled_ > length_at) {
      while (filled_ < block_bytes) block_[filled_++] = std::byte{0};
      compress();
    }
    while (filled_ < length_at) block_[filled_++] = std::byte{0};
    for (unsigned shift = 64; shift != 0; shift -= 8)
      block_[filled_++] = static_cast<std::byte>(bits >> (shift - 8));
    compress();
    digest out{};
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return out;
  }

 private:
  static constexpr std::array<std::uint32_t, 64> constants{
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
      0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
      0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
      0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
      0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
      0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
      0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
      0xc67178f2};

  constexpr void compress() noexcept {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t t = 0; t < 16; ++t)
      for (std::size_t i = 0; i < 4; ++i)
        w[t] = w[t] << 8 | std::to_integer<std::uint32_t>(block_[4 * t + i]);
    for (std::size_t t = 16; t < 64; ++t) {
      const auto s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
      const auto s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
      w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t t = 0; t < 64; ++t) {
      const auto s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const auto t1 = h + s1 + ((e & f) ^ (~e & g)) + constants[t] + w[t];
      const auto s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const auto t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> worked{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += worked[i];
    filled_ = 0;
  }

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, block_bytes> block_{};
  std::size_t filled_ = 0;
  std::uint64_t total_ = 0;
};

/// HMAC-SHA-256 as in RFC 2104, of `parts` one after another.
[[nodiscard]] constexpr sha256::digest hmac_sha256(
    std::span<const std::byte> key,
    std::initializer_list<std::span<const std::byte>> parts) noexcept {
  std::array<std::byte, sha256::block_bytes> padded{};
  if (key.size() > padded.size()) {
    sha256 shortened;
    shortened.update(key);
    const auto digest = shortened.finish();
    std::copy(digest.begin(), digest.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  sha256 inner;
  sha256 outer;
  for (std::byte& one : padded) one ^= std::byte{0x36};
  inner.update(padded);
  for (std::byte& one : padded) one ^= std::byte{0x36 ^ 0x5c};
  outer.update(padded);
  for (const auto part : parts) inner.update(part);
  outer.update(inner.finish());
  return outer.finish();
}

/// Takes the same time wherever the first difference is, which would tell a guesser how far right
/// a guess was.
[[nodiscard]] inline bool equal_in_constant_time(std::span<const std::byte> a,
                                                 std::span<const std::byte> b) noexcept {
  if (a.size() != b.size()) return false;
  // Volatile, so that no compiler may stop at the first difference.
  volatile unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference =
        static_cast<unsigned char>(difference | std::to_integer<unsigned char>(a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace peerbus::detail

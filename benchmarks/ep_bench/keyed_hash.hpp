// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ep_bench {

/// BLAKE2b (RFC 7693) of messages of four words, with a key of one word and a digest of one, all
/// little-endian: a random number for each message.
class keyed_hash {
 public:
  using message = std::array<std::uint64_t, 4>;

  explicit keyed_hash(std::uint64_t key) noexcept : after_key_{first} {
    // The parameters: depth 1, fanout 1, the bytes of the key, those of the digest.
    after_key_[0] ^= 0x0101'0808U;
    compress(after_key_, {key}, sizeof(block), false);
  }

  [[nodiscard]] std::uint64_t operator()(const message& words) const noexcept {
    block padded{};
    std::copy(words.begin(), words.end(), padded.begin());
    state result = after_key_;
    compress(result, padded, sizeof(block) + sizeof words, true);
    return result[0];
  }

 private:
  using state = std::array<std::uint64_t, 8>;
  using block = std::array<std::uint64_t, 16>;

  static constexpr state first{0x6a09'e667'f3bc'c908U, 0xbb67'ae85'84ca'a73bU,
                               0x3c6e'f372'fe94'f82bU, 0xa54f'f53a'5f1d'36f1U,
                               0x510e'527f'ade6'82d1U, 0x9b05'688c'2b3e'6c1fU,
                               0x1f83'd9ab'fb41'bd6bU, 0x5be0'cd19'137e'2179U};

  /// The word that each step of a round takes.
  static constexpr std::array<std::array<std::uint8_t, 16>, 10> order{
      {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
       {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
       {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
       {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
       {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
       {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
       {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
       {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
       {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
       {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}}};

  /// `bytes` are those of all blocks up to this one, less the padding.
  static void compress(state& into, const block& words, std::uint64_t bytes,
                       bool is_last) noexcept {
    block mixed{};
    std::copy(into.begin(), into.end(), mixed.begin());
    std::copy(first.begin(), first.end(), mixed.begin() + first.size());
    mixed[12] ^= bytes;
    if (is_last) mixed[14] = ~mixed[14];
    constexpr std::size_t rounds = 12;
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto& taken = order[round % order.size()];
      for (std::size_t i = 0; i < 8; ++i) {
        // The columns of a square of 4, then its diagonals.
        const std::size_t shift = i / 4;
        const auto at = [&](std::size_t row) -> std::uint64_t& {
          return mixed[row * 4 + (i + row * shift) % 4];
        };
        step(at(0), at(1), at(2), at(3), words[taken[2 * i]], words[taken[2 * i + 1]]);
      }
    }
    for (std::size_t i = 0; i < into.size(); ++i) into[i] ^= mixed[i] ^ mixed[i + into.size()];
  }

  static void step(std::uint64_t& a, std::uint64_t& b, std::uint64_t& c, std::uint64_t& d,
                   std::uint64_t x, std::uint64_t y) noexcept {
    a += b + x;
    d = std::rotr(d ^ a, 32);
    c += d;
    b = std::rotr(b ^ c, 24);
    a += b + y;
    d = std::rotr(d ^ a, 16);
    c += d;
    b = std::rotr(b ^ c, 63);
  }

  state after_key_;
};

}  // namespace ep_bench

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "support/oracle.hpp"

/// Where each layout puts its rows, what travels with them and what combine makes of them, written
/// down slowly and without the library's arithmetic.
namespace oracle {

/// The bytes of attachment `a` that travel with a token: different for all of them.
std::vector<std::byte> attachment_of(std::size_t rank, std::size_t token, std::size_t a,
                                     std::size_t size, std::uint64_t seed);

/// How an expert-major layout lays out the rows of a rank.
struct expert_major {
  std::size_t alignment = 1;       ///< an expert's rows start at a multiple of it
  std::size_t rows_of_expert = 0;  ///< every expert has as many, whatever came; 0: as many as came
};

/// A row at an expert: whose it is, and which of the token's slots names the expert.
struct placed {
  std::size_t rank;
  std::size_t token;
  std::size_t slot;
};

struct expert_block {
  std::size_t expert;
  std::size_t first_row;
  std::size_t padded;  ///< rows to the next block
  std::vector<placed> rows;
};

/// What rank `at` receives, expert-major.
std::vector<expert_block> blocks_of(const shape& of, const std::vector<input>& inputs,
                                    std::size_t at, const expert_major& rule);

/// A row, rank-major: whose it is, the number of this rank among the token's ranks, and its slots
/// as this rank sees them.
struct token_at_rank {
  placed from;
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

/// What rank `at` receives, rank-major.
std::vector<token_at_rank> tokens_at(const shape& of, const std::vector<input>& inputs,
                                     std::size_t at);

/// What combine must give, rank-major, to the rank that put `mine` in: each rank's weighted sum
/// over its experts in order of slots, rounded to bf16, and the sum of those, rounded again.
std::vector<peerbus::bf16> combined_by_rank(const shape& of, const input& mine,
                                            encode_function encode);
template <class Codec>
std::vector<peerbus::bf16> combined_by_rank(const shape& of, const input& mine) {
  return combined_by_rank(of, mine, codec_of<Codec>::encode);
}

}  // namespace oracle

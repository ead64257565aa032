// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "support/oracle.hpp"

/// What DeepEP's calls must give, computed slowly and plainly from what all ranks put in. Nothing
/// here uses the library's arithmetic.
namespace oracle::deep_ep {

/// How the slots of tokens are drawn.
enum class pattern {
  uniform,
  zipf,
  holes,     ///< as uniform, a third of the slots -1
  one_rank,  ///< all of a token's experts live at one rank, the last that has any
  hot,       ///< three tokens in four go to the same few experts
  nowhere
};
/// How many tokens ranks have.
enum class batch { full, uneven, one_rank, none };

/// The routing of one rank.
struct routed {
  std::size_t tokens = 0;
  std::vector<std::int64_t> ids;  ///< [tokens, top_k]
  std::vector<float> weights;     ///< likewise; NaN where nothing may read it
};

/// What all ranks put into one dispatch; every rank knows all of it.
struct problem {
  shape of;
  std::vector<routed> ranks;
  std::uint64_t seed = 0;
  std::vector<std::size_t> owner;  ///< of each expert
};

problem make_problem(const shape& of, pattern routes, batch sizes, std::size_t most,
                     std::uint64_t seed);

// --- counts --------------------------------------------------------------------------------------

/// Whether token `t` of `source` has an expert at `rank`.
bool goes_to(const problem& p, std::size_t source, std::size_t t, std::size_t rank);

std::size_t tokens_for(const problem& p, std::size_t source, std::size_t rank);

/// Slots of one rank's tokens that name expert `e`.
std::size_t slots_naming(const problem& p, std::size_t source, std::size_t e);

std::size_t first_expert(const problem& p, std::size_t rank);
std::size_t local_experts(const problem& p, std::size_t rank);

/// The tokens that `rank` receives in normal mode, in order.
std::vector<origin> arrivals(const problem& p, std::size_t rank);

/// The slot of a token as `rank` sees it: the number of its own expert, or -1.
std::int64_t local_id(const problem& p, const origin& from, std::size_t k, std::size_t rank);
float weight(const problem& p, const origin& from, std::size_t k);

// --- payload -------------------------------------------------------------------------------------

/// `count` bytes that belong to one token and nothing else; `part` tells payload from scales.
std::vector<std::byte> bytes_of_token(const problem& p, const origin& from, std::size_t count,
                                      std::uint64_t part);

/// A token of a lattice that bf16 holds exactly; the first channels hold its identity as signs,
/// which survive any quantisation.
std::vector<peerbus::bf16> token_values(const problem& p, const origin& from);

/// DeepEP's measure of how far two arrays are apart: 0 if they are the same.
template <class A, class B>
double calc_diff(const A& given, const B& expected) {
  double product = 0;
  double squares = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const double x = static_cast<double>(given[i]) + 1;
    const double y = static_cast<double>(expected[i]) + 1;
    product += x * y;
    squares += x * x + y * y;
  }
  return squares == 0 ? 0 : 1 - 2 * product / squares;
}

}  // namespace oracle::deep_ep

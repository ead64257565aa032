// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "support/oracle.hpp"

/// What DeepEP's low-latency calls must give, computed slowly and plainly from what all ranks put
/// in. Nothing here uses the library's arithmetic.
namespace oracle::low_latency {

using peerbus::bf16;

/// use_fp8, round_scale and use_ue8m0, as far as they go together.
enum class format { bf16, fp8, rounded, ue8m0 };

/// A token as it lies at its expert.
struct row {
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint32_t> scales;  ///< as 32-bit words
  std::vector<float> values;          ///< what it reads as
};

row encode(std::span<const bf16> token, format as);

/// What tokens are made of: the rank less 128 and, in the last 128 channels, the token's index;
/// normally distributed; or a lattice that has everything in it, also what is not a number.
enum class contents { constant, normal, lattice };
/// How many tokens each rank has: as many as it may; less, by rank; some ranks none; all none.
enum class sizes { full, fewer, some_none, all_none };
enum class ways { uniform, zipf, holes, one_rank, nowhere };

/// A geometry of calls and what they are given.
struct world {
  std::size_t ranks = 1;
  std::size_t experts = 1;
  std::size_t hidden = 128;
  std::size_t top_k = 1;
  std::size_t max_tokens = 1;
  format rows = format::bf16;
  contents tokens = contents::lattice;
  sizes counts = sizes::full;
  ways routes = ways::uniform;

  [[nodiscard]] shape plain() const { return {ranks, experts, hidden, top_k}; }
};

/// What all ranks put into one dispatch and its combine.
struct batch {
  world of;
  std::vector<input> inputs;
  /// The experts that tokens go to: as given, but for masks.
  std::vector<std::vector<std::int64_t>> routed;
  std::vector<std::vector<row>> rows;  ///< by rank, by token

  /// Rank `source` sends nothing to rank `to`.
  void mask(std::size_t source, std::size_t to) {
    const auto owner = owners(of.plain());
    for (std::int64_t& id : routed[source])
      if (id != -1 && owner[static_cast<std::size_t>(id)] == to) id = -1;
  }
};

batch make_batch(const world& of, std::uint64_t seed);

/// The tokens of rank `source` that expert `e` receives, in order.
std::vector<std::size_t> tokens_for(const batch& from, std::size_t source, std::size_t e);

/// The experts of a rank.
std::vector<std::size_t> experts_of(const world& of, std::size_t rank);

/// What combine must give to `rank`.
std::vector<bf16> combined(const batch& from, std::size_t rank);

/// DeepEP's own measure of how far apart two arrays are.
double calc_diff(std::span<const double> x, std::span<const double> y);

/// The largest difference of two elements, relative to the expected one or to 0.02, whichever is
/// more; infinite where either is not a number.
double element_diff(std::span<const double> given, std::span<const double> expected);

}  // namespace oracle::low_latency

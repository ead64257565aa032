// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <peerbus/transport/simulated/options.hpp>

/// Times of a dispatch and a combine, predicted by running the library's own code in a simulation.
namespace ep_predict {

/// A batch, the same size on all ranks.
struct load {
  std::size_t ranks = 8;
  std::size_t tokens = 128;
  std::size_t hidden = 7168;
  std::size_t top_k = 8;
  std::size_t experts = 256;
  std::string layout = "expert_slots";
  std::string codec = "fp8";
  /// Each rank visits its own group of so many ranks first, then one group after the other, each
  /// from the rank of its own place on. 1, or what does not divide the number of ranks: it visits
  /// ranks in the order of their numbers, from the next one on, as the library does.
  std::size_t visit_groups_of = 1;
  std::size_t rounds = 3;  ///< that are measured, after one that is not
  std::uint64_t seed = 1;  ///< of the routing, which is even
  bool carries = false;    ///< whether rows have bytes in any case; times are the same
};

/// The layouts and codecs that a `load` may name.
[[nodiscard]] std::vector<std::string> layouts();
[[nodiscard]] std::vector<std::string> codecs();

/// The times of the rank itself that are no transport's.
struct work {
  double dispatch_ns = 0;  ///< before each dispatch: starting a kernel and what it computes
  double combine_ns = 0;   ///< before each combine
  double sum_ns = 0;       ///< for each output that a combine adds up
};

/// Microseconds of one operation.
struct times {
  double median = 0;   ///< over ranks and rounds
  double slowest = 0;  ///< the median over rounds of the slowest rank
};

/// The outcome.
struct prediction {
  times dispatch;
  times combine;
  std::uint64_t bytes = 0;     ///< that a rank sends in a round, on average
  std::uint64_t messages = 0;  ///< that a rank sends in a round, on average
};

/// Draws `top_k` different experts for each token of a rank, all with equal probability:
/// [tokens, top_k].
[[nodiscard]] std::vector<std::int32_t> even_routing(const load& batch, std::size_t rank);

/// Runs the rounds. All ranks begin at once.
/// Throws: `peerbus::error`, or std::runtime_error if a rank failed, which it has printed.
[[nodiscard]] prediction predict(const load& batch, const work& own,
                                 const peerbus::simulated_platform& platform);

}  // namespace ep_predict

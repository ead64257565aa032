// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ep_bench/keyed_hash.hpp"

namespace ep_bench {

/// The seed of the only workload that CollectiveX has.
inline constexpr std::uint64_t collectivex_seed = 67;

/// The "uniform" routing of CollectiveX, the benchmark of expert parallelism of InferenceX, number
/// for number: experts in the order of slots, and weights. It is a function of the token's number
/// among those of all ranks, which have theirs one after the other.
///
/// The recipe: github.com/SemiAnalysisAI/InferenceX, experimental/CollectiveX, at commit
/// 843c6254ff69b567f772f6a5fd97675af3d04431: bench/routing.py, how many tokens a rank has in
/// bench/ep_backend.py, the seed in configs/sweep.json. H is BLAKE2b of 8 bytes, keyed by the seed.
/// - Slot s of token t has expert H(t, s, a, 0) mod experts, with the first of a = 0, 1, ... whose
///   expert no earlier slot has.
/// - Its weight is 1 + H(t, s, 0, 1) mod 65535 over the sum of these of the token, divided in
///   double precision and rounded to f32.
class collectivex_routing {
 public:
  /// Pre: `top_k` <= `experts`.
  collectivex_routing(std::uint64_t seed, std::size_t experts, std::size_t top_k) noexcept
      : hash_{seed}, experts_{experts}, top_k_{top_k} {}

  /// Appends the experts and the weights of `token` of all ranks.
  void append(std::uint64_t token, std::vector<std::int32_t>& experts,
              std::vector<float>& weights) const {
    const auto first = static_cast<std::ptrdiff_t>(experts.size());
    std::uint64_t sum = 0;
    for (std::size_t slot = 0; slot < top_k_; ++slot) {
      const auto draw = [&](std::uint64_t attempt) {
        return static_cast<std::int32_t>(hash_({token, slot, attempt, 0}) % experts_);
      };
      const auto is_taken = [&](std::int32_t expert) {
        return std::find(experts.begin() + first, experts.end(), expert) != experts.end();
      };
      std::int32_t expert = draw(0);
      for (std::uint64_t attempt = 1; is_taken(expert); ++attempt) expert = draw(attempt);
      experts.push_back(expert);
      sum += share(token, slot);
    }
    for (std::size_t slot = 0; slot < top_k_; ++slot)
      weights.push_back(
          static_cast<float>(static_cast<double>(share(token, slot)) / static_cast<double>(sum)));
  }

 private:
  [[nodiscard]] std::uint64_t share(std::uint64_t token, std::size_t slot) const noexcept {
    return 1 + hash_({token, slot, 0, 1}) % 65535;
  }

  keyed_hash hash_;
  std::size_t experts_;
  std::size_t top_k_;
};

}  // namespace ep_bench

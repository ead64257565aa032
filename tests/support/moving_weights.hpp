// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/balance/expert_weights.hpp>

#include "support/oracle.hpp"
#include "support/placed_experts.hpp"
#include "support/ranks.hpp"

/// Experts that move, and what their tensors must hold.
namespace placed_experts {

/// Another table of the same experts: places change their experts as long as no rank has one twice,
/// and an expert that is elsewhere may give its place to another one, or to none. Places of
/// ranks that are gone stay as they are. Each expert keeps at least so many copies.
inline table redrawn(const case_of_replicas& from, std::uint64_t seed,
                     std::size_t least_copies = 1) {
  oracle::random numbers{seed};
  table made = from.logical;
  const auto holds = [&](std::size_t rank, std::uint32_t expert) {
    for (std::size_t p = 0; p < made.size(); ++p)
      if (from.holder[p] == rank && made[p] == expert) return true;
    return false;
  };
  const auto lives = [&](std::size_t p) { return !from.gone[from.holder[p]]; };
  for (std::size_t i = 0; i < 4 * made.size(); ++i) {
    const std::size_t a = numbers.below(made.size());
    const std::size_t b = numbers.below(made.size());
    if (!lives(a) || !lives(b)) continue;
    if (numbers.below(3) == 0) {
      std::size_t copies = 0;
      for (std::size_t p = 0; p < made.size(); ++p)
        copies += lives(p) && made[p] == made[a] ? 1U : 0U;
      const auto expert = static_cast<std::uint32_t>(numbers.below(placed_experts::experts + 1));
      if (made[a] != moe::vacant && copies <= least_copies) continue;
      if (expert == placed_experts::experts)
        made[a] = moe::vacant;
      else if (!holds(from.holder[a], expert))
        made[a] = expert;
    } else if (from.holder[a] == from.holder[b] ||
               ((made[b] == moe::vacant || !holds(from.holder[a], made[b])) &&
                (made[a] == moe::vacant || !holds(from.holder[b], made[a])))) {
      std::swap(made[a], made[b]);
    }
  }
  return made;
}

/// Byte `i` of tensor `t` of an expert.
inline std::byte byte_of(std::size_t expert, std::size_t t, std::size_t i) {
  return static_cast<std::byte>((expert + 1) * 31 + t * 7 + i * 13 + i / 64);
}

inline const std::vector<std::size_t> sizes{1000, 64, 4096, 1};

inline void fill(moe::expert_weights& weights, std::size_t me) {
  const moe::expert_map& map = weights.experts();
  for (std::size_t e = 0; e < map.count(rank_id{me}); ++e) {
    const std::uint32_t expert = map.logical(map.first(rank_id{me}) + e);
    if (expert == moe::vacant) continue;
    for (std::size_t t = 0; t < sizes.size(); ++t)
      for (std::size_t i = 0; i < sizes[t]; ++i) weights.tensor(e, t)[i] = byte_of(expert, t, i);
  }
}

/// Checks that the tensors here are those of the experts that the map says.
inline void check_tensors(moe::expert_weights& weights, std::size_t me) {
  const moe::expert_map& map = weights.experts();
  for (std::size_t e = 0; e < map.count(rank_id{me}); ++e) {
    const std::uint32_t expert = map.logical(map.first(rank_id{me}) + e);
    if (expert == moe::vacant) continue;
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      const auto tensor = weights.tensor(e, t);
      test::expect_equal(tensor.size(), sizes[t], "bytes of a tensor");
      for (std::size_t i = 0; i < sizes[t]; ++i)
        if (tensor[i] != byte_of(expert, t, i))
          test::expect(false, peerbus::concat("byte ", i, " of tensor ", t, " of expert ", expert));
    }
  }
}

}  // namespace placed_experts

// SPDX-License-Identifier: MIT
#include "deep_ep/deep_ep_oracle.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "support/oracle.hpp"

namespace oracle::deep_ep {
namespace {

std::size_t tokens_of(batch kind, std::size_t rank, std::size_t most) {
  switch (kind) {
    case batch::full: return most;
    case batch::uneven: return rank % 3 == 1 ? 0 : most - std::min(most - 1, 3 * rank);
    case batch::one_rank: return rank == 0 ? most : 0;
    case batch::none: break;
  }
  return 0;
}

// `top_k` different experts out of `from`, in any order; -1 where there are not enough.
std::vector<std::int64_t> drawn(random& numbers, std::vector<std::int64_t> from,
                                std::size_t top_k) {
  for (std::size_t i = from.size(); i > 1; --i) std::swap(from[i - 1], from[numbers.below(i)]);
  from.resize(top_k, -1);
  return from;
}

std::vector<std::int64_t> slots_of(random& numbers, const shape& of, pattern kind) {
  std::vector<std::int64_t> all(of.experts);
  for (std::size_t e = 0; e < of.experts; ++e) all[e] = static_cast<std::int64_t>(e);
  switch (kind) {
    case pattern::nowhere: return std::vector<std::int64_t>(of.top_k, -1);
    case pattern::one_rank: {
      const auto owner = owners(of);
      std::erase_if(all,
                    [&](auto e) { return owner[static_cast<std::size_t>(e)] != owner.back(); });
      break;
    }
    case pattern::hot:
      if (numbers.below(4) != 0) all.resize(std::min(of.experts, of.top_k));
      break;
    case pattern::zipf:
      if (of.experts >= of.top_k) return choose(numbers, of, routes::zipf);
      break;
    case pattern::uniform:
    case pattern::holes: break;
  }
  auto made = drawn(numbers, all, of.top_k);
  if (kind == pattern::holes)
    for (auto& id : made)
      if (numbers.below(3) == 0) id = -1;
  return made;
}

}  // namespace

problem make_problem(const shape& of, pattern routes, batch sizes, std::size_t most,
                     std::uint64_t seed) {
  problem made{of, {}, seed, owners(of)};
  for (std::size_t r = 0; r < of.ranks; ++r) {
    random numbers{seed * 7919 + r};
    routed& one = made.ranks.emplace_back();
    one.tokens = tokens_of(sizes, r, most);
    for (std::size_t t = 0; t < one.tokens; ++t)
      for (const std::int64_t id : slots_of(numbers, of, routes)) {
        one.ids.push_back(id);
        one.weights.push_back(id == -1 ? std::numeric_limits<float>::quiet_NaN()
                                       : static_cast<float>(2 * numbers.unit() - 1));
      }
  }
  return made;
}

bool goes_to(const problem& p, std::size_t source, std::size_t t, std::size_t rank) {
  for (std::size_t k = 0; k < p.of.top_k; ++k)
    if (const auto id = p.ranks[source].ids[t * p.of.top_k + k]; id >= 0)
      if (p.owner[static_cast<std::size_t>(id)] == rank) return true;
  return false;
}

std::size_t tokens_for(const problem& p, std::size_t source, std::size_t rank) {
  std::size_t count = 0;
  for (std::size_t t = 0; t < p.ranks[source].tokens; ++t) count += goes_to(p, source, t, rank);
  return count;
}

std::size_t slots_naming(const problem& p, std::size_t source, std::size_t e) {
  const auto& ids = p.ranks[source].ids;
  return static_cast<std::size_t>(std::count(ids.begin(), ids.end(), static_cast<std::int64_t>(e)));
}

std::size_t first_expert(const problem& p, std::size_t rank) {
  return static_cast<std::size_t>(std::find(p.owner.begin(), p.owner.end(), rank) -
                                  p.owner.begin());
}

std::size_t local_experts(const problem& p, std::size_t rank) {
  return static_cast<std::size_t>(std::count(p.owner.begin(), p.owner.end(), rank));
}

std::vector<origin> arrivals(const problem& p, std::size_t rank) {
  std::vector<origin> rows;
  for (std::size_t source = 0; source < p.of.ranks; ++source)
    for (std::size_t t = 0; t < p.ranks[source].tokens; ++t)
      if (goes_to(p, source, t, rank)) rows.push_back({source, t});
  return rows;
}

std::int64_t local_id(const problem& p, const origin& from, std::size_t k, std::size_t rank) {
  const auto id = p.ranks[from.rank].ids[from.token * p.of.top_k + k];
  if (id == -1 || p.owner[static_cast<std::size_t>(id)] != rank) return -1;
  return id - static_cast<std::int64_t>(first_expert(p, rank));
}

float weight(const problem& p, const origin& from, std::size_t k) {
  return p.ranks[from.rank].weights[from.token * p.of.top_k + k];
}

std::vector<std::byte> bytes_of_token(const problem& p, const origin& from, std::size_t count,
                                      std::uint64_t part) {
  random numbers{((p.seed * 64 + from.rank) * 100'003 + from.token) * 8 + part};
  std::vector<std::byte> made(count);
  for (std::byte& one : made) one = static_cast<std::byte>(numbers.next() >> 13);
  return made;
}

std::vector<peerbus::bf16> token_values(const problem& p, const origin& from) {
  std::vector<peerbus::bf16> made;
  const std::size_t identity = from.rank * 4096 + from.token;
  for (std::size_t h = 0; h < p.of.hidden; ++h) {
    const std::size_t mixed = identity * 131 + h * 17 + p.seed * 19;
    float value = (static_cast<float>(mixed % 257) - 128.0F) / 64.0F;
    if (h < 16) value = (identity >> h) % 2 == 0 ? 2.0F : -2.0F;
    made.push_back(round(value));
  }
  return made;
}

}  // namespace oracle::deep_ep

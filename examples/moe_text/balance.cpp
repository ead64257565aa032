// SPDX-License-Identifier: MIT
#include "balance.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>

#include "options.hpp"

namespace moe_text {

namespace {

constexpr std::size_t all_rounds = 1024;  // Of a half, or as many of the latest as these.

}  // namespace

std::vector<std::uint32_t> dealt_places(const options& given) {
  const peerbus::moe::expert_placement dealt{given.experts, given.ranks};
  const std::size_t places = given.places_per_rank();
  std::vector<std::uint32_t> experts(given.ranks * places, peerbus::moe::vacant);
  for (const peerbus::rank_id rank : peerbus::all_ranks{given.ranks})
    for (std::size_t e = 0; e < dealt.count(rank); ++e)
      experts[rank.index() * places + e] = static_cast<std::uint32_t>(dealt.first(rank) + e);
  return experts;
}

balancer::balancer(const options& given, const peerbus::moe::expert_map& map)
    : shape_{.ranks = given.ranks, .slots_per_rank = given.places_per_rank()},
      now_{map, all_rounds} {}

std::vector<std::uint32_t> balancer::plan() const {
  const auto loads =
      peerbus::moe::sum_of_loads(now_.rows_of_experts(), now_.rows_of_experts().size());
  const peerbus::moe::slot_plan found = peerbus::moe::plan_spread(loads, shape_);
  const auto places = found.physical_to_logical();
  return {places.begin(), places.end()};
}

void balancer::begin_second_half(const peerbus::moe::expert_map& map) {
  before_ = now_.balancedness();
  const auto rows = now_.rows_of_experts();
  busiest_ = static_cast<std::size_t>(std::max_element(rows.begin(), rows.end()) - rows.begin());
  for (const std::uint32_t place : map.replicas(busiest_)) its_ranks_.push_back(map.holder(place));
  now_ = {map, all_rounds};
}

void balancer::print() const {
  if (!before_) return;
  std::printf(
      "\nhottest rank, times the mean: %.2f, and %.2f in the second half; expert #%zu at rank",
      1 / *before_, 1 / now_.balancedness(), busiest_);
  for (const std::uint32_t rank : its_ranks_) std::printf(" %zu", static_cast<std::size_t>(rank));
  std::puts("");
}

}  // namespace moe_text

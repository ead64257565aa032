// SPDX-License-Identifier: MIT
//
// What planners cost on one core, and how equal they make rank loads: 256 experts whose loads fall
// off by Zipf's law with exponent 1, on 64 ranks with one or two spare slots. Incremental plans
// begin with a plan for loads of before, each of which was half to twice what it is.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/moe/balance.hpp>

namespace micro::balance_bench {
namespace {

using peerbus::moe::slot_plan;

constexpr std::size_t experts = 256;
constexpr std::size_t ranks = 64;

/// Returns the loads of experts, in an order that is the same on all machines.
std::vector<double> zipf() {
  std::vector<double> loads(experts);
  for (std::size_t i = 0; i < experts; ++i) loads[i] = 1e6 / static_cast<double>(i + 1);
  std::mt19937 numbers{1};
  for (std::size_t i = experts; i > 1; --i) std::swap(loads[i - 1], loads[numbers() % i]);
  return loads;
}

/// Returns the loads some time later.
std::vector<double> drifted(std::vector<double> loads) {
  std::mt19937 numbers{2};
  for (double& load : loads) load *= std::exp2(static_cast<double>(numbers() % 2001) / 1000 - 1);
  return loads;
}

/// Notes the balancedness of a plan, and how many slots have an expert that an earlier slot of
/// their rank has.
void note(benchmark::State& state, std::span<const double> loads, const slot_plan& plan) {
  const auto map = plan.physical_to_logical();
  state.counters["balancedness"] =
      peerbus::moe::balancedness(peerbus::moe::rank_loads(loads, map, ranks));
  std::size_t duplicates = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    const auto slots = plan.slots_of(e);
    for (std::size_t i = 0; i < slots.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (slots[i] / (map.size() / ranks) == slots[j] / (map.size() / ranks)) {
          ++duplicates;
          break;
        }
  }
  state.counters["duplicates"] = static_cast<double>(duplicates);
}

/// Measures `plan(loads, slots per rank)`.
template <class Plan>
void measure(benchmark::State& state, std::size_t slots, Plan plan) {
  const std::vector<double> loads = zipf();
  for (auto _ : state) benchmark::DoNotOptimize(plan(loads, slots));
  note(state, loads, plan(loads, slots));
}

void eplb(benchmark::State& state, std::size_t slots) {
  measure(state, slots, [](std::span<const double> loads, std::size_t rank_slots) {
    return peerbus::moe::plan_eplb(loads, {.slots = ranks * rank_slots, .ranks = ranks});
  });
}

void spread(benchmark::State& state, std::size_t slots) {
  measure(state, slots, [](std::span<const double> loads, std::size_t rank_slots) {
    return peerbus::moe::plan_spread(loads, {.ranks = ranks, .slots_per_rank = rank_slots});
  });
}

void incremental(benchmark::State& state, std::size_t slots, std::size_t most_moves) {
  const std::vector<double> before = zipf();
  const slot_plan old =
      peerbus::moe::plan_spread(before, {.ranks = ranks, .slots_per_rank = slots});
  const std::vector<double> loads = drifted(before);
  const peerbus::moe::incremental_limits limits{.most_moves = most_moves};
  const auto plan = [&] {
    return peerbus::moe::plan_incremental(loads, old.physical_to_logical(), ranks, limits);
  };
  for (auto _ : state) benchmark::DoNotOptimize(plan());
  const auto found = plan();
  note(state, loads, found.plan);
  state.counters["before"] = found.before;
  state.counters["moves"] = static_cast<double>(found.moves);
}

[[maybe_unused]] const bool registered = [] {
  for (const std::size_t slots : {5U, 6U}) {
    const std::string name = "/slots:" + std::to_string(slots);
    benchmark::RegisterBenchmark(("balance/eplb" + name).c_str(), eplb, slots);
    benchmark::RegisterBenchmark(("balance/spread" + name).c_str(), spread, slots);
    for (const std::size_t moves : {0U, 8U, 16U, 320U})
      benchmark::RegisterBenchmark(
          ("balance/incremental" + name + "/moves:" + std::to_string(moves)).c_str(), incremental,
          slots, moves);
  }
  return true;
}();

}  // namespace
}  // namespace micro::balance_bench

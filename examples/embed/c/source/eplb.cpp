// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/error.hpp>
#include <peerbus/moe/balance.hpp>

#include "exchange_input.hpp"
#include "failure.hpp"

namespace peerbus::c_library {

namespace {

/// The plans of all layers.
struct layer_plans {
  std::vector<moe::slot_plan> plans;
  std::vector<std::size_t> moves;
};

/// Returns the layer of `old_map` in the integers of the planners. An entry that is no number of an
/// expert becomes one that none has, so that the planner names its slot.
std::vector<std::uint32_t> read_map(std::span<const std::int64_t> old_map) {
  std::vector<std::uint32_t> made(old_map.size());
  std::ranges::transform(old_map, made.begin(), [](std::int64_t expert) {
    return expert < 0 || expert > UINT32_MAX ? UINT32_MAX : static_cast<std::uint32_t>(expert);
  });
  return made;
}

void plan_layer(const peerbus_eplb_args& a, std::size_t layer, layer_plans& to) {
  const std::span loads{a.loads + layer * a.experts, a.experts};
  std::size_t moves = 0;
  if (a.planner == PEERBUS_EPLB_PUBLISHED) {
    to.plans.push_back(moe::plan_eplb(
        loads, {.slots = a.slots, .groups = a.groups, .nodes = a.nodes, .ranks = a.ranks}));
  } else if (a.planner == PEERBUS_EPLB_SPREAD) {
    if (a.ranks == 0 || a.slots % a.ranks != 0)
      throw error{errc::invalid_argument,
                  concat("spread: ", a.slots, " slots (num_replicas) on ", a.ranks,
                         " ranks (num_gpus), expected a multiple of the ranks")};
    to.plans.push_back(
        moe::plan_spread(loads, {.ranks = a.ranks, .slots_per_rank = a.slots / a.ranks}));
  } else {
    auto found =
        moe::plan_incremental(loads, read_map({a.old_map + layer * a.slots, a.slots}), a.ranks,
                              limits_of(a.least_gain, a.most_moves, a.fixed_slots));
    moves = found.moves;
    to.plans.push_back(std::move(found.plan));
  }
  to.moves.push_back(moves);
}

void write_layer(const moe::slot_plan& plan, std::size_t layer, const peerbus_eplb_tables& to) {
  const auto map = plan.physical_to_logical();
  std::ranges::copy(map, to.physical_to_logical + layer * map.size());
  for (std::size_t e = 0; e < plan.experts(); ++e) {
    const auto slots = plan.slots_of(e);
    if (to.expert_count != nullptr)
      to.expert_count[layer * plan.experts() + e] = static_cast<std::int64_t>(slots.size());
    if (to.replica_of_slot != nullptr)
      for (std::size_t i = 0; i < slots.size(); ++i)
        to.replica_of_slot[layer * map.size() + slots[i]] = static_cast<std::int64_t>(i);
  }
}

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_eplb_plan(const peerbus_eplb_args* args, const peerbus_eplb_tables* tables) {
  return guarded([&] {
    const peerbus_eplb_args a = read_struct(args, "args");
    const peerbus_eplb_tables to = read_struct(tables, "tables");
    require(a.planner >= PEERBUS_EPLB_PUBLISHED && a.planner <= PEERBUS_EPLB_INCREMENTAL,
            "args.planner is unknown, expected PEERBUS_EPLB_PUBLISHED, _SPREAD or _INCREMENTAL");
    require(a.loads != nullptr || a.layers == 0, "args.loads is NULL");
    require(a.old_map != nullptr || a.planner != PEERBUS_EPLB_INCREMENTAL || a.layers == 0,
            "args.old_map is NULL, and the planner is PEERBUS_EPLB_INCREMENTAL");
    require(to.physical_to_logical != nullptr, "tables.physical_to_logical is NULL");
    layer_plans made;
    made.plans.reserve(a.layers);
    made.moves.reserve(a.layers);
    for (std::size_t layer = 0; layer < a.layers; ++layer) plan_layer(a, layer, made);
    for (std::size_t layer = 0; layer < a.layers; ++layer) {
      write_layer(made.plans[layer], layer, to);
      if (to.moves != nullptr) to.moves[layer] = static_cast<std::int64_t>(made.moves[layer]);
    }
  });
}

// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/moe/engine/new_experts.hpp>
#include <peerbus/moe/engine/relay_engine.hpp>
#include <peerbus/moe/plan/expert_router.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE std::optional<unfinished_batch> relay_engine::unfinished() noexcept {
  std::optional<unfinished_batch> first;
  for (const batch_state& state : states_) {
    stage found = stage::idle;
    if (state.reached == progress::sent) found = stage::sent;
    // The near level, because a refused dispatch may have come through the far one.
    if (state.reached == progress::received) found = near_.parts->batches.at(state.number).reached;
    if (!is_over(found) && (!first || state.number < first->number)) first = {state.number, found};
  }
  return first;
}

PEERBUS_INLINE void relay_engine::install_experts(
    std::span<const std::uint32_t> physical_to_logical, const replica_choice& replicas,
    deadline until) {
  whole_->require_healthy("install_experts");
  exchange_config wanted = config_;
  wanted.physical_to_logical = physical_to_logical;
  wanted.replicas = replicas;
  std::optional<expert_router> far_router;
  std::vector<std::uint32_t> near_experts;
  const auto prepare = [&](const expert_router& next) {
    far_router.emplace(ranks_->far_router(far_.parts->config, next));
    near_experts = ranks_->near_experts(next.map());
  };
  ranks_->router.install(agree_on_experts(*whole_, ranks_->router, wanted, next_dispatch(),
                                          unfinished(), until, prepare));
  far_.parts->batches.router().install(std::move(*far_router));
  near_.parts->batches.router().map().rename(near_experts);
  for (const level* const each : {&far_, &near_}) each->parts->batches.forget_all();
}

}  // namespace peerbus::moe::detail

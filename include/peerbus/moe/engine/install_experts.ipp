// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include <peerbus/moe/engine/exchange_core.hpp>
#include <peerbus/moe/engine/new_experts.hpp>
#include <peerbus/moe/plan/expert_router.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE void exchange_core::install_experts(
    std::span<const std::uint32_t> physical_to_logical, const replica_choice& replicas,
    deadline until) {
  require_healthy("install_experts");
  exchange_config wanted = parts_.config;
  wanted.physical_to_logical = physical_to_logical;
  wanted.replicas = replicas;
  expert_router& router = parts_.batches.router();
  router.install(agree_on_experts(group(), router, wanted, next_dispatch(),
                                  parts_.batches.unfinished(), until,
                                  [](const expert_router&) noexcept {}));
  parts_.batches.forget_all();
}

}  // namespace peerbus::moe::detail

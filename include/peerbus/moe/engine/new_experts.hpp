// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>

#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/plan/expert_router.hpp>

namespace peerbus::moe::detail {

/// Agrees on other experts at the places of an exchange among `group`. Collective. `present` is the
/// router in use, and `wanted` the configuration with the new experts and the new choice of
/// replicas. `prepare(router)` may allocate memory for the change. Experts cannot move while a
/// batch is `unfinished`.
/// Returns: the new router, which every rank must install.
/// Cost: one agreement and a `rank_group::end_together`. Allocates.
/// Throws, on all ranks: as `exchange::install_experts`.
[[nodiscard]] expert_router agree_on_experts(
    rank_group& group, const expert_router& present, const exchange_config& wanted,
    std::uint64_t next_dispatch, const std::optional<unfinished_batch>& unfinished, deadline until,
    peerbus::detail::function_ref<void(const expert_router&)> prepare);

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/new_experts.ipp>  // IWYU pragma: keep
#endif

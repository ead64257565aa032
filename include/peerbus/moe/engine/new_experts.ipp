// SPDX-License-Identifier: MIT
#pragma once

#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/engine/expert_tables.hpp>
#include <peerbus/moe/engine/new_experts.hpp>
#include <peerbus/moe/plan/check_experts.hpp>

namespace peerbus::moe::detail {

/// Returns the error of experts for `wanted`, whose places are those of `present`, if any.
inline std::optional<error> objection_to_new(const exchange_config& wanted,
                                             const expert_map& present,
                                             const std::optional<unfinished_batch>& unfinished) {
  if (unfinished)
    return error{errc::invalid_argument,
                 peerbus::detail::concat("install_experts: dispatch ", unfinished->number, " is ",
                                         describe(unfinished->reached),
                                         ", expected all batches to be combined")};
  return objection_to_new_places("install_experts", wanted, present);
}

PEERBUS_INLINE expert_router agree_on_experts(
    rank_group& group, const expert_router& present, const exchange_config& wanted,
    std::uint64_t next_dispatch, const std::optional<unfinished_batch>& unfinished, deadline until,
    peerbus::detail::function_ref<void(const expert_router&)> prepare) {
  std::optional<expert_router> next;
  expert_tables tables;
  std::vector<declared> values;
  std::optional<error> objection;
  const auto make_ready = [&] {
    objection = objection_to_new(wanted, present.map(), unfinished);
    if (objection) return;
    next.emplace(present.next(wanted));
    prepare(*next);
    tables = expert_tables{wanted, group.size()};
    values.push_back({"the next dispatch", next_dispatch});
    tables.declare(values);
  };
  if (auto problem = objection_of("the experts of an exchange", make_ready)) objection = problem;
  agree_with_tables(group, "install_experts", values, tables, until, objection);
  group.end_together("install_experts", until);
  return std::move(*next);
}

}  // namespace peerbus::moe::detail

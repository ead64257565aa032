// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/engine/exchange_core.hpp>
#include <peerbus/moe/engine/expert_tables.hpp>
#include <peerbus/moe/plan/check_experts.hpp>
#include <peerbus/moe/plan/expert_router.hpp>

namespace peerbus::moe::detail {

/// Returns the error of experts for `config`, whose places are those of `present`, if any.
inline std::optional<error> objection_to_new(const exchange_config& config,
                                             const expert_map& present, const batch* under_way) {
  using peerbus::detail::concat;
  if (under_way != nullptr)
    return error{errc::invalid_argument,
                 concat("install_experts: dispatch ", under_way->number, " is ",
                        describe(under_way->reached), ", expected all batches to be combined")};
  return objection_to_new_places("install_experts", config, present);
}

PEERBUS_INLINE void exchange_core::install_experts(
    std::span<const std::uint32_t> physical_to_logical, const replica_choice& replicas,
    deadline until) {
  require_healthy("install_experts");
  exchange_config wanted = parts_.config;
  wanted.physical_to_logical = physical_to_logical;
  wanted.replicas = replicas;
  std::optional<expert_router> next;
  expert_tables tables;
  std::vector<declared> values;
  std::optional<error> objection;
  const auto prepare = [&] {
    objection = objection_to_new(wanted, parts_.batches.experts(), parts_.batches.under_way());
    if (objection) return;
    next.emplace(parts_.batches.router().next(wanted));
    tables = expert_tables{wanted, group().size()};
    values.push_back({"the next dispatch", next_dispatch()});
    tables.declare(values);
  };
  if (auto problem = objection_of("the experts of an exchange", prepare)) objection = problem;
  agree_with_tables(group(), "install_experts", values, tables, until, objection);
  group().end_together("install_experts", until);
  parts_.batches.router().install(std::move(*next));
  parts_.batches.forget_all();
}

}  // namespace peerbus::moe::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/plan/check_experts.hpp>

namespace peerbus::moe::detail {

/// The checks of the experts of a configuration. Each returns the first error of its part.
class expert_checks {
 public:
  expert_checks(std::string_view doing, const exchange_config& checked, std::size_t rank_count)
      : doing_{doing}, config_{checked}, rank_count_{rank_count} {}

  [[nodiscard]] std::optional<error> of_counts() const {
    const auto counts = config_.experts_of_rank;
    const std::size_t given = config_.physical_to_logical.size();
    if (!counts.empty() && counts.size() != rank_count_)
      return wrong({"experts_of_rank has ", counts.size(), " entries, expected none or ranks, ",
                    rank_count_});
    const std::size_t places = placement_of(config_, rank_count_).experts();
    if (places > max_experts)
      return wrong({"there are ", places, " physical experts, expected at most ", max_experts});
    if (given == 0 && places != config_.experts)
      return wrong({"experts_of_rank adds up to ", places, ", expected experts, ", config_.experts,
                    ", or physical_to_logical for more"});
    if (given != 0 && given != places)
      return wrong({"physical_to_logical has ", given, " entries, expected the sum of ",
                    "experts_of_rank, ", places});
    if (places < config_.experts)
      return wrong({"physical_to_logical has ", places, " entries, expected none or at least ",
                    "experts, ", config_.experts});
    return std::nullopt;
  }

  [[nodiscard]] std::optional<error> of_map() const {
    const auto given = config_.physical_to_logical;
    if (given.empty()) return std::nullopt;
    const expert_placement places = placement_of(config_, rank_count_);
    constexpr std::size_t nowhere = ~std::size_t{0};
    std::vector<std::size_t> latest(config_.experts, nowhere);
    std::size_t p = 0;
    for (const rank_id rank : all_ranks{rank_count_}) {
      const std::size_t first = p;
      for (; p < first + places.count(rank); ++p) {
        if (given[p] == vacant) continue;
        if (given[p] >= config_.experts)
          return wrong({"physical_to_logical[", p, "] is ", given[p], ", expected 0 to ",
                        config_.experts - 1, ", or vacant"});
        std::size_t& before = latest[given[p]];
        if (before != nowhere && before >= first)
          return wrong({"physical_to_logical[", p, "] is ", given[p], ", which physical expert ",
                        before, " of ", rank, " is too, expected an expert once at a rank"});
        before = p;
      }
    }
    const auto missing = std::find(latest.begin(), latest.end(), nowhere);
    if (missing != latest.end())
      return wrong({"physical_to_logical lacks expert ", missing - latest.begin(),
                    ", expected each expert at least once"});
    return std::nullopt;
  }

  [[nodiscard]] std::optional<error> of_choice() const {
    const replica_choice& choice = config_.replicas;
    const std::size_t places = placement_of(config_, rank_count_).experts();
    if (choice.policy > replica_policy::fixed)
      return wrong({"replicas.policy is ", static_cast<std::uint32_t>(choice.policy),
                    ", expected nearest, round_robin, weighted or fixed"});
    if (auto why = of_list("quotas", choice.quotas,
                           choice.policy == replica_policy::weighted ? places : 0))
      return why;
    if (auto why = of_list("chosen", choice.chosen,
                           choice.policy == replica_policy::fixed ? config_.experts : 0))
      return why;
    if (auto why =
            of_list("distances", choice.distances, choice.distances.empty() ? 0 : rank_count_))
      return why;
    if (choice.policy == replica_policy::fixed) return of_chosen(places);
    if (choice.policy == replica_policy::weighted) return of_quotas(places);
    return std::nullopt;
  }

 private:
  [[nodiscard]] error wrong(std::initializer_list<peerbus::detail::text_part> parts) const {
    return {errc::invalid_argument,
            peerbus::detail::concat(doing_, ": ", peerbus::detail::concat(parts))};
  }

  [[nodiscard]] std::optional<error> of_list(std::string_view name,
                                             std::span<const std::uint32_t> given,
                                             std::size_t expected) const {
    if (given.size() == expected) return std::nullopt;
    return wrong({"replicas.", name, " has ", given.size(), " entries with policy ",
                  describe(config_.replicas.policy), ", expected ", expected});
  }

  [[nodiscard]] std::uint32_t logical(std::size_t physical) const noexcept {
    return config_.physical_to_logical.empty() ? static_cast<std::uint32_t>(physical)
                                               : config_.physical_to_logical[physical];
  }

  [[nodiscard]] std::optional<error> of_chosen(std::size_t places) const {
    const auto chosen = config_.replicas.chosen;
    for (std::size_t e = 0; e < chosen.size(); ++e) {
      if (chosen[e] >= places)
        return wrong({"replicas.chosen[", e, "] is ", chosen[e], ", expected 0 to ", places - 1});
      if (const std::uint32_t held = logical(chosen[e]); held == vacant)
        return wrong({"replicas.chosen[", e, "] is ", chosen[e],
                      ", which is vacant, expected a replica of expert ", e});
      else if (held != e)
        return wrong({"replicas.chosen[", e, "] is ", chosen[e], ", which is expert ", held,
                      ", expected a replica of expert ", e});
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<error> of_quotas(std::size_t places) const {
    const auto quotas = config_.replicas.quotas;
    std::vector<bool> has_quota(config_.experts);
    for (std::size_t p = 0; p < places; ++p) {
      if (quotas[p] == 0) continue;
      if (logical(p) == vacant)
        return wrong({"replicas.quotas[", p, "] is ", quotas[p],
                      ", but that physical expert is vacant, expected 0"});
      has_quota[logical(p)] = true;
    }
    const auto without = std::find(has_quota.begin(), has_quota.end(), false);
    if (without != has_quota.end())
      return wrong({"replicas.quotas are 0 for all replicas of expert ",
                    without - has_quota.begin(), ", expected one that is not"});
    return std::nullopt;
  }

  std::string_view doing_;
  const exchange_config& config_;
  std::size_t rank_count_;
};

PEERBUS_INLINE std::optional<error> objection_to_experts(std::string_view doing,
                                                         const exchange_config& config,
                                                         std::size_t ranks) {
  const expert_checks checks{doing, config, ranks};
  if (auto why = checks.of_counts()) return why;
  if (auto why = checks.of_map()) return why;
  return checks.of_choice();
}

PEERBUS_INLINE std::optional<error> objection_to_new_places(std::string_view doing,
                                                            const exchange_config& config,
                                                            const expert_map& present) {
  if (const std::size_t given = config.physical_to_logical.size();
      given != present.physical_experts())
    return error{errc::invalid_argument,
                 peerbus::detail::concat(doing, ": physical_to_logical has ", given,
                                         " entries, expected physical experts, ",
                                         present.physical_experts())};
  return objection_to_experts(doing, config, present.ranks());
}

}  // namespace peerbus::moe::detail

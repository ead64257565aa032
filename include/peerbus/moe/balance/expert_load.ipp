// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <string>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/balance/expert_load.hpp>

namespace peerbus::moe {

PEERBUS_INLINE expert_load::expert_load(const expert_map& map, std::size_t window)
    : window_{window},
      expert_of_(map.physical_experts()),
      holder_of_(map.physical_experts()),
      counts_(map.ranks()),
      physical_{map.physical_experts(), window},
      logical_{map.experts(), window} {
  if (window == 0)
    throw error{errc::invalid_argument, "expert_load: window is 0 steps, expected at least 1"};
  move_to(map);
}

PEERBUS_INLINE void expert_load::require_size(const expert_map& map) const {
  if (map.physical_experts() != expert_of_.size() || map.ranks() != counts_.size() ||
      map.experts() != logical_.sums.size())
    throw error{errc::invalid_argument,
                peerbus::detail::concat("expert_load: a map of ", map.experts(), " experts, ",
                                        map.physical_experts(), " physical ones, on ", map.ranks(),
                                        " ranks, expected ", logical_.sums.size(), ", ",
                                        expert_of_.size(), " and ", counts_.size())};
}

PEERBUS_INLINE void expert_load::require_counted_with(const expert_map& map) const {
  using peerbus::detail::concat;
  const auto wrong = [](const std::string& difference) {
    return error{errc::invalid_argument,
                 concat("expert_load: the rows were counted with another map: ", difference,
                        "; expected move_to the map in use, and rows of it")};
  };
  require_size(map);
  for (std::size_t p = 0; p < expert_of_.size(); ++p) {
    if (map.holder(p) != holder_of_[p])
      throw wrong(
          concat("place ", p, " was at rank ", holder_of_[p], ", and is at rank ", map.holder(p)));
    if (map.logical(p) != expert_of_[p])
      throw wrong(concat("place ", p, " had ", detail::describe_expert(expert_of_[p]), ", and has ",
                         detail::describe_expert(map.logical(p))));
  }
  for (std::size_t r = 0; r < counts_.size(); ++r)
    if (counts(map, rank_id{r}) != counts_[r])
      throw wrong(concat("rank ", r, counts_[r] ? " is gone" : " was gone"));
}

PEERBUS_INLINE void expert_load::move_to(const expert_map& map) {
  require_size(map);
  for (std::size_t p = 0; p < expert_of_.size(); ++p) {
    expert_of_[p] = map.logical(p);
    holder_of_[p] = map.holder(p);
  }
  for (std::size_t r = 0; r < counts_.size(); ++r) counts_[r] = counts(map, rank_id{r});
  std::ranges::fill(physical_.steps, 0U);
  std::ranges::fill(physical_.sums, std::uint64_t{0});
}

template <class Add>
void expert_load::series::replace(std::size_t index, Add&& add_rows) {
  const std::span<std::uint32_t> step = std::span{steps}.subspan(index * sums.size(), sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] -= step[i];
    step[i] = 0;
  }
  add_rows(step);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += step[i];
}

PEERBUS_INLINE void expert_load::add(std::span<const std::uint32_t> rows) {
  if (rows.size() != expert_of_.size())
    throw error{errc::invalid_argument,
                peerbus::detail::concat("expert_load: rows of ", rows.size(),
                                        " physical experts, expected ", expert_of_.size())};
  physical_.replace(next_,
                    [&](std::span<std::uint32_t> step) { std::ranges::copy(rows, step.begin()); });
  logical_.replace(next_, [&](std::span<std::uint32_t> step) {
    for (std::size_t p = 0; p < rows.size(); ++p)
      if (expert_of_[p] != vacant) step[expert_of_[p]] += rows[p];
  });
  next_ = next_ + 1 == window_ ? 0 : next_ + 1;
  steps_ = std::min(steps_ + 1, window_);
}

PEERBUS_INLINE std::vector<std::uint64_t> expert_load::rows_of_ranks() const {
  std::vector<std::uint64_t> rows(counts_.size());
  for (std::size_t p = 0; p < holder_of_.size(); ++p) rows[holder_of_[p]] += physical_.sums[p];
  return rows;
}

PEERBUS_INLINE double expert_load::balancedness() const {
  const std::vector<std::uint64_t> all = rows_of_ranks();
  std::vector<std::uint64_t> rows;
  rows.reserve(all.size());
  for (std::size_t r = 0; r < all.size(); ++r)
    if (counts_[r]) rows.push_back(all[r]);
  return moe::balancedness(rows);
}

}  // namespace peerbus::moe

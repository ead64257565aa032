// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

namespace detail {

/// Returns the error in a list of members that can be seen without the lists of the other ranks.
PEERBUS_INLINE std::optional<error> objection_to_list(const std::vector<rank_id>& ranks,
                                                      rank_id caller, std::size_t size) {
  const auto bad = [&](const auto&... reason) {
    return error{errc::invalid_argument, concat("subgroup of ", describe_ranks(ranks),
                                                " was asked for by ", caller, ", ", reason...)};
  };
  if (ranks.empty())
    return error{errc::invalid_argument, concat("a subgroup of no ranks was asked for by ", caller,
                                                ", expected at least the caller")};
  std::vector<bool> listed(size);
  for (const rank_id member : ranks) {
    if (member.index() >= size) return bad("expected ranks below ", size);
    if (listed[member.index()]) return bad("which names ", member, " twice, expected each once");
    listed[member.index()] = true;
  }
  if (!listed[caller.index()]) return bad("expected the caller among them");
  return std::nullopt;
}

/// Checks that all members of each rank's list have the same list.
/// Throws: `agreed_error` mismatch.
PEERBUS_INLINE void require_equal_lists(const std::vector<std::vector<rank_id>>& lists) {
  const auto require_equal = [&](rank_id rank, rank_id other) {
    if (lists[rank.index()] == lists[other.index()]) return;
    throw agreed_error{
        errc::mismatch,
        concat("subgroup: ", rank, " asked for ", describe_ranks(lists[rank.index()]), ", but ",
               other, " for ", describe_ranks(lists[other.index()]),
               "; expected the same list, in the same order, on all its members")};
  };
  // Each list is compared with that of its first member, and the list of a first member with those
  // of all its members.
  for (const rank_id rank : all_ranks{lists.size()}) {
    const auto& list = lists[rank.index()];
    if (list.empty()) continue;  // The rank is gone.
    require_equal(list.front(), rank);
    if (list.front() == rank)
      for (const rank_id member : list) require_equal(rank, member);
  }
}

}  // namespace detail

PEERBUS_INLINE void bootstrap::go_on(
    std::vector<rank_id> ranks, std::function<std::unique_ptr<bootstrap>(deadline until)> meet) {
  if (!can_go_on())
    throw error{errc::unsupported, "this bootstrap does not go on without the ranks that are gone"};
  if (ranks == rest_ && of_the_rest_) return;
  rest_ = std::move(ranks);
  meet_rest_ = std::move(meet);
  of_the_rest_.reset();
}

PEERBUS_INLINE std::unique_ptr<bootstrap> bootstrap::meet_again(
    const std::vector<rank_id>& /*ranks*/, rank_id /*member*/, const sharing& /*share*/,
    deadline /*until*/) {
  return nullptr;
}

PEERBUS_INLINE std::shared_ptr<detail::admission_place> bootstrap::make_admission_place(
    const launch_settings& /*place*/) const {
  return nullptr;
}

PEERBUS_INLINE std::unique_ptr<bootstrap> bootstrap::make_rest(
    const std::vector<rank_id>& /*ranks*/, rank_id /*member*/,
    const std::function<std::unique_ptr<bootstrap>(deadline until)>& meet, deadline until) {
  return meet(until);
}

PEERBUS_INLINE bootstrap& bootstrap::of_the_rest(deadline until) {
  if (!of_the_rest_) {
    const auto place = std::lower_bound(rest_.begin(), rest_.end(), rank()) - rest_.begin();
    of_the_rest_ = make_rest(rest_, rank_id{static_cast<std::size_t>(place)}, meet_rest_, until);
  }
  return *of_the_rest_;
}

PEERBUS_INLINE void bootstrap::go_on_with(std::vector<rank_id> ranks,
                                          std::unique_ptr<bootstrap> met) noexcept {
  rest_ = std::move(ranks);
  of_the_rest_ = std::move(met);
}

PEERBUS_INLINE std::unique_ptr<bootstrap> bootstrap::subgroup_of_the_rest(
    const std::vector<rank_id>& ranks, deadline until) {
  std::vector<rank_id> places;
  places.reserve(ranks.size());
  for (const rank_id member : ranks)
    places.emplace_back(
        static_cast<std::size_t>(std::find(rest_.begin(), rest_.end(), member) - rest_.begin()));
  return of_the_rest(until).subgroup(places, until);
}

PEERBUS_INLINE std::vector<bootstrap::contribution> bootstrap::allgather_of_the_rest(
    contribution own_part, deadline until, std::string_view doing) {
  bootstrap& group = of_the_rest(until);
  std::vector<contribution> all(size());
  try {
    auto given = group.allgather(std::move(own_part), until, doing);
    for (std::size_t i = 0; i < rest_.size(); ++i) all[rest_[i].index()] = std::move(given[i]);
  } catch (const error& problem) {
    throw error{problem.code(), detail::concat(detail::describe_ranks(rest_),
                                               ", counted from 0: ", problem.text())};
  }
  return all;
}

PEERBUS_INLINE void bootstrap::set_neighbours(std::vector<rank_id> near_ranks,
                                              std::size_t ranks_here,
                                              std::size_t cores_here) noexcept {
  near_ranks_ = std::move(near_ranks);
  ranks_here_ = ranks_here;
  cores_here_ = std::max<std::size_t>(cores_here, 1);
}

PEERBUS_INLINE void bootstrap::set_one_host(std::size_t cores_here) {
  std::vector<rank_id> peers;
  for (const rank_id peer : all_ranks{size()}) peers.push_back(peer);
  set_neighbours(std::move(peers), size(), cores_here);
}

PEERBUS_INLINE std::unique_ptr<bootstrap> bootstrap::subgroup(const std::vector<rank_id>& ranks,
                                                              deadline until) {
  contribution own_list;
  detail::append_bytes(own_list.bytes, ranks.data(), ranks.size() * sizeof(rank_id));
  const auto all = gather_or_refuse(*this, "subgroup", std::move(own_list),
                                    detail::objection_to_list(ranks, rank(), size()), until);
  std::vector<std::vector<rank_id>> lists;
  for (const rank_id giver : all_ranks{all.size()}) {
    const auto& bytes = all[giver.index()].bytes;
    auto& list = lists.emplace_back(bytes.size() / sizeof(rank_id));
    if (members()->is_excluded(giver)) continue;
    if (!list.empty()) std::memcpy(list.data(), bytes.data(), list.size() * sizeof(rank_id));
    if (const auto problem = detail::objection_to_list(list, giver, size()))
      throw agreed_error{*problem};
  }
  detail::require_equal_lists(lists);

  const auto place = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  auto group = make_subgroup(ranks, rank_id{static_cast<std::size_t>(place)}, until);
  std::vector<rank_id> near_members;
  for (const rank_id member : all_ranks{ranks.size()})
    if (is_near(ranks[member.index()])) near_members.push_back(member);
  group->set_neighbours(std::move(near_members), ranks_here_, cores_here_);
  group->members()->listen_to(members(), ranks);
  group->idle_ = idle_;
  group->parent_ranks_ = ranks;
  return group;
}

}  // namespace peerbus

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/subset.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

PEERBUS_INLINE subset_bootstrap::subset_bootstrap(bootstrap& whole, std::vector<rank_id> members)
    : whole_{&whole}, ranks_{std::move(members)} {
  const auto own =
      static_cast<std::size_t>(std::ranges::find(ranks_, whole.rank()) - ranks_.begin());
  // The words never change. Deaths are seen by the transport of the whole group.
  const auto states = std::make_shared<std::vector<membership::state_word>>(ranks_.size());
  set_members(std::make_shared<membership>(rank_id{own}, ranks_.size(), states->data(), states,
                                           std::vector<unique_fd>(ranks_.size()),
                                           whole.members()->lines_of(ranks_)));
  bootstrap::members()->listeners().join({whole.members(), &whole.members()->listeners()}, ranks_);
  std::vector<rank_id> near;
  for (const rank_id member : all_ranks{ranks_.size()})
    if (whole.is_near(ranks_[member.index()])) near.push_back(member);
  set_neighbours(std::move(near), whole.ranks_here(), whole.cores_here());
  set_rendezvous_address(whole.rendezvous_address());
}

PEERBUS_INLINE std::vector<bootstrap::contribution> subset_bootstrap::allgather(
    contribution own_part, deadline until, std::string_view doing) {
  std::vector<contribution> all = whole_->allgather(std::move(own_part), until, doing);
  std::vector<contribution> chosen;
  chosen.reserve(ranks_.size());
  for (const rank_id rank : ranks_) chosen.push_back(std::move(all[rank.index()]));
  return chosen;
}

PEERBUS_INLINE std::unique_ptr<bootstrap> subset_bootstrap::make_subgroup(
    const std::vector<rank_id>& /*ranks*/, rank_id /*member*/, deadline /*until*/) {
  throw error{errc::unsupported, "a subset of ranks makes no subgroups"};
}

PEERBUS_ERROR_PATH std::string subset_group::fail_text(std::string_view reason) {
  std::string text = concat(reason, "; among ", name_, ", numbered from 0:");
  for (const rank_id rank : ranks_of_whole()) text += concat(" ", rank.index());
  whole_->poison(text);
  return text;
}

}  // namespace peerbus::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/newcomers.hpp>
#include <peerbus/bootstrap/detail/rendezvous_joiner.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/bootstrap/detail/star_root.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// Makes the bootstrap of a group of `capacity` ranks of which `ranks` are connected, in the order
/// of their places in the star. The caller is at `place`. Collective among them.
/// Throws: `error` as `bootstrap::allgather`.
inline std::unique_ptr<bootstrap> meet_in_places(const std::vector<rank_id>& ranks,
                                                 std::size_t place, std::size_t capacity,
                                                 const unique_fd& states,
                                                 std::unique_ptr<star> connections,
                                                 deadline until) {
  auto met = std::make_unique<joined_star>(rank_id{place}, ranks.size(),
                                           state_page::open(ranks.size(), states),
                                           std::move(connections), until);
  return with_vacancies(std::move(met), ranks, capacity, until);
}

/// Makes the bootstrap of rank `own`, whom the member that admits has welcomed by `answer`.
/// Collective among all whom it has welcomed.
/// Throws: `error` as `meet_in_places`; system if the answer is none.
inline std::unique_ptr<bootstrap> meet_running_group(joined answer, rank_id own,
                                                     std::size_t capacity, deadline until) {
  std::vector<std::uint32_t> numbers(answer.body.size() / sizeof(std::uint32_t));
  if (!numbers.empty())
    std::memcpy(numbers.data(), answer.body.data(), numbers.size() * sizeof(std::uint32_t));
  const std::vector<rank_id> ranks(numbers.begin(), numbers.end());
  const auto found = std::find(ranks.begin(), ranks.end(), own);
  if (found == ranks.end())
    throw error{errc::system, concat("the group that was to take in ", own, " named ",
                                     describe_ranks(ranks), ", expected it among them")};
  return meet_in_places(ranks, static_cast<std::size_t>(found - ranks.begin()), capacity,
                        answer.files[0],
                        std::make_unique<star_leaf>(std::move(answer.connections[0])), until);
}

}  // namespace peerbus::detail

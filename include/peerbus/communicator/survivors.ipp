// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <peerbus/bootstrap/detail/awaited_members.hpp>
#include <peerbus/bootstrap/detail/met_ranks.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/communicator/survivors.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

namespace detail {

/// Meets the other members of the view of `group`, as `survivors` does.
PEERBUS_INLINE std::unique_ptr<bootstrap> meet_survivors(rank_group& group,
                                                         const std::vector<rank_id>& members,
                                                         deadline limit) {
  const std::size_t place = group.view().place_of(group.rank());
  const auto share = [&](std::span<const std::byte> own) {
    return group.gather_in_view("survivors", own, limit);
  };
  if (auto met = group.boot().meet_again(members, rank_id{place}, share, limit)) return met;
  // The first rank offers a place with a random name.
  std::array<char, 32> name{};
  if (place == 0) {
    const std::string digits = draw_digits();
    std::copy_n(digits.begin(), std::min(digits.size(), name.size()), name.begin());
  }
  const auto names = share(std::as_bytes(std::span{name}));
  // Each of them sees by itself how the others end.
  constexpr std::chrono::hours without_limit{24};
  return join_on_this_host({reinterpret_cast<const char*>(names.data()), name.size()},
                           rank_id{place}, members.size(), limit,
                           {group.members(), members, without_limit});
}

}  // namespace detail

PEERBUS_INLINE std::unique_ptr<bootstrap> survivors(rank_group& group,
                                                    std::optional<deadline> until) {
  if (group.are_threads())
    throw error{errc::unsupported, "survivors: the ranks are threads, expected processes"};
  const auto view_members = group.view().members();
  const std::vector<rank_id> members{view_members.begin(), view_members.end()};
  auto met = detail::meet_survivors(group, members, until.value_or(group.default_deadline()));
  std::vector<rank_id> slots;
  slots.reserve(members.size());
  for (const rank_id member : members) slots.push_back(group.boot().slot(member));
  met->set_slots(std::move(slots), group.boot().capacity());
  return met;
}

}  // namespace peerbus

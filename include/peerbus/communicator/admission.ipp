// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/detail/awaited_members.hpp>
#include <peerbus/bootstrap/detail/hello.hpp>
#include <peerbus/bootstrap/detail/local_rendezvous.hpp>
#include <peerbus/bootstrap/detail/newcomers.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/rendezvous_joiner.hpp>
#include <peerbus/bootstrap/detail/running_group.hpp>
#include <peerbus/bootstrap/detail/star_root.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/communicator/admission.hpp>
#include <peerbus/communicator/verdict.hpp>
#include <peerbus/core/fnv_hash.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

/// The agreement at the beginning of `admit`: who joins, and by which numbers the members call.
struct admission::waiting_state {
  detail::hello::process_id process;              ///< of this member's call at the place
  std::vector<bool> joining;                      ///< [ranks]
  std::vector<detail::newcomers::member> others;  ///< the members but the one that admits
};

PEERBUS_INLINE admission::admission(rank_group& group, launch_settings place)
    : group_{&group}, place_{std::move(place)} {
  if (group.size() > most_ranks)
    throw error{errc::invalid_argument, detail::concat("admission: a group of ", group.size(),
                                                       " ranks, expected at most ", most_ranks)};
  place_.rank = group.rank().index();
  place_.size = group.size();
}

PEERBUS_INLINE admission::~admission() = default;

PEERBUS_INLINE bool admission::is_host() const noexcept {
  return group_->view().members().front() == group_->rank();
}

PEERBUS_INLINE bool admission::is_anybody_waiting(deadline until) {
  refusal_.clear();
  const group_view& view = group_->view();
  now_ = std::make_unique<waiting_state>();
  now_->process = detail::hello::make_process_id();
  now_->joining.resize(group_->size());
  const auto objection = objection_of("those that wait", [&] {
    if (!is_host()) return;
    if (!newcomers_) newcomers_ = std::make_unique<detail::newcomers>(group_->members(), place_);
    newcomers_->open();
    newcomers_->hear({}, view.gone());
    now_->joining = newcomers_->waiting(view.gone());
  });
  // Wire form: how the member fared, a hash of its place, the number of its call there, then a bit
  // for each rank that waits.
  struct head {
    detail::verdict fared;
    std::uint64_t place = 0;
    detail::hello::process_id process{};
  };
  detail::fnv_hash place;
  place.add_text(place_.address);
  place.add_text(place_.job);
  place.add(place_.port);
  const head mine{detail::verdict{objection}, place.value(), now_->process};
  std::vector<std::byte> own(sizeof mine + (group_->size() + 7) / 8);
  std::memcpy(own.data(), &mine, sizeof mine);
  for (std::size_t i = 0; i < now_->joining.size(); ++i)
    if (now_->joining[i]) own[sizeof mine + i / 8] |= std::byte{1} << i % 8;
  const auto all = group_->gather_in_view("admission", own, until);
  head of_host;
  std::memcpy(&of_host, all.data(), sizeof of_host);
  for (std::size_t i = 0; i < view.members().size(); ++i) {
    head theirs;
    std::memcpy(&theirs, &all[i * own.size()], sizeof theirs);
    if (theirs.place != of_host.place)
      throw error{errc::mismatch,
                  detail::concat("admission: ", view.members()[i], " gives another place than ",
                                 view.members().front(), ", expected the same")};
    if (theirs.fared.code() != errc::ok && refusal_.empty())
      refusal_ = theirs.fared.describe(view.members()[i]);
    if (i != 0) now_->others.push_back({view.members()[i], theirs.process});
  }
  if (!refusal_.empty()) return false;
  for (std::size_t i = 0; i < now_->joining.size(); ++i)
    now_->joining[i] = (all[sizeof mine + i / 8] >> i % 8 & std::byte{1}) != std::byte{};
  return std::find(now_->joining.begin(), now_->joining.end(), true) != now_->joining.end();
}

PEERBUS_INLINE std::unique_ptr<bootstrap> admission::meet(deadline until) {
  const rank_id own = group_->rank();
  const group_view& view = group_->view();
  if (is_host()) {
    auto met = newcomers_->admit(own, now_->others, view.gone(), now_->joining, until);
    return detail::meet_in_places(met.ranks, 0, group_->size(), met.states,
                                  std::make_unique<detail::star_root>(std::move(met.links)), until);
  }
  // It is the member that admits which is watched, not rank 0.
  constexpr std::chrono::hours without_limit{24};
  detail::local_rendezvous_place place{detail::place_to_join(place_)};
  detail::rendezvous ours{own.index(), group_->size(), until};
  ours.members = {group_->members(), {view.members().front()}, without_limit};
  ours.host = "the member that admits";
  return detail::meet_running_group(detail::rendezvous_joiner{place, ours, now_->process}.join(1),
                                    own, group_->size(), until);
}

PEERBUS_INLINE bool admission::all_have_made(const std::optional<error>& objection,
                                             deadline until) {
  const auto found =
      detail::gather_objections(*group_, "admission: what all have made", objection, until);
  if (found) refusal_ = found->text();
  return !found;
}

PEERBUS_INLINE void admission::confirm(bootstrap& met, deadline until) {
  if (newcomers_) newcomers_->close();
  // If a rank of the new group has ended since, its first operation tells that on all others.
  static_cast<void>(objection_of("admission", [&] { detail::await_admission(met, until); }));
}

}  // namespace peerbus

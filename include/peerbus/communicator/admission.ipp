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

#include <peerbus/bootstrap/detail/admission_notice.hpp>
#include <peerbus/bootstrap/detail/admission_place.hpp>
#include <peerbus/bootstrap/detail/answers.hpp>
#include <peerbus/bootstrap/detail/awaited_members.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/local_admission_place.hpp>
#include <peerbus/bootstrap/detail/newcomers.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/admission.hpp>
#include <peerbus/communicator/verdict.hpp>
#include <peerbus/core/fnv_hash.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

/// The result of the agreement at the beginning of `admit`: the processes that join, and the place
/// where all ranks meet.
struct admission::meeting {
  std::vector<bool> joining;  ///< [slots]
  detail::admission_notice notice;
  std::vector<detail::connection> links;  ///< connections to the processes that join; only on the
                                          ///< member that listens
};

PEERBUS_INLINE admission::admission(rank_group& group, launch_settings place)
    : group_{&group}, place_{std::move(place)} {
  if (capacity() > most_ranks)
    throw error{errc::invalid_argument, detail::concat("admission: a group of ", capacity(),
                                                       " ranks, expected at most ", most_ranks)};
  way_ = group.boot().make_admission_place(place_);
  if (!way_) way_ = std::make_shared<detail::local_admission_place>(place_);
}

PEERBUS_INLINE admission::admission(rank_group& group, const tcp_settings& place)
    : admission{group,
                launch_settings{.address = place.address, .port = place.port, .job = place.job}} {}

PEERBUS_INLINE admission::~admission() = default;

PEERBUS_INLINE bool admission::is_host() const noexcept {
  return group_->view().members().front() == group_->rank();
}

PEERBUS_INLINE std::size_t admission::capacity() const noexcept {
  return group_->boot().capacity();
}

PEERBUS_INLINE bool admission::is_anybody_waiting(deadline until) {
  refusal_.clear();
  now_ = std::make_unique<meeting>();
  agree_on_newcomers(until);
  const auto& joining = now_->joining;
  if (!refusal_.empty() || std::find(joining.begin(), joining.end(), true) == joining.end())
    return false;
  agree_on_place(until);
  return refusal_.empty();
}

PEERBUS_INLINE void admission::agree_on_newcomers(deadline until) {
  const group_view& view = group_->view();
  const bootstrap& boot = group_->boot();
  now_->joining.resize(capacity());
  const auto objection = objection_of("those that wait", [&] {
    if (!is_host()) return;
    if (!newcomers_) newcomers_ = std::make_unique<detail::newcomers>(way_->calls(), capacity());
    newcomers_->open();
    std::vector<bool> is_taken(capacity());
    std::vector<bool> is_vacant(capacity(), true);
    for (const rank_id rank : view.members()) {
      const std::size_t slot = boot.slot(rank).index();
      is_vacant[slot] = false;
      is_taken[slot] =
          rank == group_->rank() || group_->members()->state(rank) == rank_state::running;
    }
    newcomers_->hear(is_taken);
    now_->joining = newcomers_->waiting(is_vacant);
  });
  // Wire form: how the member fared, a hash of its place, then a bit for each slot that is wanted.
  struct head {
    detail::verdict fared;
    std::uint64_t place = 0;
  };
  detail::fnv_hash place;
  place.add_text(place_.address);
  place.add_text(place_.job);
  place.add(place_.port);
  const head mine{detail::verdict{objection}, place.value()};
  std::vector<std::byte> own(sizeof mine + (now_->joining.size() + 7) / 8);
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
  }
  for (std::size_t i = 0; i < now_->joining.size(); ++i)
    now_->joining[i] = (all[sizeof mine + i / 8] >> i % 8 & std::byte{1}) != std::byte{};
}

PEERBUS_INLINE void admission::agree_on_place(deadline until) {
  const group_view& view = group_->view();
  detail::admission_notice& notice = now_->notice;
  for (const rank_id member : view.members()) notice.slots.push_back(group_->boot().slot(member));
  for (std::size_t slot = 0; slot < now_->joining.size(); ++slot)
    if (now_->joining[slot]) notice.slots.emplace_back(slot);
  // The member that listens is the first to meet. If its slot is the lowest, all can meet in the
  // order of their slots, and need not meet again for that.
  if (std::min_element(notice.slots.begin(), notice.slots.end()) == notice.slots.begin())
    std::sort(notice.slots.begin(), notice.slots.end());
  const auto objection = objection_of("a place to meet", [&] {
    if (!is_host()) return;
    now_->links = newcomers_->take(now_->joining);
    notice.place = way_->offer();
  });
  // Wire form: how the member fared, and the place.
  const detail::verdict mine{objection};
  const auto offered = notice.place.encode_filled();
  std::vector<std::byte> own;
  detail::append_bytes(own, &mine, sizeof mine);
  detail::append_bytes(own, offered.data(), offered.size());
  const auto all = group_->gather_in_view("admission: where to meet", own, until);
  detail::verdict of_host;
  std::memcpy(&of_host, all.data(), sizeof of_host);
  if (of_host.code() != errc::ok) {
    refusal_ = of_host.describe(view.members().front());
    return;
  }
  if (is_host()) return;  // Its place keeps the port.
  notice.place = detail::offered_place::decode_filled(std::span{all}.subspan(sizeof of_host));
}

PEERBUS_INLINE std::unique_ptr<bootstrap> admission::meet(deadline until) {
  // Whatever happens, those that join learn by the end of their connections that it is over.
  const std::unique_ptr<meeting> now = std::move(now_);
  if (is_host()) tell_newcomers(*now);
  const auto members = group_->view().members();
  const auto has_ended = [&](rank_id place) {
    const rank_id slot = now->notice.slots[place.index()];
    const auto joins = now->joining.begin() + static_cast<std::ptrdiff_t>(slot.index());
    if (*joins) {  // Links are in the order of their slots.
      const auto link = static_cast<std::size_t>(std::count(now->joining.begin(), joins, true));
      return now->links[link].has_ended();
    }
    const auto member = std::find_if(members.begin(), members.end(), [&](rank_id rank) {
      return group_->boot().slot(rank) == slot;
    });
    return group_->members()->state(*member) != rank_state::running;
  };
  return now->notice.meet(*way_, group_->boot().slot(group_->rank()), capacity(),
                          detail::awaited_members{has_ended}, until);
}

PEERBUS_INLINE void admission::tell_newcomers(meeting& now) {
  const auto body = now.notice.encode();
  const detail::welcome answer{body, {}};
  for (detail::connection& link : now.links)
    // A process that does not take it counts as one that has ended.
    if (objection_of("a newcomer",
                     [&] { answer.send(link, deadline::after(std::chrono::seconds{1})); }))
      link.hang_up();
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

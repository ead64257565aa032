// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>

#include <peerbus/collective/detail/page_exchange.hpp>

namespace peerbus::collective::detail {

/// Returns the signal that `source` raises at each peer to which it puts pages.
constexpr signal_id page_signal(rank_id source) noexcept {
  return static_cast<signal_id>(source.index());
}

/// The signal of each rank whose pages all peers load. They wait for it in that rank's memory.
inline constexpr auto own_page_signal = static_cast<signal_id>(0);

PEERBUS_INLINE page_exchange::page_exchange(std::shared_ptr<any_window> whole, const team_map& map,
                                            bool shares_cores)
    : whole_{std::move(whole)},
      members_{communicator().view().members().size() == communicator().size() ? nullptr
                                                                               : members_of_view()},
      memory_{members_ ? &members_->window : whole_.get()},
      group_{&memory_->group()},
      map_{map},
      own_{memory_->local()},
      has_slots_{!whole_->is_direct()},
      all_are_near_{
          std::ranges::all_of(group_->peers(), [this](rank_id peer) { return is_near(peer); })},
      // A few microseconds, or less than it takes to give up a core that a peer needs.
      most_polls_{shares_cores ? 64U : 2048U},
      sources_(group_->size() + 1),
      operands_(group_->size()),
      sends_(group_->size()),
      receives_(group_->size()) {}

PEERBUS_INLINE std::unique_ptr<member_window> page_exchange::members_of_view() const {
  return std::make_unique<member_window>(whole_);
}

PEERBUS_INLINE void page_exchange::go_on(std::unique_ptr<member_window> members) noexcept {
  memory_ = &members->window;
  group_ = &members->group;
  members_ = std::move(members);  // Ends the window of the view before.
  map_.ranks = group_->size();
  // They have been larger, so that nothing is allocated.
  sources_.resize(group_->size() + 1);
  operands_.resize(group_->size());
  sends_.resize(group_->size());
  receives_.resize(group_->size());
  trials_ = {};
}

PEERBUS_INLINE errc page_exchange::publish(std::uint64_t round, bool with_header,
                                           page_range to_peer) noexcept {
  // Before the puts, whose source the notice is. Far peers wait for the signal.
  // order: release; pairs with the acquire in `is_published`.
  std::atomic_ref{notice_of_own(round).round}.store(round, std::memory_order_release);
  if (all_are_near_) return errc::ok;
  for (const rank_id peer : group_->peers()) {
    if (is_near(peer)) continue;
    if (const errc code = put(round, peer, with_header, to_peer(peer)); code != errc::ok)
      return code;
  }
  return errc::ok;
}

PEERBUS_INLINE errc page_exchange::signal(std::uint64_t round) noexcept {
  return has_slots_
             ? memory_->signal_each(group_->peers(), page_signal(group_->rank()), value_of(round))
             : memory_->signal(group_->rank(), own_page_signal, round);
}

PEERBUS_INLINE bool page_exchange::poll(std::uint64_t round) const noexcept {
  if (!all_are_near_) return false;
  std::uint32_t polls = most_polls_;
  for (const rank_id peer : group_->peers())
    while (!is_published(round, peer))
      if (polls-- == 0) return false;
  return true;
}

PEERBUS_INLINE errc page_exchange::await(std::uint64_t round, rank_id peer,
                                         deadline until) noexcept {
  if (is_near(peer) && is_published(round, peer)) return errc::ok;
  return has_slots_
             ? memory_->wait_at(group_->rank(), page_signal(peer), value_of(round), until, peer)
             : memory_->wait_at(peer, own_page_signal, round, until, peer);
}

PEERBUS_INLINE std::uint64_t page_exchange::latest(rank_id peer) const noexcept {
  return has_slots_ ? memory_->value_at(group_->rank(), page_signal(peer)) / values_per_round()
                    : memory_->value_at(peer, own_page_signal);
}

PEERBUS_INLINE errc page_exchange::send_step(std::uint64_t round, std::uint64_t step, rank_id peer,
                                             std::size_t slot, bool with_header,
                                             byte_range range) noexcept {
  if (!has_slots_) return errc::unsupported;
  const signal_id id = page_signal(group_->rank());
  const std::uint64_t value = value_of(round - 1) + step;
  if (is_near(peer) || (!with_header && range.bytes == 0)) return memory_->signal(peer, id, value);
  const std::size_t target = map_.slot_at(round, rank_id{slot});
  const std::span own{page(round), team_map::header_bytes + map_.page_bytes};
  if (with_header && range.offset == 0)
    return memory_->put_signal(peer, target, own.first(team_map::header_bytes + range.bytes), id,
                               value);
  if (with_header)
    if (const errc code = send_header(round, peer); code != errc::ok) return code;
  return memory_->put_signal(peer, target + team_map::header_bytes,
                             own.subspan(team_map::header_bytes + range.offset, range.bytes), id,
                             value);
}

PEERBUS_INLINE errc page_exchange::send_header(std::uint64_t round, rank_id peer) noexcept {
  return is_near(peer) ? errc::ok : put(round, peer, true, {});
}

PEERBUS_INLINE errc page_exchange::await_step(std::uint64_t round, std::uint64_t step, rank_id peer,
                                              deadline until) noexcept {
  return has_slots_ ? memory_->wait_at(group_->rank(), page_signal(peer),
                                       value_of(round - 1) + step, until, peer)
                    : errc::unsupported;
}

PEERBUS_INLINE bool page_exchange::has_published(std::uint64_t round, rank_id peer) const noexcept {
  return has_slots_ ? memory_->value_at(group_->rank(), page_signal(peer)) == value_of(round)
                    : latest(peer) == round;
}

PEERBUS_INLINE void page_exchange::find_groups(deadline until) {
  groups_ = peerbus::detail::find_near_groups(*group_, "collective::team: near ranks", until,
                                              [this](rank_id peer) { return is_near(peer); });
}

PEERBUS_INLINE bool page_exchange::is_published(std::uint64_t round, rank_id peer) const noexcept {
  auto& word = const_cast<round_notice&>(notice(round, peer)).round;  // Only loaded.
  // order: acquire; pairs with the release in `publish`.
  return std::atomic_ref{word}.load(std::memory_order_acquire) == round;
}

PEERBUS_INLINE errc page_exchange::put(std::uint64_t round, rank_id peer, bool with_header,
                                       byte_range range) noexcept {
  const std::size_t slot = map_.slot_at(round, group_->rank());
  const std::span own{page(round), team_map::header_bytes + map_.page_bytes};
  const std::span<const std::byte> payload =
      own.subspan(team_map::header_bytes + range.offset, range.bytes);
  if (!with_header)
    return range.bytes == 0 ? errc::ok : memory_->put(peer, slot + team_map::header_bytes, payload);
  if (range.offset == 0)
    return memory_->put(peer, slot, own.first(team_map::header_bytes + range.bytes));
  const put_piece pieces[] = {{slot, own.first(team_map::header_bytes)},
                              {slot + team_map::header_bytes, payload}};
  return memory_->put_run(peer, pieces);
}

PEERBUS_INLINE std::unique_ptr<page_exchange> make_page_exchange(rank_group& group, bootstrap& boot,
                                                                 page_access access,
                                                                 window_source make_window,
                                                                 const team_map& map,
                                                                 deadline until) {
  auto pages = group.collective_on_all_ranks("the tables of a team", until, [&] {
    return std::make_unique<page_exchange>(
        make_window({.bytes = map.window_bytes(), .signals = map.signals()}, until), map,
        boot.shares_cores());
  });
  if (access == page_access::planes) pages->find_groups(until);
  return pages;
}

}  // namespace peerbus::collective::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <utility>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/communicator/view_agreement.hpp>
#include <peerbus/core/fnv_hash.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

PEERBUS_INLINE void view_agreement::write(const std::vector<bool>& gone, std::uint64_t view) {
  const std::size_t half = agreement_board::words_of(gone.size());
  std::vector<std::uint64_t> words(2 * half);
  for (std::size_t i = 0; i < gone.size(); ++i) {
    words[i / 64] |= static_cast<std::uint64_t>(gone[i]) << i % 64;
    words[half + i / 64] |= static_cast<std::uint64_t>(gone[i] && doubtful_[i]) << i % 64;
  }
  agreement_board& mine = board_of(own());
  const std::uint64_t revision = mine.revised.value() + 1;
  mine.write(revision, view, words);
  if (posted_ != nullptr) posted_->post_set(revision, view, words);
}

PEERBUS_INLINE view_agreement::record view_agreement::read(rank_id rank) const {
  const agreement_board& theirs = board_of(rank);
  record found;
  found.revision = theirs.revised.value();
  // order: acquire; pairs with the releases in `write`.
  found.view = theirs.view.load(std::memory_order_acquire);
  const auto bits_of = [&](const std::atomic<std::uint64_t>* words) {
    std::vector<bool> bits(boards_.size());
    for (std::size_t i = 0; i < bits.size(); ++i)
      bits[i] = (words[i / 64].load(std::memory_order_acquire) >> i % 64 & 1U) != 0;
    return bits;
  };
  std::vector<bool> gone = bits_of(theirs.gone());
  found.doubtful = bits_of(theirs.gone() + agreement_board::words_of(boards_.size()));
  // order: relaxed; the acquires above come first.
  if (theirs.begun.load(std::memory_order_relaxed) == found.revision) found.gone = std::move(gone);
  return found;
}

PEERBUS_INLINE void view_agreement::take_out(std::vector<bool>& gone, rank_id rank,
                                             bool is_doubtful) noexcept {
  gone[rank.index()] = true;
  doubtful_[rank.index()] = is_doubtful;
  members_->exclude(rank);
}

PEERBUS_INLINE bool view_agreement::add(std::vector<bool>& gone, const record& theirs) noexcept {
  bool has_grown = false;
  for (std::size_t i = 0; i < theirs.gone.size(); ++i) {
    if (!theirs.gone[i] || gone[i]) continue;
    has_grown = true;
    take_out(gone, rank_id{i}, theirs.doubtful[i] && !is_proved_out(rank_id{i}));
  }
  return has_grown;
}

PEERBUS_INLINE bool view_agreement::add_ended(std::vector<bool>& gone) noexcept {
  bool has_grown = false;
  for (const rank_id rank : all_ranks{gone.size()}) {
    if (!has_ended(rank, gone)) continue;
    has_grown = true;
    take_out(gone, rank, doubtful_[rank.index()] || members_->is_out_of_reach(rank));
  }
  return has_grown;
}

PEERBUS_INLINE errc view_agreement::wait(rank_id awaited, const std::vector<bool>& gone,
                                         const std::vector<std::uint64_t>& revisions,
                                         deadline until) const noexcept {
  signal_word& word = board_of(awaited).revised;
  return word.wait_at_least(revisions[awaited.index()] + 1, until, thresholds_, [&]() noexcept {
    for (const rank_id rank : all_ranks{gone.size()}) {
      if (has_ended(rank, gone)) return errc::peer_dead;
      if (rank == own() || (gone[rank.index()] && !doubtful_[rank.index()])) continue;
      // A rank that excludes a living rank may have a set to which no other rank comes.
      if ((gone[rank.index()] && is_proved_out(rank)) ||
          board_of(rank).revised.value() != revisions[rank.index()])
        return errc::view_changed;
    }
    return errc::ok;
  });
}

PEERBUS_INLINE bool view_agreement::is_proved_out(rank_id rank) const noexcept {
  static_cast<void>(members_->state(rank));  // Brings its board up to date.
  return !members_->may_live(rank) || has_named(rank, rank);
}

PEERBUS_INLINE void view_agreement::require_member(rank_id rank, const group_view& present) {
  if (!put_out_by_ && has_named(rank, own())) {
    put_out_by_ = rank;
    // Too few ranks go on only when they know that this rank does not. The set without the ranks
    // that this rank has named takes these names back.
    std::vector<bool> gone = present.gone();
    gone[own().index()] = true;
    write(gone, present.number());
  }
  if (put_out_by_)
    throw error{errc::view_changed, concat("the other ranks went on without ", own(), ", which ",
                                           *put_out_by_, " took for gone")};
}

PEERBUS_INLINE bool view_agreement::gives_no_more(rank_id rank,
                                                  const group_view& view) const noexcept {
  if (rank == own()) return false;
  if (members_->state(rank) != rank_state::running) return true;
  const auto members = view.members();
  return std::any_of(members.begin(), members.end(),
                     [&](rank_id member) { return has_named(rank, member); });
}

PEERBUS_INLINE errc view_agreement::await_last_words(rank_id ended, std::uint64_t turn,
                                                     const group_view& view,
                                                     deadline until) noexcept {
  // Who agrees on another view has given all before.
  if (members_->state(ended) == rank_state::running) return errc::peer_dead;
  const auto members = view.members();
  const auto have_told = [&]() noexcept {
    for (const rank_id gone : members) {
      if (gone == own() || members_->state(gone) == rank_state::running) continue;
      for (const rank_id teller : members)
        if (teller != own() && members_->state(teller) == rank_state::running &&
            !posted_->has_told(teller, gone))
          return errc::ok;
    }
    return errc::peer_dead;
  };
  return board_of(ended).gathered.wait_at_least(turn, until, thresholds_, have_told);
}

PEERBUS_INLINE group_view view_agreement::agree(const group_view& present, deadline noticed,
                                                deadline until, std::span<const rank_id> evicted) {
  std::vector<bool> gone = present.gone();
  // The caller vouches for ranks that are out of reach. Connected ranks say so themselves.
  for (const rank_id rank : evicted)
    take_out(gone, rank, members_->is_connected(rank) && !is_proved_out(rank));
  const auto begun = members_->begin_wait(
      {.operation = group_operation::view_change, .number = present.number() + 1});
  for (bool is_written = false;;) {
    bool has_grown = add_ended(gone);
    if (drop_doubts(gone) && !are_enough(present, gone)) is_written = false;  // Others need it too.
    std::uint64_t number = present.number();
    // Once all have written the same set, all read the same of whom nobody has seen the end.
    std::vector<bool> doubtful = doubtful_;
    std::optional<rank_id> awaited;
    std::vector<std::uint64_t> revisions(gone.size());
    for (const rank_id rank : all_ranks{gone.size()})
      revisions[rank.index()] = board_of(rank).revised.value();
    for (const rank_id rank : all_ranks{gone.size()}) {
      if (rank == own() || !present.contains(rank)) continue;
      const bool is_gone = gone[rank.index()];
      // Ranks that went on without this rank may have ended since, or be taken for gone by it. But
      // a connected rank that this rank has excluded, with enough others, cannot have gone on.
      if (!is_gone || !doubtful_[rank.index()] || !members_->is_connected(rank) ||
          !are_enough(present, gone) || put_out_by_)
        require_member(rank, present);
      if (is_gone && members_->state(rank) != rank_state::left) continue;
      const record theirs = read(rank);
      has_grown = add(gone, theirs) || has_grown;
      if (is_gone) continue;
      for (std::size_t i = 0; i < doubtful.size(); ++i)
        doubtful[i] = doubtful[i] && theirs.doubtful[i];
      number = std::max(number, theirs.view);
      if (theirs.gone != gone && !awaited) awaited = rank;
    }
    if (has_grown || !is_written) {
      if (gone == present.gone()) {
        if (wait(own(), gone, revisions, noticed) == errc::timed_out) {
          members_->end_wait(begun);
          return present;
        }
        continue;
      }
      write(gone, present.number());
      is_written = true;
      continue;
    }
    if (!awaited) {
      if (!are_enough(present, gone) && may_prove(present, gone, doubtful) &&
          wait(own(), gone, revisions, until) != errc::timed_out)
        continue;
      members_->end_wait(begun);
      group_view next{number + 1, gone.size(), std::move(gone)};
      require_enough(present, next, doubtful);
      return next;
    }
    if (wait(*awaited, gone, revisions, until) != errc::timed_out) continue;
    std::vector<rank_id> without;
    for (const rank_id rank : all_ranks{gone.size()})
      if (gone[rank.index()] && present.contains(rank)) without.push_back(rank);
    throw error{errc::timed_out,
                concat("going on without ", describe_ranks(without), ": ", *awaited,
                       " runs, but has not called continue_without_the_dead for ",
                       describe_elapsed(begun), "; ", members_->describe_last_seen(*awaited))};
  }
}

PEERBUS_INLINE bool view_agreement::drop_doubts(const std::vector<bool>& gone) noexcept {
  const std::vector<bool> before = doubtful_;
  for (const rank_id rank : all_ranks{gone.size()})
    if (gone[rank.index()] && doubtful_[rank.index()] && is_proved_out(rank))
      doubtful_[rank.index()] = false;
  return doubtful_ != before;
}

PEERBUS_INLINE bool view_agreement::may_prove(const group_view& present,
                                              const std::vector<bool>& gone,
                                              const std::vector<bool>& doubtful) const noexcept {
  bool has_doubts = false;
  for (const rank_id rank : present.members()) {
    if (!gone[rank.index()] || !doubtful[rank.index()]) continue;
    if (!members_->is_connected(rank)) return false;
    has_doubts = true;
  }
  return has_doubts;
}

PEERBUS_INLINE bool view_agreement::are_enough(const group_view& present,
                                               const std::vector<bool>& gone) noexcept {
  const auto members = present.members();
  const auto left = static_cast<std::size_t>(std::count_if(
      members.begin(), members.end(), [&](rank_id rank) { return !gone[rank.index()]; }));
  return 2 * left > members.size() ||
         (2 * left == members.size() && !gone[members.front().index()]);
}

PEERBUS_INLINE void view_agreement::require_enough(const group_view& present,
                                                   const group_view& next,
                                                   const std::vector<bool>& doubtful) {
  std::vector<rank_id> out_of_reach;
  for (const rank_id rank : present.members())
    if (!next.contains(rank) && doubtful[rank.index()]) out_of_reach.push_back(rank);
  if (out_of_reach.empty() || are_enough(present, next.gone())) return;
  throw error{
      errc::unreachable,
      concat("going on without ", describe_ranks(out_of_reach), ", who may live and go on too: ",
             next.members().size(), " of ", present.members().size(),
             " ranks are left; expected more than half, or half with ", present.members().front(),
             ", or that they end or answer, or that continue_without names those out of reach")};
}

PEERBUS_INLINE std::vector<std::byte> view_agreement::gather(const group_view& view,
                                                             std::string_view doing,
                                                             std::span<const std::byte> own_bytes,
                                                             deadline until) {
  if (own_bytes.size() > agreement_board::most_bytes)
    throw error{errc::invalid_argument,
                concat(doing, ": ", own_bytes.size(), " bytes given, expected at most ",
                       agreement_board::most_bytes)};
  fnv_hash what;
  what.add_text(doing);
  what.add(own_bytes.size());
  // In a view that broke, some ranks may have given once more than others.
  if (gathered_in_ != view.number()) {
    gathered_in_ = view.number();
    gathers_ = gathered_in_ << 32;
  }
  const std::uint64_t turn = ++gathers_;
  const auto begun =
      members_->begin_wait({.operation = group_operation::view_gather, .number = view.number()});
  // A rank gives for this turn when it has read everything of the one before, whose place the next
  // turn has.
  board_of(own()).give(turn, what.value(), own_bytes);
  if (posted_ != nullptr) posted_->post_contribution(turn, what.value(), own_bytes);
  std::vector<std::byte> all;
  all.reserve(view.members().size() * own_bytes.size());
  for (const rank_id rank : view.members()) {
    agreement_board& theirs = board_of(rank);
    errc code = theirs.gathered.wait_at_least(turn, until, thresholds_, [&]() noexcept {
      return gives_no_more(rank, view) ? errc::peer_dead : errc::ok;
    });
    if (code == errc::peer_dead && posted_ != nullptr)
      code = await_last_words(rank, turn, view, until);
    // Then what it gives is for a later view. It has posted the set before.
    require_member(rank, view);
    // It may have given between the first look and its end.
    if (code != errc::ok && theirs.gathered.value() >= turn) code = errc::ok;
    if (code != errc::ok)
      throw error{code,
                  concat(doing, " in view ", view.number(), ": waited ", describe_elapsed(begun),
                         " for ", rank, " (", members_->describe_last_seen(rank), ")",
                         code == errc::peer_dead ? "; " : "", members_->describe_missing())};
    const auto& given = theirs.given[turn % 2];
    if (given.what.load(std::memory_order_relaxed) != what.value())  // order: relaxed; as above.
      throw error{errc::mismatch, concat(doing, ": ", rank, " does something else")};
    const std::byte* const first = given.bytes.data();
    all.insert(all.end(), first, first + own_bytes.size());
  }
  members_->end_wait(begun);
  return all;
}

}  // namespace peerbus::detail

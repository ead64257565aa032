// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/communicator/posted_boards.hpp>

namespace peerbus::detail {

/// The head of a message about a board. Numbers have the byte order of the hosts, which the
/// ranks have compared when they met.
struct board_post {
  /// The kind of the message. `told` follows all messages about the board of an owner that has
  /// ended. `told_all` follows all messages of a sender that leaves.
  enum : std::uint64_t { set = 1, contribution = 2, last_contribution = 3, told = 4, told_all = 5 };

  std::uint64_t kind;
  std::uint64_t count;      ///< the revision of a set, or the turn of a contribution
  std::uint64_t what;       ///< the number of the view, or the hash of a contribution
  std::uint64_t owner = 0;  ///< the rank whose board the message is about

  [[nodiscard]] std::vector<std::byte> with(std::span<const std::byte> bytes) const {
    std::vector<std::byte> message(sizeof *this + bytes.size());
    std::memcpy(message.data(), this, sizeof *this);
    if (!bytes.empty()) std::memcpy(message.data() + sizeof *this, bytes.data(), bytes.size());
    return message;
  }
};

/// Returns the first turn of the view that `turn` is of, as `view_agreement::gather` counts them.
constexpr std::uint64_t first_of_view(std::uint64_t turn) noexcept {
  return (turn >> 32 << 32) + 1;
}

PEERBUS_INLINE posted_boards::posted_boards(std::shared_ptr<bulletin> by,
                                            std::shared_ptr<membership> members)
    : by_{std::move(by)},
      members_{std::move(members)},
      own_{members_->rank()},
      told_{std::make_unique<std::atomic<bool>[]>(members_->size() * members_->size())},
      told_turns_(members_->size()) {
  const std::size_t rank_count = members_->size();
  const std::size_t lines =
      (agreement_board::bytes_for(rank_count) + cache_line_bytes - 1) / cache_line_bytes;
  memory_.resize(rank_count * lines);
  boards_.reserve(rank_count);
  for (std::size_t rank = 0; rank < rank_count; ++rank)
    boards_.push_back(memory_[rank * lines].bytes);
  channel_ = by_->subscribe(
      {.take = [this](rank_id from, std::span<const std::byte> message) { take(from, message); },
       .last_words =
           [this](rank_id ended) {
             const std::lock_guard held{taking_};
             return tell_contributions(ended);
           }});
}

PEERBUS_INLINE void posted_boards::post_set(std::uint64_t revision, std::uint64_t view,
                                            std::span<const std::uint64_t> words) {
  // Who posts a set has completed its last gather of the view before, and those who wait in it for
  // a rank of the set need to know with what, even if this one has not noticed that end itself.
  for (const rank_id rank : all_ranks{boards_.size()}) {
    if ((words[rank.index() / 64] >> rank.index() % 64 & 1U) == 0) continue;
    messages told;
    if (const std::lock_guard held{taking_}; !is_known_to_have_ended(rank))
      told = tell_contributions(rank);
    for (const auto& message : told) by_->publish(channel_, message);
  }
  by_->publish(channel_, board_post{board_post::set, revision, view}.with(std::as_bytes(words)));
}

PEERBUS_INLINE void posted_boards::post_contribution(std::uint64_t turn, std::uint64_t what,
                                                     std::span<const std::byte> bytes) {
  by_->publish(channel_, board_post{board_post::contribution, turn, what}.with(bytes));
}

PEERBUS_INLINE posted_boards::~posted_boards() {
  by_->unsubscribe(channel_);  // From now on nothing is taken.
  // Without memory for that, a rank that waits for a contribution may get peer_dead alone.
  static_cast<void>(objection_of("the last words of a rank", [&] {
    messages told;
    for (const rank_id owner : all_ranks{boards_.size()})
      if (owner != own_) add_contributions(owner, told);
    told.push_back(board_post{board_post::told_all, 0, 0}.with({}));
    for (const auto& message : told) by_->publish(channel_, message);
  }));
}

PEERBUS_INLINE void posted_boards::add_contributions(rank_id owner, messages& told) {
  const agreement_board& copy = agreement_board::at(boards_[owner.index()]);
  const std::uint64_t last = copy.gathered.value();
  if (last == 0) return;
  // Who has given for a later turn needs none of an earlier one, nor does who has ended or left.
  std::uint64_t needed = std::numeric_limits<std::uint64_t>::max();
  for (const rank_id rank : all_ranks{boards_.size()})
    if (rank != own_ && rank != owner && !has_told(rank, own_) && !is_known_to_have_ended(rank))
      needed = std::min(needed, agreement_board::at(boards_[rank.index()]).gathered.value());
  std::uint64_t& known = told_turns_[owner.index()];
  const std::uint64_t first = std::max({known + 1, last - 1, first_of_view(last), needed});
  for (std::uint64_t turn = first; turn <= last; ++turn) {
    const agreement_board::contribution& given = copy.given[turn % 2];
    // order: relaxed; the signal has published it.
    const std::uint64_t what = given.what.load(std::memory_order_relaxed);
    told.push_back(board_post{board_post::last_contribution, turn, what, owner.index()}.with(
        std::span{given.bytes}.first(given.size)));
    known = turn;
  }
}

// Posts no sets: a set that only some ranks have does no harm, because its writer is gone.
PEERBUS_INLINE posted_boards::messages posted_boards::tell_contributions(rank_id ended) {
  if (!is_known_to_have_ended(ended)) ended_.push_back(ended);
  messages told;
  for (const rank_id owner : ended_) add_contributions(owner, told);
  told.push_back(board_post{board_post::told, 0, 0, ended.index()}.with({}));
  return told;
}

PEERBUS_INLINE void posted_boards::take(rank_id from, std::span<const std::byte> message) noexcept {
  board_post post{};
  if (message.size() < sizeof post) return;
  std::memcpy(&post, message.data(), sizeof post);
  const std::lock_guard held{taking_};
  const auto rest = message.subspan(sizeof post);
  const std::size_t words_count = 2 * agreement_board::words_of(boards_.size());
  if (post.kind == board_post::set) {
    agreement_board& copy = agreement_board::at(boards_[from.index()]);
    std::array<std::uint64_t, bulletin::most_bytes / sizeof(std::uint64_t)> words;
    // One that could not be posted is missing. Sets only grow, so nothing is lost with it.
    if (rest.size() != words_count * sizeof words[0] || post.count <= copy.revised.value()) return;
    std::memcpy(words.data(), rest.data(), rest.size());
    copy.write(post.count, post.what, std::span{words}.first(words_count));
    // The waits of this rank need not go on until their deadlines, unless it has given up the
    // sender.
    if (members_->is_excluded(from)) return;
    for (const rank_id named : all_ranks{boards_.size()})
      if ((words[named.index() / 64] >> named.index() % 64 & 1U) != 0)
        members_->note_given_up(named);
    return;
  }
  // order: release, of `told_`; pairs with `has_told`.
  const auto told = std::span{told_.get(), boards_.size() * boards_.size()}.subspan(
      from.index() * boards_.size(), boards_.size());
  if (post.kind == board_post::told_all)
    for (auto& one : told) one.store(true, std::memory_order_release);
  const bool is_own = post.kind == board_post::contribution;
  if (post.kind < board_post::contribution || post.kind > board_post::told ||
      post.owner >= told.size() || (!is_own && post.owner == own_.index()))
    return;
  if (post.kind == board_post::told) return told[post.owner].store(true, std::memory_order_release);
  agreement_board& copy = agreement_board::at(boards_[is_own ? from.index() : post.owner]);
  // A view has fewer ranks than those before, so there are at most as many as ranks.
  const std::uint64_t before = copy.gathered.value();
  const bool begins_view = post.count == first_of_view(post.count) && post.count > before &&
                           post.count >> 32 < boards_.size();
  if (rest.size() <= agreement_board::most_bytes && (post.count == before + 1 || begins_view))
    copy.give(post.count, post.what, rest);
}

}  // namespace peerbus::detail

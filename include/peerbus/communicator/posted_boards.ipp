// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/communicator/posted_boards.hpp>

namespace peerbus::detail {

/// What a message about a board begins with. Numbers have the byte order of the hosts, which the
/// ranks have compared when they met.
struct board_post {
  /// Of those that have ended, `last_of_ended` comes last: for the one whose end is news.
  enum : std::uint64_t { set = 1, gift = 2, last_gift = 3, last_of_ended = 4 };

  std::uint64_t kind;
  std::uint64_t count;      ///< the revision of a set, or the turn of a gift
  std::uint64_t what;       ///< the number of the view, or the hash of a gift
  std::uint64_t owner = 0;  ///< of a last gift, whose board it is

  [[nodiscard]] std::vector<std::byte> with(std::span<const std::byte> bytes) const {
    std::vector<std::byte> message(sizeof *this + bytes.size());
    std::memcpy(message.data(), this, sizeof *this);
    if (!bytes.empty()) std::memcpy(message.data() + sizeof *this, bytes.data(), bytes.size());
    return message;
  }
};

PEERBUS_INLINE posted_boards::posted_boards(std::shared_ptr<bulletin> by, std::size_t rank_count,
                                            rank_id own)
    : by_{std::move(by)},
      own_{own},
      told_{std::make_unique<std::atomic<bool>[]>(rank_count * rank_count)} {
  const std::size_t lines =
      (agreement_board::bytes_for(rank_count) + cache_line_bytes - 1) / cache_line_bytes;
  memory_.resize(rank_count * lines);
  boards_.reserve(rank_count);
  for (std::size_t rank = 0; rank < rank_count; ++rank)
    boards_.push_back(memory_[rank * lines].bytes);
  channel_ = by_->subscribe(
      {.take = [this](rank_id from, std::span<const std::byte> message) { take(from, message); },
       .last_words = [this](rank_id ended) { return tell_gifts(ended); }});
}

PEERBUS_INLINE void posted_boards::post_set(std::uint64_t revision, std::uint64_t view,
                                            std::span<const std::uint64_t> words) {
  by_->publish(channel_, board_post{board_post::set, revision, view}.with(std::as_bytes(words)));
}

PEERBUS_INLINE void posted_boards::post_gift(std::uint64_t turn, std::uint64_t what,
                                             std::span<const std::byte> bytes) {
  by_->publish(channel_, board_post{board_post::gift, turn, what}.with(bytes));
}

PEERBUS_INLINE posted_boards::~posted_boards() {
  // Without memory for that, a rank that waits for a gift may get peer_dead alone.
  static_cast<void>(objection_of("the last words of a rank", [&] {
    for (const rank_id owner : all_ranks{boards_.size()})
      if (agreement_board::at(boards_[owner.index()]).gathered.value() != 0)
        by_->publish(channel_, last_gift_of(owner, board_post::last_gift));
  }));
  by_->unsubscribe(channel_);
}

PEERBUS_INLINE std::vector<std::byte> posted_boards::last_gift_of(rank_id owner,
                                                                  std::uint64_t kind) const {
  const agreement_board& copy = agreement_board::at(boards_[owner.index()]);
  const std::uint64_t turn = copy.gathered.value();
  const agreement_board::gift& last = copy.given[turn % 2];
  // order: relaxed; the signal has published it.
  const std::uint64_t what = last.what.load(std::memory_order_relaxed);
  return board_post{kind, turn, what, owner.index()}.with(last.bytes);
}

/// A set that only some have does no harm, as its writer is gone.
PEERBUS_INLINE std::vector<std::vector<std::byte>> posted_boards::tell_gifts(rank_id ended) {
  ended_.push_back(ended);
  std::vector<std::vector<std::byte>> messages;
  messages.reserve(ended_.size());
  for (const rank_id owner : ended_)
    messages.push_back(
        last_gift_of(owner, owner == ended ? board_post::last_of_ended : board_post::last_gift));
  return messages;
}

PEERBUS_INLINE void posted_boards::take(rank_id from, std::span<const std::byte> message) noexcept {
  board_post post{};
  if (message.size() < sizeof post) return;
  std::memcpy(&post, message.data(), sizeof post);
  const auto rest = message.subspan(sizeof post);
  const std::size_t words_count = agreement_board::words_of(boards_.size());
  if (post.kind == board_post::set) {
    agreement_board& copy = agreement_board::at(boards_[from.index()]);
    std::array<std::uint64_t, bulletin::most_bytes / sizeof(std::uint64_t)> words;
    if (rest.size() != words_count * sizeof words[0] || post.count != copy.revised.value() + 1)
      return;
    std::memcpy(words.data(), rest.data(), rest.size());
    copy.write(post.count, post.what, std::span{words}.first(words_count));
    return;
  }
  const bool is_own = post.kind == board_post::gift;
  if (post.kind < board_post::gift || post.kind > board_post::last_of_ended ||
      post.owner >= boards_.size() || (!is_own && post.owner == own_.index()) ||
      rest.size() > agreement_board::most_bytes)
    return;
  agreement_board& copy = agreement_board::at(boards_[is_own ? from.index() : post.owner]);
  if (post.count > copy.gathered.value()) copy.give(post.count, post.what, rest);
  // order: release; pairs with `has_told`.
  if (post.kind == board_post::last_of_ended)
    told_[from.index() * boards_.size() + post.owner].store(true, std::memory_order_release);
}

}  // namespace peerbus::detail

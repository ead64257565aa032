// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include <peerbus/communicator/posted_boards.hpp>

namespace peerbus::detail {

/// What a message about a board begins with. Numbers have the byte order of the hosts, which the
/// ranks have compared when they met.
struct board_post {
  enum : std::uint64_t { set = 1, gift = 2 };

  std::uint64_t kind;
  std::uint64_t count;  ///< the revision, or the turn
  std::uint64_t what;   ///< the number of the view, or the hash of a gift

  [[nodiscard]] std::vector<std::byte> with(std::span<const std::byte> bytes) const {
    std::vector<std::byte> message(sizeof *this + bytes.size());
    std::memcpy(message.data(), this, sizeof *this);
    if (!bytes.empty()) std::memcpy(message.data() + sizeof *this, bytes.data(), bytes.size());
    return message;
  }
};

PEERBUS_INLINE posted_boards::posted_boards(std::shared_ptr<bulletin> by, std::size_t rank_count)
    : by_{std::move(by)} {
  const std::size_t lines =
      (agreement_board::bytes_for(rank_count) + cache_line_bytes - 1) / cache_line_bytes;
  memory_.resize(rank_count * lines);
  boards_.reserve(rank_count);
  for (std::size_t rank = 0; rank < rank_count; ++rank)
    boards_.push_back(memory_[rank * lines].bytes);
  channel_ = by_->subscribe([this](rank_id from, std::span<const std::byte> message) {
    take(agreement_board::at(boards_[from.index()]), boards_.size(), message);
  });
}

PEERBUS_INLINE void posted_boards::post_set(std::uint64_t revision, std::uint64_t view,
                                            std::span<const std::uint64_t> words) {
  by_->publish(channel_, board_post{board_post::set, revision, view}.with(std::as_bytes(words)));
}

PEERBUS_INLINE void posted_boards::post_gift(std::uint64_t turn, std::uint64_t what,
                                             std::span<const std::byte> bytes) {
  by_->publish(channel_, board_post{board_post::gift, turn, what}.with(bytes));
}

PEERBUS_INLINE void posted_boards::take(agreement_board& copy, std::size_t rank_count,
                                        std::span<const std::byte> message) noexcept {
  board_post post{};
  if (message.size() < sizeof post) return;
  std::memcpy(&post, message.data(), sizeof post);
  const auto rest = message.subspan(sizeof post);
  if (post.kind == board_post::set) {
    // A group of a bulletin's ranks has few words.
    std::array<std::uint64_t, bulletin::most_bytes / sizeof(std::uint64_t)> words;
    const std::size_t count = agreement_board::words_of(rank_count);
    if (rest.size() != count * sizeof words[0] || post.count != copy.revised.value() + 1) return;
    std::memcpy(words.data(), rest.data(), rest.size());
    copy.write(post.count, post.what, std::span{words}.first(count));
  } else if (post.kind == board_post::gift) {
    if (rest.size() > agreement_board::most_bytes || post.count <= copy.gathered.value()) return;
    copy.give(post.count, post.what, rest);
  }
}

}  // namespace peerbus::detail

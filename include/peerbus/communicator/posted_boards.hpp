// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/bootstrap/bulletin.hpp>
#include <peerbus/communicator/agreement_board.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The boards of a `view_agreement` for ranks that share no memory: each rank has a copy of all
/// boards, and posts what it writes on its own one to the copies of the others. A copy may be
/// behind, but shows what its owner wrote in the order of writing, and all that arrived before the
/// owner is known to have ended.
///
/// Threads: posts from one thread at a time; the copies are brought up to date by any thread that
/// asks for the state of a rank.
class posted_boards {
 public:
  /// Makes the boards of `rank_count` ranks. Does not wait for the others, who make theirs in the
  /// same order before any of them posts.
  posted_boards(std::shared_ptr<bulletin> by, std::size_t rank_count);
  posted_boards(const posted_boards&) = delete;
  posted_boards& operator=(const posted_boards&) = delete;
  ~posted_boards() { by_->unsubscribe(channel_); }

  /// Returns the copies: [ranks].
  [[nodiscard]] const std::vector<std::byte*>& boards() const noexcept { return boards_; }

  ///@{
  /// Tells the others what this rank has written on its board: as `agreement_board::write` and
  /// `give`.
  /// Throws: as `bulletin::publish`.
  void post_set(std::uint64_t revision, std::uint64_t view, std::span<const std::uint64_t> words);
  void post_gift(std::uint64_t turn, std::uint64_t what, std::span<const std::byte> bytes);
  ///@}

  /// Writes what `message` says on the copy of a board, of a group of `rank_count` ranks. Does not
  /// trust the sender: what does not follow on what the copy has is dropped.
  static void take(agreement_board& copy, std::size_t rank_count,
                   std::span<const std::byte> message) noexcept;

 private:
  struct alignas(cache_line_bytes) line {
    std::byte bytes[cache_line_bytes];
  };

  std::shared_ptr<bulletin> by_;
  std::vector<line> memory_;
  std::vector<std::byte*> boards_;
  std::uint32_t channel_;
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/posted_boards.ipp>  // IWYU pragma: keep
#endif

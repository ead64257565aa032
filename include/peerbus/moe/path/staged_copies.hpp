// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <peerbus/communicator/any_window.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/encoded_token.hpp>
#include <peerbus/moe/path/put_list.hpp>
#include <peerbus/moe/path/rank_sets.hpp>
#include <peerbus/moe/path/row_columns.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>
#include <peerbus/moe/path/served_ranks.hpp>
#include <peerbus/moe/plan/copy_order.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The puts of a path that stages rows, once tokens are encoded, for all codecs. Puts to one peer
/// leave in the order of their destinations, so that a transport may join puts to consecutive
/// bytes. Only `settle` flushes. Otherwise the memory that the puts of a batch read is written
/// again only after signals of the peers that prove delivery (docs/proofs.md).
class staged_copies {
 public:
  /// Serves the ranks for which `served(rank)` is true. Keeps references to `window` and `map`.
  template <class Served>
  staged_copies(any_window& window, const memory_map& map, Served&& served)
      : window_{&window},
        map_{&map},
        own_rank_{window.group().rank()},
        sets_{map, window.group().size(),
              [&](rank_id rank) { return rank == own_rank_ ? window.local() : nullptr; }},
        columns_{map},
        served_{window.group(), std::forward<Served>(served)} {}

  /// Returns the sets of a batch: [ranks], empty for other ranks, whose memory has no address here.
  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept {
    return sets_.of(set);
  }
  /// Returns the ranks that are served.
  [[nodiscard]] const served_ranks& served() const noexcept { return served_; }

  /// Returns the place where token `t` is staged.
  [[nodiscard]] std::byte* row(const row_path_batch& batch, std::size_t t) const noexcept {
    return own_set(batch.set).at(map_->staged.rows, t, map_->format.row_bytes);
  }
  /// Returns the place where the scales of token `t` are staged.
  [[nodiscard]] std::byte* scales(const row_path_batch& batch, std::size_t t) const noexcept {
    return own_set(batch.set).at(map_->staged.scales, t, map_->format.scale_bytes);
  }
  /// Stages the attachments of token `t`, except those that are packed when they leave.
  void stage_attachments(const row_path_batch& batch, std::size_t t) const noexcept;

  /// Sends this lane's share of the copies, after all lanes have met. Each lane has staged its
  /// tokens before.
  [[nodiscard]] errc send(const row_path_batch& batch, lane caller, lane_meeting meet);
  /// Puts this lane's share of the outputs home, and of their attachments if the batch has them.
  [[nodiscard]] errc publish(const row_path_batch& batch, lane caller, lane_meeting meet);
  /// Waits until all puts of this rank are complete at their peers.
  [[nodiscard]] errc settle() noexcept { return window_->settle(); }

 private:
  [[nodiscard]] const set_view& own_set(std::size_t set) const noexcept {
    return sets_.of(set)[own_rank_.index()];
  }

  /// Puts the copies of `share`, which all go to `peer`.
  [[nodiscard]] errc send_to(rank_id peer, const row_path_batch& batch, lane::range share) noexcept;
  /// Puts one column of a run of copies from the staged entries of their tokens, from `row` on.
  [[nodiscard]] errc put_rows(put_list& puts, const row_column& column, const row_path_batch& batch,
                              lane::range run, std::size_t row) const noexcept;
  /// Packs one column of a run of copies, and sends it in one put, from `row` on.
  [[nodiscard]] errc put_packed(put_list& puts, const row_column& column,
                                const row_path_batch& batch, lane::range run,
                                std::size_t row) const noexcept;
  /// Stores the copies for this rank directly. No signal would tell it when its own puts arrive.
  void keep(const row_path_batch& batch, lane::range share) const noexcept;
  /// Writes the `column.bytes` bytes of a copy in `column` to `target`.
  void write(const row_column& column, const row_path_batch& batch, copy_order::copy_number copy,
             std::byte* target) const noexcept;
  /// Puts the outputs of `share`, whose home is `home`.
  [[nodiscard]] errc return_to(rank_id home, const row_path_batch& batch,
                               lane::range share) noexcept;
  /// An array at home ranks with an entry for each copy of a token.
  struct slots_home {
    std::size_t area;   ///< offset of the array
    std::size_t bytes;  ///< bytes of an entry
  };
  /// Puts `source` to the start of the slot at the home rank of the row with `origin`.
  [[nodiscard]] errc return_row(put_list& puts, const wire_origin& origin, slots_home slots,
                                std::span<const std::byte> source) const noexcept;
  /// Returns the bytes of the output of `row`, which is a LogFMT-10 row.
  [[nodiscard]] std::size_t coded_output_bytes(const set_view& set, std::size_t row) const noexcept;

  any_window* window_;
  const memory_map* map_;
  rank_id own_rank_;
  rank_sets sets_;
  row_columns columns_;
  served_ranks served_;
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/path/staged_copies.ipp>  // IWYU pragma: keep
#endif

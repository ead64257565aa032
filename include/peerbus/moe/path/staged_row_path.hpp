// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/concept.hpp>
#include <peerbus/moe/path/encoded_token.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>
#include <peerbus/moe/path/staged_copies.hpp>
#include <peerbus/moe/path/sum_copies.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The path for ranks whose memory can only be put to. The sender encodes tokens into its own
/// window and puts them from there. The rank of the expert puts outputs into the slots [token,
/// copy] of their home rank, which sums them. The path produces the same bytes as
/// `direct_row_path`.
template <token_codec Codec>
class staged_row_path {
 public:
  ///@{
  /// A member of the concept `row_path`, which states its contract.
  static constexpr row_path_memory needs{.stages = true, .outputs_may_be_home = false};

  /// Makes a path that serves all ranks. Keeps references to `window` and `map`.
  staged_row_path(any_window& window, const memory_map& map, Codec codec)
      : staged_row_path{window, map, codec, [](rank_id) { return true; }} {}

  /// Makes a path that serves only the ranks for which `served(rank)` is true, and leaves out
  /// copies and outputs for others. Its `sum` must not be called, unless it serves all ranks.
  template <class Served>
  staged_row_path(any_window& window, const memory_map& map, Codec codec, Served&& served)
      : map_{&map},
        own_rank_{window.group().rank()},
        codec_{codec},
        copies_{window, map, std::forward<Served>(served)} {}

  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept {
    return copies_.sets(set);
  }

  [[nodiscard]] errc send(const row_path_batch& batch, lane caller, lane_meeting meet) {
    if (copies_.served().is_empty()) return errc::ok;  // The same in all lanes, so that none meets.
    const lane::range share = caller.share(batch.leaving.tokens());
    for (std::size_t t = share.begin; t < share.end; ++t) {
      if (!copies_.served().carry_any(batch.leaving.places(t))) continue;
      codec_.encode(batch.input.token<token_of<Codec>>(t, map_->hidden),
                    {copies_.row(batch, t), map_->format.row_bytes},
                    {copies_.scales(batch, t), map_->format.scale_bytes});
      copies_.stage_attachments(batch, t);
    }
    return copies_.send(batch, caller, meet);
  }

  /// Returns token t as `send` has staged it in any lane, or empty if it has no copy to stage.
  [[nodiscard]] encoded_token staged(const row_path_batch& batch, std::size_t t) const noexcept {
    const served_ranks& served = copies_.served();
    if (served.is_empty() || !served.carry_any(batch.leaving.places(t))) return {};
    return {copies_.row(batch, t), copies_.scales(batch, t)};
  }

  [[nodiscard]] errc publish(const row_path_batch& batch, lane caller, lane_meeting meet) {
    return copies_.served().is_empty() ? errc::ok : copies_.publish(batch, caller, meet);
  }

  [[nodiscard]] errc settle() noexcept { return copies_.settle(); }

  [[nodiscard]] errc sum(const row_path_batch& batch, const combine_sum& wanted,
                         lane caller) const noexcept {
    sum_copies(batch, sets(batch.set), own_rank_, wanted, caller);
    return errc::ok;
  }
  ///@}

 private:
  const memory_map* map_;
  rank_id own_rank_;
  [[no_unique_address]] Codec codec_;
  staged_copies copies_;
};

}  // namespace peerbus::moe

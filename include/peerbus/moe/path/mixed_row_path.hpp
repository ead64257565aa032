// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/concept.hpp>
#include <peerbus/moe/path/direct_row_path.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>
#include <peerbus/moe/path/staged_row_path.hpp>
#include <peerbus/moe/path/sum_copies.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The path for transports with near and far peers. `direct_row_path` serves near peers, whose
/// memory can be loaded and stored, and `staged_row_path` serves far peers. All three paths
/// produce the same bytes. Outputs lie at the expert. Near home ranks read them there. Outputs for
/// far home ranks are put into slots of the home rank. If a peer is near to this rank, this rank is
/// near to that peer.
template <token_codec Codec>
class mixed_row_path {
 public:
  /// The requirements of the path to far peers.
  static constexpr row_path_memory needs = staged_row_path<Codec>::needs;

  /// Makes a path that serves all ranks. Keeps references to `window` and `map`.
  mixed_row_path(any_window& window, const memory_map& map, Codec codec)
      : own_rank_{window.group().rank()},
        near_{window, map, codec},
        far_{window, map, codec, [&](rank_id peer) { return window.part(peer) == nullptr; }} {}

  /// Returns the sets of a batch: [ranks], empty for far ranks.
  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept {
    return near_.sets(set);
  }

  /// Sends far copies first, so that they travel while near copies are stored. Each token is
  /// encoded once: if a token has far copies, its near copies are copied from the place where it is
  /// staged.
  [[nodiscard]] errc send(const row_path_batch& batch, lane caller, lane_meeting meet) {
    const errc sent = far_.send(batch, caller, meet);
    // Rows for far ranks were encoded and staged before the lanes met.
    if (sent == errc::ok)
      near_.write(batch, caller, [&](std::size_t t) noexcept { return far_.staged(batch, t); });
    return sent;
  }

  /// Puts the outputs for far home ranks. Contract as for `row_path`.
  [[nodiscard]] errc publish(const row_path_batch& batch, lane caller, lane_meeting meet) {
    return far_.publish(batch, caller, meet);
  }
  /// Waits for the puts to far ranks. Contract as for `row_path`.
  [[nodiscard]] errc settle() noexcept { return far_.settle(); }

  /// Sums this lane's share of the tokens. Reads the outputs of near ranks in their memory.
  /// Contract as for `row_path`.
  [[nodiscard]] errc sum(const row_path_batch& batch, const combine_sum& wanted,
                         lane caller) const noexcept {
    sum_copies(batch, sets(batch.set), own_rank_, wanted, caller);
    return errc::ok;
  }

 private:
  rank_id own_rank_;
  direct_row_path<Codec> near_;
  staged_row_path<Codec> far_;
};

}  // namespace peerbus::moe

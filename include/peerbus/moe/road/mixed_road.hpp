// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/departures.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/road/concept.hpp>
#include <peerbus/moe/road/direct_road.hpp>
#include <peerbus/moe/road/staged_road.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe {

/// The road for transports with near and far peers. `direct_road` serves near peers, whose memory
/// can be loaded and stored, and `staged_road` serves far peers. The bytes are those of either
/// road. Outputs lie at the expert. Near home ranks read them there. Outputs for far home ranks are
/// put into slots of the home rank. If a peer is near to this rank, this rank is near to that peer.
template <partly_direct_transport Transport, token_codec Codec>
class mixed_road {
  using far_road = staged_road<Transport, Codec>;

 public:
  /// The requirements of the road to far peers.
  static constexpr road_memory needs = far_road::needs;
  /// The order in which far copies leave and outputs go home to far ranks.
  using batch_order = typename far_road::batch_order;
  /// The batches that `send`, `publish` and `sum` take.
  using batch_type = typename far_road::batch_type;

  /// Makes a road that serves all ranks. Keeps references to `comm`, `window` and `map`.
  mixed_road(communicator<Transport>& comm, window<Transport>& window, const memory_map& map,
             Codec codec)
      : map_{&map},
        own_rank_{comm.rank()},
        near_{comm.rank(), comm.size(), map, codec,
              [&](rank_id peer) { return part_of(comm, window, peer); }},
        far_{comm, window, map, codec,
             [&](rank_id peer) { return part_of(comm, window, peer) == nullptr; }} {}

  /// Returns the sets of a batch: [ranks], empty for far ranks.
  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept {
    return near_.sets(set);
  }

  /// Sends far copies first, so that they travel while near copies are stored. Each token is
  /// encoded once: near copies of a token that has far ones are copied from where it is staged.
  template <class Meet>
  [[nodiscard]] errc send(const batch_type& batch, lane as, Meet&& meet) {
    const errc sent = far_.send(batch, as, meet);
    // Rows for far ranks were encoded and staged before the lanes met.
    if (sent == errc::ok)
      near_.write(batch, near_.sets(batch.set), as,
                  [&](std::size_t t) noexcept { return far_.staged(batch, t); });
    return sent;
  }

  /// Puts the outputs for far home ranks. Contract as for `row_road`.
  template <class Meet>
  [[nodiscard]] errc publish(const batch_type& batch, lane as, Meet&& meet) {
    return far_.publish(batch, as, meet);
  }
  /// Waits for the puts to far ranks. Contract as for `row_road`.
  [[nodiscard]] errc settle() noexcept { return far_.settle(); }

  /// Sums this lane's share of the tokens, from the experts' ranks where they are near. Contract as
  /// for `row_road`.
  [[nodiscard]] errc sum(const batch_type& batch, const combine_sum& wanted,
                         lane as) const noexcept {
    const auto sets = near_.sets(batch.set);
    const set_view home = sets[own_rank_.index()];
    sum_copies(batch, map_->hidden, wanted, as,
               [&](std::size_t t, std::size_t slot) noexcept -> const bf16* {
                 const row_place& place = batch.leaving.places(t)[slot];
                 const set_view& expert_set = sets[place.rank];
                 return expert_set ? expert_set.output(place.row) : home.returned(t, slot);
               });
    return errc::ok;
  }

 private:
  /// Returns the start of the peer's part of the window, or nullptr if `peer` is far.
  [[nodiscard]] static std::byte* part_of(const communicator<Transport>& comm,
                                          const window<Transport>& window, rank_id peer) noexcept {
    return peer == comm.rank() ? window.local().data() : window.find_peer(peer).data();
  }

  const memory_map* map_;
  rank_id own_rank_;
  direct_road<Codec> near_;
  far_road far_;
};

}  // namespace peerbus::moe

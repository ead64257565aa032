// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include <peerbus/core/error.hpp>
#include <peerbus/moe/arrivals.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/departures.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/road/batch_input.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// A batch as its road sees it.
template <class Token, class Order>
struct road_batch {
  const batch_input<Token>& input;  ///< tokens and attachments of this rank
  const departures& leaving;        ///< places of the copies that this rank sends
  const arrivals& arriving;         ///< computed after `send`, which must not use it
  Order& order;                     ///< data that the road keeps for the batch
  std::size_t set;                  ///< number of the batch's memory, below in_flight
  bool attached;                    ///< true if output attachments go home with the outputs
  std::size_t stream_from;  ///< bytes of a batch from which rows are stored by a `row_stream`
};

/// A way for the rows of an exchange to travel to their experts in dispatch, and for the outputs to
/// travel home in combine. All roads produce the same bytes. The capabilities of the transport
/// determine the road of an exchange (`road_over`).
///
///  1. `Road::needs` states the requirements of the road on the window of each rank.
///  2. `Road::batch_order` is the data that the road keeps for each batch in ordinary memory. Its
///     constructor takes the configuration, the geometry and the number of ranks, and allocates all
///     memory.
///  3. `sets(set)` returns the sets of a batch at all ranks: [ranks]. Sets of ranks that loads and
///     stores of this rank do not reach are empty. The set of this rank is never empty. Experts
///     write outputs to the `home_slot`s of these sets if the map has outputs at home, else to
///     `output` of their own set. They write output attachments to `returned_attachment` of the
///     home rank's set if it is not empty, else to `output_attachment` of their own set.
///  4. `send(batch, as, meet)` writes this lane's share of the rows to their places. The rows are
///     visible at a rank after the next signal to it. All lanes call it.
///  5. `publish(batch, as, meet)` makes this lane's share of the outputs available to `sum` at the
///     home ranks, after these have seen the next signal. If the batch is `attached`, it also
///     brings output attachments into `returned_attachment` there. All lanes call it, unless this
///     rank refuses the combine.
///  6. `settle()` waits until the memory that `publish` reads may be written again. A single lane
///     calls it after a combine was refused, also if this rank has published nothing.
///  7. `sum(batch, wanted, as)` sums this lane's share of the tokens with `sum_copies`.
///
/// `meet(step)` is for roads whose lanes need each other's work. All lanes call it. When all have
/// called, lane 0 does `step`, and then all lanes return. It throws the exception of `step`, or an
/// error if a lane does not call. A road waits only in calls of the communicator's transport. It
/// returns `errc::ok` or the first failure.
template <class Road, class Token>
concept row_road =
    std::constructible_from<typename Road::batch_order, const exchange_config&,
                            const block_geometry&, std::size_t> &&
    requires(Road& road, const Road& idle,
             const road_batch<Token, typename Road::batch_order>& batch, std::size_t set, lane as,
             const combine_sum& wanted, void (&meet)(void (*step)())) {
      { Road::needs } -> std::same_as<const road_memory&>;
      { idle.sets(set) } noexcept -> std::same_as<std::span<const set_view>>;
      { road.send(batch, as, meet) } -> std::same_as<errc>;
      { road.publish(batch, as, meet) } -> std::same_as<errc>;
      { road.settle() } noexcept -> std::same_as<errc>;
      { idle.sum(batch, wanted, as) } noexcept -> std::same_as<errc>;
    };

/// The `batch_order` of a road that keeps no data for a batch.
struct no_order {
  /// Allocates nothing.
  no_order(const exchange_config& /*config*/, const block_geometry& /*geometry*/,
           std::size_t /*ranks*/) noexcept {}
};

}  // namespace peerbus::moe

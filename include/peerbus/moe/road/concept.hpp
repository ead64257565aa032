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

/// One batch as its road sees it.
template <class Token, class Order>
struct road_batch {
  const batch_input<Token>& input;
  const departures& leaving;
  const arrivals& arriving;  ///< found once the rows have left, thus not in `send`
  Order& order;              ///< what the road keeps of the batch
  std::size_t set;
  bool attached;  ///< whether output attachments go home with the outputs
};

/// How the rows of an exchange travel: to their experts in dispatch, and their outputs home in
/// combine. All roads give the same bytes; which one an exchange has follows from what its
/// transport can do.
///
///  1. `Road::needs` says what the road needs of each rank's window.
///  2. `Road::batch_order` is what the road keeps of each batch in ordinary memory, all of it taken
///     by its constructor, which is given the configuration, the geometry and the number of ranks.
///  3. `sets(set)` are the batch's sets at all ranks, [ranks], with empty views where this rank's
///     loads and stores do not reach; that of this rank is never empty. Experts leave outputs in
///     the `home_slot`s there if the map says that outputs lie at home, else in `output` of their
///     own set. Output attachments go to `returned_attachment` of sets that are not empty; for
///     other ranks they are left in `output_attachment` of the own set.
///  4. `send(batch, as, meet)` writes this lane's share of the rows to their places: visible at a
///     rank after the next signal to it. All lanes call it.
///  5. `publish(batch, as, meet)` makes this lane's share of the outputs reachable for `sum` of
///     their home ranks, once those have seen the next signal, and, if the batch is `attached`,
///     brings output attachments into `returned_attachment` there. All lanes call it; not called
///     for a combine that this rank refuses.
///  6. `settle()` waits until what `publish` reads may be written again. For combines that turn out
///     refused; one lane alone calls it, also where this rank has published nothing.
///  7. `sum(batch, wanted, as)` adds up this lane's share of the tokens, as `sum_copies` says.
///
/// `meet(step)` is for roads whose lanes need each other's work: all lanes call it; once they have,
/// lane 0 does `step`, then all go on. It throws what `step` throws, or that a lane did not come.
/// A road calls the communicator's transport and nothing else that waits. Where nothing can fail,
/// it returns `errc::ok`.
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

/// The `batch_order` of a road that keeps nothing of a batch.
struct no_order {
  no_order(const exchange_config& /*config*/, const block_geometry& /*geometry*/,
           std::size_t /*ranks*/) noexcept {}
};

}  // namespace peerbus::moe

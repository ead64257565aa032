// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include <peerbus/core/error.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>
#include <peerbus/moe/path/sum_copies.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// A way for the rows of an exchange to travel to their experts in dispatch, and for the outputs to
/// travel home in combine. All paths produce the same bytes. The capabilities of the transport
/// determine the path of an exchange (`row_path_over`).
///
///  1. `Path::needs` states the requirements of the path on the window of each rank. If it stages,
///     each batch has a `put_order`, which the path may use as it likes.
///  2. `sets(set)` returns the sets of a batch at all ranks: [ranks]. Sets of ranks that loads and
///     stores of this rank do not reach are empty. The set of this rank is never empty. Experts
///     write outputs to the `home_slot`s of these sets if the map has outputs at home, else to
///     `output` of their own set. They write output attachments to `returned_attachment` of the
///     home rank's set if it is not empty, else to `output_attachment` of their own set.
///  3. `send(batch, caller, meet)` writes this lane's share of the rows to their places. The rows
///     are visible at a rank after the next signal to it. All lanes call it.
///  4. `publish(batch, caller, meet)` makes this lane's share of the outputs available to `sum` at
///     the home ranks, after these have seen the next signal. If the batch is `attached`, it also
///     brings output attachments into `returned_attachment` there. All lanes call it, unless this
///     rank refuses the combine.
///  5. `settle()` waits until the memory that `publish` reads may be written again. A single lane
///     calls it after a combine was refused, also if this rank has published nothing.
///  6. `sum(batch, wanted, caller)` sums this lane's share of the tokens with `sum_copies`.
///
/// `meet` is for paths whose lanes need each other's work. A path waits only in calls of the
/// exchange's window. It returns `errc::ok` or the first failure.
template <class Path>
concept row_path =
    requires(Path& path, const Path& idle, const row_path_batch& batch, std::size_t set,
             lane caller, const combine_sum& wanted, lane_meeting meet) {
      { Path::needs } -> std::same_as<const row_path_memory&>;
      { idle.sets(set) } noexcept -> std::same_as<std::span<const set_view>>;
      { path.send(batch, caller, meet) } -> std::same_as<errc>;
      { path.publish(batch, caller, meet) } -> std::same_as<errc>;
      { path.settle() } noexcept -> std::same_as<errc>;
      { idle.sum(batch, wanted, caller) } noexcept -> std::same_as<errc>;
    };

}  // namespace peerbus::moe

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/control/control_messages.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/path/any_row_path.hpp>

namespace peerbus::moe::detail {

/// Whether the rows of a batch may leave.
enum class departure : std::uint8_t {
  later,    ///< messages of other ranks are missing
  refused,  ///< a rank has refused the dispatch
  placed    ///< every row has its place, and may be written there
};

/// The messages by which all ranks agree on a dispatch. Layouts have one of two protocols, as their
/// geometry says:
///
/// - Rows that lie together: counts first. All ranks send each other the numbers of their rows, or
///   their refusals, and rows leave when those of all ranks have come. A rank that has sent its
///   counts has given up the rows that the memory of the batch held before.
/// - Rows in slots: one phase. Rows leave at once, and one signal follows them, the counts and the
///   note. A rank that refuses sends its refusal instead of rows, and the rows of other ranks are
///   then never read. A rank gives up the rows of a batch by `combine_send`, whose signal all ranks
///   have seen when they have combined the batch. If a batch was not combined, the next dispatch
///   that uses its set gives up its rows with the same signal, and waits for that of all ranks.
struct handshake {
  using step = post_office::step;
  using phase = post_office::phase;

  /// Returns the phase whose signals follow the counts, notes and refusals.
  static phase decides(const batch& of) noexcept {
    return of.leaving.geometry().has_slots() ? phase::rows : phase::counts;
  }

  /// Takes the memory of the batch that had the set before.
  static void take_memory(post_office& post, batch& of, const step& this_step, deadline until);
  /// Gives up the rows of the batch that had the set before, without waiting for other ranks.
  /// Returns whether peers were told, as is needed with slots.
  static bool give_up(post_office& post, batch& of, const step& this_step);

  /// Sends the counts of the batch and `note`, or `found`.
  static void post(post_office& post, const batch& of, const step& this_step,
                   std::span<const std::byte> note, const refusal& found);
  /// Places the rows of the batch once that is possible, for which it waits if `wait` is true.
  static departure place(post_office& post, batch& of, const step& this_step, bool wait,
                         deadline until, std::span<std::int64_t> waited);
  /// Computes what arrives as far as it is known, after the rows have left, so that it overlaps
  /// their transfer.
  static void after_send(const post_office& post, batch& of, const step& this_step);
  /// Waits for the rows of all ranks.
  static void receive(post_office& post, batch& of, const step& rows_step, deadline until,
                      std::span<std::int64_t> waited);
  /// Ends a refused dispatch. Without slots, the rows that the set held before are still there.
  static errc abandon(batch& of, any_road& road) noexcept;

 private:
  static step release_of(const batch& of, const step& this_step) noexcept {
    return {this_step.name, this_step.number, this_step.set, phase::outputs, of.combines};
  }
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/control/handshake.ipp>  // IWYU pragma: keep
#endif

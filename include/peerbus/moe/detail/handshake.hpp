// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/detail/post_office.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe::detail {

/// Whether the rows of a batch may leave.
enum class departure : std::uint8_t {
  later,    ///< messages of other ranks are missing
  refused,  ///< a rank has refused the dispatch
  placed    ///< every row has its place, and may be written there
};

/// The messages of a dispatch in layouts whose rows lie together. First all ranks send each other
/// the numbers of their rows, or their refusals, and rows leave when those of all ranks have come.
/// A rank that has sent its counts has given up the rows that the memory of the batch held before.
template <transport Transport>
struct counts_first {
  using post_office = detail::post_office<Transport>;
  using step = typename post_office::step;
  using phase = typename post_office::phase;
  /// Returns the phase whose signals follow the counts, notes and refusals.
  template <class Batch>
  static constexpr phase decides(const Batch& /*batch*/) noexcept {
    return phase::counts;
  }

  /// Takes the memory of the batch that had the set before. Nothing to do.
  template <class Batch>
  static void take_memory(post_office& /*post*/, Batch& /*batch*/, const step& /*this_step*/,
                          deadline /*until*/) {}

  /// Gives up the rows of the batch that had the set before, without waiting for other ranks.
  /// Nothing to do. Returns whether peers were told.
  template <class Batch>
  static bool give_up(post_office& /*post*/, Batch& /*batch*/, const step& /*this_step*/) {
    return false;
  }

  /// Sends the counts of the batch and `note`, or `found`.
  template <class Batch>
  static void post(post_office& post, const Batch& batch, const step& this_step,
                   std::span<const std::byte> note, const refusal& found) {
    post.post_counts(this_step, batch.leaving.counts(), note, found);
    post.announce(this_step);
  }

  /// Places the rows of the batch once all counts have come, for which it waits if `wait` is true.
  template <class Batch>
  static departure place(post_office& post, Batch& batch, const step& this_step, bool wait,
                         deadline until, std::span<std::int64_t> waited) {
    if (wait)
      post.await_all(this_step, until, {}, waited);
    else if (!post.all_came(this_step))
      return departure::later;
    if (batch.refuse(post.refused(this_step))) return departure::refused;
    batch.leaving.place(post.counts(this_step));
    return departure::placed;
  }

  /// Computes what arrives, after the rows have left, so that it overlaps their transfer.
  template <class Batch>
  static void after_send(const post_office& post, Batch& batch, const step& this_step) {
    batch.arriving.place(post.counts(this_step));
  }

  /// Waits for the rows of all ranks.
  template <class Batch>
  static void receive(post_office& post, Batch& /*batch*/, const step& rows_step, deadline until,
                      std::span<std::int64_t> waited) {
    post.await_all(rows_step, until, {}, waited);
  }

  /// Ends a refused dispatch. The rows that the set held before are still there.
  template <class Batch, class Road>
  static errc abandon(Batch& batch, Road& /*road*/) noexcept {
    batch.undo();
    return errc::ok;
  }
};

/// The messages of a dispatch in layouts with slots. Rows leave at once, and one signal follows
/// them, the counts and the note. A rank that refuses sends its refusal instead of rows, and the
/// rows of other ranks are then never read.
///
/// A rank gives up the rows of a batch by `combine_send`, whose signal all ranks have seen when
/// they have combined the batch. If a batch was not combined, the next dispatch that uses its set
/// gives up its rows with the same signal, and waits for that of all ranks.
template <transport Transport>
struct one_phase {
  using post_office = detail::post_office<Transport>;
  using step = typename post_office::step;
  using phase = typename post_office::phase;
  /// Returns the phase whose signals follow the counts, notes and refusals.
  template <class Batch>
  static constexpr phase decides(const Batch& /*batch*/) noexcept {
    return phase::rows;
  }

  template <class Batch>
  static void take_memory(post_office& post, Batch& batch, const step& this_step, deadline until) {
    if (give_up(post, batch, this_step))
      post.await_all(release_of(batch, this_step), until,
                     "; they still have rows of an earlier dispatch in its memory");
  }

  template <class Batch>
  static bool give_up(post_office& post, Batch& batch, const step& this_step) {
    if (batch.reached != stage::received) return false;
    ++batch.combines;
    post.announce(release_of(batch, this_step));
    batch.reached = stage::released;
    return true;
  }

  template <class Batch>
  static void post(post_office& post, const Batch& batch, const step& this_step,
                   std::span<const std::byte> note, const refusal& found) {
    const departures& leaving = batch.leaving;
    post.post_own_counts(this_step, leaving.geometry().blocks, leaving.counts(), note, found);
    if (found) post.announce(this_step);
  }

  template <class Batch>
  static departure place(post_office& /*post*/, Batch& batch, const step& /*this_step*/,
                         bool /*wait*/, deadline /*until*/, std::span<std::int64_t> /*waited*/) {
    batch.leaving.place_in_slots();
    return departure::placed;
  }

  template <class Batch>
  static void after_send(const post_office& /*post*/, Batch& /*batch*/, const step& /*this_step*/) {
  }

  template <class Batch>
  static void receive(post_office& post, Batch& batch, const step& rows_step, deadline until,
                      std::span<std::int64_t> waited) {
    post.await_all(rows_step, until, {}, waited);
    if (batch.refuse(post.refused(rows_step))) return;
    batch.arriving.place(post.own_counts(rows_step, batch.leaving.geometry().blocks));
  }

  /// Ends a refused dispatch. No later signal would tell that the rows of this rank have left its
  /// memory.
  template <class Batch, class Road>
  static errc abandon(Batch& batch, Road& road) noexcept {
    batch.undo();
    return road.settle();
  }

 private:
  template <class Batch>
  static step release_of(const Batch& batch, const step& this_step) noexcept {
    return {this_step.name, this_step.number, this_step.set, phase::outputs, batch.combines};
  }
};

/// Either of the two, as the geometry of the batch says. All batches of an exchange have the same
/// geometry, which the constructor has chosen.
template <transport Transport>
struct chosen_handshake {
  using post_office = detail::post_office<Transport>;
  using step = typename post_office::step;
  using phase = typename post_office::phase;

  template <class Batch>
  static phase decides(const Batch& batch) noexcept {
    return of(batch, [&](auto chosen) noexcept { return chosen.decides(batch); });
  }

  template <class Batch>
  static void take_memory(post_office& post, Batch& batch, const step& this_step, deadline until) {
    of(batch, [&](auto chosen) { chosen.take_memory(post, batch, this_step, until); });
  }

  template <class Batch>
  static bool give_up(post_office& post, Batch& batch, const step& this_step) {
    return of(batch, [&](auto chosen) { return chosen.give_up(post, batch, this_step); });
  }

  template <class Batch>
  static void post(post_office& post, const Batch& batch, const step& this_step,
                   std::span<const std::byte> note, const refusal& found) {
    of(batch, [&](auto chosen) { chosen.post(post, batch, this_step, note, found); });
  }

  template <class Batch>
  static departure place(post_office& post, Batch& batch, const step& this_step, bool wait,
                         deadline until, std::span<std::int64_t> waited) {
    return of(batch, [&](auto chosen) {
      return chosen.place(post, batch, this_step, wait, until, waited);
    });
  }

  template <class Batch>
  static void after_send(const post_office& post, Batch& batch, const step& this_step) {
    of(batch, [&](auto chosen) { chosen.after_send(post, batch, this_step); });
  }

  template <class Batch>
  static void receive(post_office& post, Batch& batch, const step& rows_step, deadline until,
                      std::span<std::int64_t> waited) {
    of(batch, [&](auto chosen) { chosen.receive(post, batch, rows_step, until, waited); });
  }

  template <class Batch, class Road>
  static errc abandon(Batch& batch, Road& road) noexcept {
    return of(batch, [&](auto chosen) noexcept { return chosen.abandon(batch, road); });
  }

 private:
  template <class Batch, class Act>
  static decltype(auto) of(const Batch& batch, Act&& act) {
    return batch.leaving.geometry().has_slots() ? act(one_phase<Transport>{})
                                                : act(counts_first<Transport>{});
  }
};

/// The handshake of an exchange over `Transport` in `Layout`.
template <transport Transport, row_layout Layout>
using handshake_of = std::conditional_t<
    automatic_layout<Layout>, chosen_handshake<Transport>,
    std::conditional_t<slot_layout<Layout>, one_phase<Transport>, counts_first<Transport>>>;

}  // namespace peerbus::moe::detail

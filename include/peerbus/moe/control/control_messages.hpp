// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/moe/control/arrival_clock.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/control/control_board.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/plan/count_table.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/moe/wait_watch.hpp>

namespace peerbus::moe::detail {

/// The messages of an exchange besides rows: counts, notes, refusals, and signals that rows or
/// outputs are ready.
class control_messages {
 public:
  /// The phases of a batch. Each batch set has a signal per phase and source rank. Weights have one
  /// only if combines bring them.
  using phase = operation_phase;

  /// One phase of an operation. `epoch` is the value of its signals.
  struct step {
    group_operation operation;  ///< dispatch or combine
    std::uint64_t number;       ///< number of the dispatch
    std::size_t set;
    phase which;
    std::uint64_t epoch;
  };

  /// Returns the number of signals that the window needs.
  [[nodiscard]] static constexpr std::size_t signals(const memory_map& map,
                                                     std::size_t ranks) noexcept {
    return (map.late_weight_bytes == 0 ? 3 : 4) * map.in_flight * ranks;
  }

  control_messages(any_window& window, const memory_map& map)
      : window_{&window}, board_{window}, map_{map}, arrivals_{window.group().size()} {
    watch(nullptr);
  }

  /// Makes waits of `await_all` ask `watch` from time to time, unless it is null.
  void watch(wait_watch* watch) noexcept {
    watch_ = watch;
    is_attended_ = watch != nullptr || window_->group().members()->listeners().any();
  }

  /// Tells all peers the number of this rank's rows for each block and this rank's note, or the
  /// reason why this rank refuses. Peers see it after the next `announce`.
  void post_counts(const step& this_step, std::span<const std::uint32_t> counts,
                   std::span<const std::byte> note, const refusal& own_refusal);

  /// Tells each peer the same as `post_counts`, but only the counts for the blocks that it holds.
  /// Sends nothing to peers that get neither a row nor a note nor a refusal.
  void post_own_counts(const step& this_step, const expert_placement& blocks,
                       std::span<const std::uint32_t> counts, std::span<const std::byte> note,
                       const refusal& own_refusal);

  /// Tells all peers the refusal of a combine, or the data that this rank brings in it: the bytes
  /// of one output attachment, or the ranks that attached one. Peers see it after the next
  /// `announce`.
  void post_verdict(const step& this_step, const refusal& own_refusal, std::uint64_t brings);

  /// Raises this step's signal for all peers.
  void announce(const step& this_step);

  /// Returns the epoch of the last step that `peer` has announced by the signal of this step.
  [[nodiscard]] std::uint64_t announced(const step& this_step, rank_id peer) const noexcept {
    return board_.value(signal_of(this_step, peer));
  }
  /// Returns whether all peers have announced the step. Does not wait.
  [[nodiscard]] bool all_came(const step& this_step) const noexcept;
  /// Waits until all peers have announced the step. Adds the waits to `waited`, unless it is empty.
  /// Throws: `error` that names the missing ranks and ends with `text_end`. The communicator is
  /// then poisoned.
  void await_all(const step& this_step, deadline until, std::string_view text_end = {},
                 std::span<std::int64_t> waited = {});

  /// Returns the counts of all ranks, which must have announced the step.
  [[nodiscard]] count_table counts(const step& this_step) const noexcept {
    return {message(this_step, rank_id{0}) + map_.counts_at, map_.message_bytes, map_.count_bytes};
  }
  /// Returns the counts that ranks sent by `post_own_counts`. The counts of ranks that sent none
  /// are those of an earlier step.
  [[nodiscard]] count_table shown_counts(const step& this_step,
                                         const expert_placement& blocks) const noexcept {
    count_table table = counts(this_step);
    table.first_block = blocks.first(window_->group().rank());
    return table;
  }
  /// Returns the counts that all ranks sent by `post_own_counts`. All must have announced the step.
  /// Ranks that sent none have zeros, which this function writes over their earlier counts.
  [[nodiscard]] count_table own_counts(const step& this_step,
                                       const expert_placement& blocks) noexcept;

  /// Returns the note that `source` sent with its counts, or an empty span if it sent none.
  /// `source` must have announced the step.
  [[nodiscard]] std::span<const std::byte> note(const step& this_step,
                                                rank_id source) const noexcept {
    return {message(this_step, source) + map_.note_at,
            brought(this_step, source) == 0 ? 0 : map_.note_bytes};
  }
  /// Returns `verdict::brought` of `source` in this step, or 0 if it sent no record of this step.
  [[nodiscard]] std::size_t brought(const step& this_step, rank_id source) const noexcept {
    const verdict record = verdict_of(this_step, source);
    return record.epoch == this_step.epoch ? record.brought : 0;
  }

  /// Returns the set with number `set` at this rank.
  [[nodiscard]] set_view local_set(std::size_t set) const noexcept { return {map_, local(0), set}; }
  /// Returns the record that lies in the place of `source` in this step. It may be that of an
  /// earlier step.
  [[nodiscard]] verdict verdict_of(const step& this_step, rank_id source) const noexcept;
  /// Returns the bytes of a note.
  [[nodiscard]] std::size_t note_bytes() const noexcept { return map_.note_bytes; }
  /// Returns the ranks whose messages these are.
  [[nodiscard]] const rank_group& group() const noexcept { return window_->group(); }

  /// Returns the lowest peer that refuses this step, if any. All ranks see the same refusals.
  [[nodiscard]] std::optional<refusal_of> refused(const step& this_step) const noexcept;

  /// Makes `rank`, which is gone, count as a rank that sends no rows in all later steps. Other
  /// ranks see it after the next signal of this rank.
  void forget(rank_id rank) noexcept;

  /// Returns the name and number of the operation, for messages.
  static std::string title(const step& this_step);
  /// Checks that `code` is ok.
  /// Throws: `error` with `code` if not. The communicator is then poisoned.
  void require(const step& this_step, errc code) {
    if (code != errc::ok) fail(this_step, code);
  }

 private:
  // There are twice as many generations of messages as batches, because a rank may send the counts
  // of the next use of a batch set while a slow rank still reads the counts of this use.
  [[nodiscard]] std::size_t message_at(const step& this_step, rank_id source) const noexcept {
    return map_.counts + entry_of(this_step, source) * map_.message_bytes;
  }
  [[nodiscard]] std::size_t outbox_at(const step& this_step, rank_id receiver) const noexcept {
    return map_.outbox + entry_of(this_step, receiver) * map_.outbox_bytes;
  }
  [[nodiscard]] std::size_t entry_of(const step& this_step, rank_id rank) const noexcept {
    const std::size_t generation = this_step.epoch % (2 * map_.in_flight);
    return generation * window_->group().size() + rank.index();
  }
  [[nodiscard]] std::size_t refusal_at(const step& this_step, rank_id source) const noexcept {
    const std::size_t generation = 2 * this_step.set + this_step.epoch % 2;
    return map_.refusals +
           (generation * window_->group().size() + source.index()) * cache_line_bytes;
  }
  [[nodiscard]] std::byte* local(std::size_t offset) const noexcept {
    return window_->local() + offset;
  }
  [[nodiscard]] signal_id signal_of(const step& this_step, rank_id source) const noexcept {
    const std::size_t group =
        (static_cast<std::size_t>(this_step.which) - static_cast<std::size_t>(phase::counts)) *
            map_.in_flight +
        this_step.set;
    return static_cast<signal_id>(group * window_->group().size() + source.index());
  }

  /// Returns the message of `source`. It lies on the board if it came with the counts for all
  /// blocks, and in this rank's part if it came with rows, for this rank alone.
  [[nodiscard]] std::byte* message(const step& this_step, rank_id source) const noexcept {
    const std::size_t offset = message_at(this_step, source);
    return this_step.which == phase::rows ? local(offset) : board_.at(offset);
  }

  static std::size_t write_verdict(const verdict& record, std::byte* target) noexcept;
  /// Writes `counts` into `message`. Returns the bytes of the message up to their end.
  std::size_t write_counts(std::span<const std::uint32_t> counts,
                           std::byte* message) const noexcept;
  /// Puts `bytes` bytes of this rank's part of the window, from `source` on, to `target` at `peer`.
  void send_part(const step& this_step, rank_id peer, std::size_t target, std::size_t source,
                 std::size_t bytes);

  /// Waits for all peers until `until`, and adds the waits to `waited` unless it is empty.
  [[nodiscard]] errc wait_for_all(const step& this_step, deadline until,
                                  std::span<std::int64_t> waited);
  /// Waits as `wait_for_all`. Sets `last` to the peer that came last, or that is missing if the
  /// wait fails, unless all had come.
  [[nodiscard]] errc noted_wait(const step& this_step, deadline until,
                                std::span<std::int64_t> waited, std::optional<rank_id>& last);
  /// Waits as `noted_wait`, and asks `watch_` from time to time.
  [[nodiscard]] errc watched_wait(const step& this_step, deadline until,
                                  std::span<std::int64_t> waited, std::optional<rank_id>& last);
  /// Does the `wait` of `await_all` for a watch and for listeners.
  void await_attended(const step& this_step, const peerbus::detail::activity_line::begun& wait,
                      deadline until, std::string_view text_end, std::span<std::int64_t> waited);

  [[noreturn]] void fail(const step& this_step, errc code);
  [[noreturn]] void fail_waiting(const step& this_step, errc code,
                                 const peerbus::detail::activity_line::begun& wait,
                                 std::string_view text_end);

  any_window* window_;
  control_board board_;
  memory_map map_;
  arrival_clock arrivals_;
  wait_watch* watch_ = nullptr;
  bool is_attended_ = false;  ///< true if there is a watch or a listener
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/control/control_messages.ipp>  // IWYU pragma: keep
#endif

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/count_table.hpp>
#include <peerbus/moe/detail/arrival_clock.hpp>
#include <peerbus/moe/detail/notice_board.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe::detail {

/// The messages of an exchange besides rows: counts, notes, refusals, and signals that rows or
/// outputs are ready.
template <transport Transport>
class post_office {
 public:
  /// The phases of a batch. Each batch set has a signal per phase and source rank.
  enum class phase : std::size_t { counts = 0, rows = 1, outputs = 2 };

  /// One phase of an operation. `epoch` is the value of its signals.
  struct step {
    std::string_view name;  ///< of the operation, for messages
    std::uint64_t number;   ///< of the dispatch, for messages
    std::size_t set;
    phase which;
    std::uint64_t epoch;
  };

  /// Returns the number of signals that the window needs.
  [[nodiscard]] static constexpr std::size_t signals(const memory_map& map,
                                                     std::size_t ranks) noexcept {
    return 3 * map.in_flight * ranks;
  }

  post_office(communicator<Transport>& comm, window<Transport>& memory, const memory_map& map)
      : comm_{&comm}, memory_{&memory}, board_{comm, memory}, map_{map}, arrivals_{comm.size()} {}

  /// Tells all peers the number of this rank's rows for each block and this rank's note, or the
  /// reason why this rank refuses. Peers see it after the next `announce`.
  void post_counts(const step& this_step, std::span<const std::uint32_t> counts,
                   std::span<const std::byte> note, const refusal& own_refusal) {
    const std::size_t offset = message_at(this_step, comm_->rank());
    std::byte* const message = board_.at(offset);
    std::size_t bytes = write_verdict({this_step.epoch, own_refusal, note.size()}, message);
    if (!own_refusal) {
      bytes = write_counts(counts, message);
      if (!note.empty()) {
        std::memcpy(message + map_.note_at, note.data(), note.size());
        bytes = map_.note_at + note.size();
      }
    }
    require(this_step, board_.post(offset, bytes));
  }

  /// Does as `post_counts`, but sends each peer only the counts for the blocks that it holds, and
  /// nothing to peers that get neither a row nor a note nor a refusal.
  void post_own_counts(const step& this_step, const expert_placement& blocks,
                       std::span<const std::uint32_t> counts, std::span<const std::byte> note,
                       const refusal& own_refusal) {
    const std::size_t target = message_at(this_step, comm_->rank());
    const bool is_for_all = own_refusal || !note.empty();
    for (const rank_id receiver : comm_->ranks()) {
      const auto own_counts = counts.subspan(blocks.first(receiver), blocks.count(receiver));
      if (!is_for_all && std::all_of(own_counts.begin(), own_counts.end(),
                                     [](std::uint32_t count) { return count == 0; }))
        continue;
      const bool is_own = receiver == comm_->rank();
      const std::size_t source = is_own ? target : outbox_at(this_step, receiver);
      std::size_t bytes = write_verdict({this_step.epoch, own_refusal, note.size()}, local(source));
      if (!own_refusal) bytes = write_counts(own_counts, local(source));
      if (!is_own) send_part(this_step, receiver, target, source, bytes);
    }
    if (own_refusal || note.empty()) return;
    const std::size_t note_place = target + map_.note_at;
    std::memcpy(local(note_place), note.data(), note.size());
    for (const rank_id peer : comm_->peers())
      send_part(this_step, peer, note_place, note_place, note.size());
  }

  /// Tells all peers the refusal of a combine, or the bytes of one output attachment. Peers see it
  /// after the next `announce`.
  void post_verdict(const step& this_step, const refusal& own_refusal,
                    std::size_t attachment_bytes) {
    const std::size_t offset = refusal_at(this_step, comm_->rank());
    const std::size_t bytes =
        write_verdict({this_step.epoch, own_refusal, attachment_bytes}, board_.at(offset));
    require(this_step, board_.post(offset, bytes));
  }

  /// Raises this step's signal for all peers.
  void announce(const step& this_step) {
    require(this_step, board_.announce(signal_of(this_step, comm_->rank()), this_step.epoch));
  }

  /// Returns whether all peers have announced the step. Does not wait.
  [[nodiscard]] bool all_came(const step& this_step) const noexcept {
    for (const rank_id peer : comm_->peers())
      if (board_.value(signal_of(this_step, peer)) < this_step.epoch) return false;
    return true;
  }
  /// Waits until all peers have announced the step. Adds the waits to `waited`, unless it is empty.
  /// Throws: `error` that names the missing ranks and ends with `text_end`. The communicator is
  /// then poisoned.
  void await_all(const step& this_step, deadline until, std::string_view text_end = {},
                 std::span<std::int64_t> waited = {}) {
    if (!waited.empty())
      arrivals_.measure(
          board_, comm_->peers(), [&](rank_id peer) { return signal_of(this_step, peer); },
          this_step.epoch, until, waited);
    for (const rank_id peer : comm_->peers()) {
      const errc code = board_.wait(signal_of(this_step, peer), this_step.epoch, until, peer);
      if (code != errc::ok) fail_waiting(this_step, code, text_end);
    }
  }

  /// Returns the counts of all ranks, which must have announced the step.
  [[nodiscard]] count_table counts(const step& this_step) const noexcept {
    return {message(this_step, rank_id{0}) + map_.counts_at, map_.message_bytes, map_.count_bytes};
  }
  /// Returns the counts that all ranks sent by `post_own_counts`. All must have announced the step.
  /// Ranks that sent none have zeros, which this function writes over their earlier counts.
  [[nodiscard]] count_table own_counts(const step& this_step,
                                       const expert_placement& blocks) noexcept {
    for (const rank_id source : comm_->ranks())
      if (verdict_of(this_step, source).epoch != this_step.epoch)
        std::memset(message(this_step, source) + map_.counts_at, 0,
                    blocks.count(comm_->rank()) * map_.count_bytes);
    count_table table = counts(this_step);
    table.first_block = blocks.first(comm_->rank());
    return table;
  }

  /// Returns the note that `source` sent with its counts, or an empty span if it sent none.
  /// `source` must have announced the step.
  [[nodiscard]] std::span<const std::byte> note(const step& this_step,
                                                rank_id source) const noexcept {
    return {message(this_step, source) + map_.note_at, brought(this_step, source)};
  }
  /// Returns the bytes that `source` brings in this step, or 0 if it sent no record of this step.
  [[nodiscard]] std::size_t brought(const step& this_step, rank_id source) const noexcept {
    const verdict record = verdict_of(this_step, source);
    return record.epoch == this_step.epoch ? record.brought : 0;
  }

  struct refused_by {
    rank_id rank;
    refusal why;
  };
  /// Returns the lowest peer that refuses this step, if any. All ranks see the same refusals.
  [[nodiscard]] std::optional<refused_by> refused(const step& this_step) const noexcept {
    for (const rank_id peer : comm_->ranks()) {
      if (peer == comm_->rank()) continue;
      const verdict record = verdict_of(this_step, peer);
      if (record.epoch == this_step.epoch && record.why) return refused_by{peer, record.why};
    }
    return std::nullopt;
  }

  /// Returns the name and number of the operation, for messages.
  static std::string title(const step& this_step) {
    return peerbus::detail::concat(this_step.name, " ", this_step.number);
  }
  /// Throws: `error` with `code` unless it is ok. The communicator is then poisoned.
  void require(const step& this_step, errc code) {
    if (code == errc::ok) return;
    std::string text = title(this_step) + " failed in the middle";
    if (const auto gone = comm_->missing(); !gone.empty()) text += "; " + gone;
    comm_->fail(code, text);
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
    return generation * comm_->size() + rank.index();
  }
  [[nodiscard]] std::size_t refusal_at(const step& this_step, rank_id source) const noexcept {
    const std::size_t generation = 2 * this_step.set + this_step.epoch % 2;
    return map_.refusals + (generation * comm_->size() + source.index()) * cache_line_bytes;
  }
  [[nodiscard]] std::byte* local(std::size_t offset) const noexcept {
    return memory_->local().data() + offset;
  }
  [[nodiscard]] signal_id signal_of(const step& this_step, rank_id source) const noexcept {
    const std::size_t group =
        static_cast<std::size_t>(this_step.which) * map_.in_flight + this_step.set;
    return static_cast<signal_id>(group * comm_->size() + source.index());
  }

  /// Returns the message of `source`. It lies on the board if it came with the counts for all
  /// blocks, and in this rank's part if it came with rows, for this rank alone.
  [[nodiscard]] std::byte* message(const step& this_step, rank_id source) const noexcept {
    const std::size_t offset = message_at(this_step, source);
    return this_step.which == phase::rows ? local(offset) : board_.at(offset);
  }

  static std::size_t write_verdict(const verdict& record, std::byte* target) noexcept {
    static_assert(sizeof record == memory_map::verdict_bytes);
    std::memcpy(target, &record, sizeof record);
    return sizeof record;
  }
  [[nodiscard]] verdict verdict_of(const step& this_step, rank_id source) const noexcept {
    verdict record;
    std::memcpy(&record,
                this_step.which == phase::outputs ? board_.at(refusal_at(this_step, source))
                                                  : message(this_step, source),
                sizeof record);
    return record;
  }

  /// Writes `counts` into `message`. Returns the bytes of the message up to their end.
  std::size_t write_counts(std::span<const std::uint32_t> counts,
                           std::byte* message) const noexcept {
    std::byte* const first = message + map_.counts_at;
    with_count_type(map_.count_bytes, [&]<class Count>(std::type_identity<Count>) noexcept {
      std::transform(counts.begin(), counts.end(), reinterpret_cast<Count*>(first),
                     [](std::uint32_t wide_count) { return static_cast<Count>(wide_count); });
    });
    return map_.counts_at + counts.size() * map_.count_bytes;
  }

  /// Puts `bytes` bytes of this rank's part of the window, from `source` on, to `target` at `peer`.
  void send_part(const step& this_step, rank_id peer, std::size_t target, std::size_t source,
                 std::size_t bytes) {
    require(this_step, memory_->put(peer, target, memory_->local().subspan(source, bytes)));
  }

  [[noreturn]] void fail_waiting(const step& this_step, errc code, std::string_view text_end) {
    constexpr std::array names{"counts", "rows", "outputs"};
    std::string text = peerbus::detail::concat(title(this_step), ": waited for ",
                                               names[static_cast<std::size_t>(this_step.which)]);
    std::size_t named = 0;
    for (const rank_id peer : comm_->ranks()) {
      const std::uint64_t seen = board_.value(signal_of(this_step, peer));
      if (peer == comm_->rank() || seen >= this_step.epoch) continue;
      text += peerbus::detail::concat(named++ == 0 ? " of " : ", ", peer, " (epoch ", seen,
                                      ", expected ", this_step.epoch, ")");
    }
    if (const auto gone = comm_->missing(); !gone.empty()) text += "; " + gone;
    comm_->fail(code, text.append(text_end));
  }

  communicator<Transport>* comm_;
  window<Transport>* memory_;
  notice_board<Transport> board_;
  memory_map map_;
  arrival_clock arrivals_;
};

}  // namespace peerbus::moe::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/count_table.hpp>
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
      : comm_{&comm}, memory_{&memory}, map_{map}, has_come_(comm.size()) {}

  /// Sends all peers the number of this rank's rows for each block and this rank's note, or the
  /// reason why this rank refuses. Peers see it after the next `announce`.
  void post_counts(const step& this_step, std::span<const std::uint32_t> counts,
                   std::span<const std::byte> note, const refusal& own_refusal) {
    const std::size_t offset = message_at(this_step, comm_->rank());
    std::size_t bytes = write_verdict({this_step.epoch, own_refusal, note.size()}, offset);
    if (!own_refusal) {
      bytes = write_counts(counts, offset);
      if (!note.empty()) {
        std::memcpy(local(offset + map_.note_at), note.data(), note.size());
        bytes = map_.note_at + note.size();
      }
    }
    for (const rank_id peer : comm_->peers()) send_part(this_step, peer, offset, offset, bytes);
  }

  /// Does as `post_counts`, but sends each peer only the counts for the blocks that it holds.
  void post_own_counts(const step& this_step, const expert_placement& blocks,
                       std::span<const std::uint32_t> counts, std::span<const std::byte> note,
                       const refusal& own_refusal) {
    const std::size_t target = message_at(this_step, comm_->rank());
    for (const rank_id receiver : comm_->ranks()) {
      const bool is_own = receiver == comm_->rank();
      const std::size_t source = is_own ? target : outbox_at(this_step, receiver);
      std::size_t bytes = write_verdict({this_step.epoch, own_refusal, note.size()}, source);
      if (!own_refusal)
        bytes =
            write_counts(counts.subspan(blocks.first(receiver), blocks.count(receiver)), source);
      if (!is_own) send_part(this_step, receiver, target, source, bytes);
    }
    if (own_refusal || note.empty()) return;
    const std::size_t note_place = target + map_.note_at;
    std::memcpy(local(note_place), note.data(), note.size());
    for (const rank_id peer : comm_->peers())
      send_part(this_step, peer, note_place, note_place, note.size());
  }

  /// Sends all peers the refusal of a combine, or the bytes of one output attachment. Peers see it
  /// after the next `announce`.
  void post_verdict(const step& this_step, const refusal& own_refusal,
                    std::size_t attachment_bytes) {
    const std::size_t offset = refusal_at(this_step, comm_->rank());
    const std::size_t bytes =
        write_verdict({this_step.epoch, own_refusal, attachment_bytes}, offset);
    for (const rank_id peer : comm_->peers()) send_part(this_step, peer, offset, offset, bytes);
  }

  /// Raises this step's signal at all peers.
  void announce(const step& this_step) {
    require(this_step, memory_->signal_each(comm_->peers(), signal_of(this_step, comm_->rank()),
                                            this_step.epoch));
  }

  /// Returns whether all peers have announced the step. Does not wait.
  [[nodiscard]] bool all_came(const step& this_step) const noexcept {
    for (const rank_id peer : comm_->peers())
      if (memory_->value(signal_of(this_step, peer)) < this_step.epoch) return false;
    return true;
  }
  /// Waits until all peers have announced the step. Adds the waits to `waited`, unless it is empty.
  /// Throws: `error` that names the missing ranks and ends with `text_end`. The communicator is
  /// then poisoned.
  void await_all(const step& this_step, deadline until, std::string_view text_end = {},
                 std::span<std::int64_t> waited = {}) {
    if (!waited.empty()) measure_arrivals(this_step, until, waited);
    for (const rank_id peer : comm_->peers()) {
      const errc code = memory_->wait(signal_of(this_step, peer), this_step.epoch, until, peer);
      if (code != errc::ok) fail_waiting(this_step, code, text_end);
    }
  }

  /// Returns the counts of all ranks, which must have announced the step.
  [[nodiscard]] count_table counts(const step& this_step) const noexcept {
    return {local(message_at(this_step, rank_id{0}) + map_.counts_at), map_.message_bytes,
            map_.count_bytes};
  }

  /// Returns the note that `source` sent with its counts, or an empty span if it sent none.
  /// `source` must have announced the step.
  [[nodiscard]] std::span<const std::byte> note(const step& this_step,
                                                rank_id source) const noexcept {
    return {local(message_at(this_step, source) + map_.note_at), brought(this_step, source)};
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

  std::size_t write_verdict(const verdict& record, std::size_t offset) const noexcept {
    static_assert(sizeof record == memory_map::verdict_bytes);
    std::memcpy(local(offset), &record, sizeof record);
    return sizeof record;
  }
  [[nodiscard]] verdict verdict_of(const step& this_step, rank_id source) const noexcept {
    const bool with_counts = this_step.which != phase::outputs;
    verdict record;
    std::memcpy(&record,
                local(with_counts ? message_at(this_step, source) : refusal_at(this_step, source)),
                sizeof record);
    return record;
  }

  /// Writes `counts` into the message at `offset`. Returns the bytes of the message up to their
  /// end.
  std::size_t write_counts(std::span<const std::uint32_t> counts,
                           std::size_t offset) const noexcept {
    std::byte* const first = local(offset + map_.counts_at);
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

  /// Adds to `waited` the time until the signal of each peer arrived. Returns when all signals have
  /// arrived, or when a wait fails, which the caller then finds again.
  void measure_arrivals(const step& this_step, deadline until,
                        std::span<std::int64_t> waited) noexcept {
    using clock = std::chrono::steady_clock;
    // The time between two looks at all signals. It is short compared with the delay of a slow
    // rank.
    constexpr std::chrono::microseconds between_looks{10};
    const auto begin = clock::now();
    std::fill(has_come_.begin(), has_come_.end(), std::uint8_t{0});
    for (;;) {
      const rank_id* missing = nullptr;
      for (const rank_id& peer : comm_->peers()) {
        if (has_come_[peer.index()] != 0) continue;
        if (memory_->value(signal_of(this_step, peer)) < this_step.epoch) {
          missing = &peer;
          continue;
        }
        has_come_[peer.index()] = 1;
        waited[peer.index()] +=
            std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - begin).count();
      }
      if (missing == nullptr || until.expired()) return;
      // A wait that times out makes a system call to check the peers. Therefore a late rank is
      // looked at less often as time passes. An error of a sixteenth of the wait is acceptable.
      const auto next_look =
          deadline::after(std::max<clock::duration>((clock::now() - begin) / 16, between_looks));
      const errc code =
          memory_->wait(signal_of(this_step, *missing), this_step.epoch,
                        next_look.when() < until.when() ? next_look : until, *missing);
      if (code != errc::ok && code != errc::timed_out) return;
    }
  }

  [[noreturn]] void fail_waiting(const step& this_step, errc code, std::string_view text_end) {
    constexpr std::array names{"counts", "rows", "outputs"};
    std::string text = peerbus::detail::concat(title(this_step), ": waited for ",
                                               names[static_cast<std::size_t>(this_step.which)]);
    std::size_t named = 0;
    for (const rank_id peer : comm_->ranks()) {
      const std::uint64_t seen = memory_->value(signal_of(this_step, peer));
      if (peer == comm_->rank() || seen >= this_step.epoch) continue;
      text += peerbus::detail::concat(named++ == 0 ? " of " : ", ", peer, " (epoch ", seen,
                                      ", expected ", this_step.epoch, ")");
    }
    if (const auto gone = comm_->missing(); !gone.empty()) text += "; " + gone;
    comm_->fail(code, text.append(text_end));
  }

  communicator<Transport>* comm_;
  window<Transport>* memory_;
  memory_map map_;
  std::vector<std::uint8_t> has_come_;
};

}  // namespace peerbus::moe::detail

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

/// What ranks tell each other of an exchange besides rows: counts, refusals, and that rows or
/// outputs are there.
template <transport Transport>
class post_office {
 public:
  /// Each batch set has, in each phase, a signal per source rank.
  enum class phase : std::size_t { counts = 0, rows = 1, outputs = 2 };

  /// One phase of an operation as the ranks know it: `epoch` is the value of its signals.
  struct step {
    std::string_view name;  ///< of the operation, for people
    std::uint64_t number;   ///< of the dispatch, for people
    std::size_t set;
    phase which;
    std::uint64_t epoch;
  };

  [[nodiscard]] static constexpr std::size_t signals(const memory_map& map,
                                                     std::size_t ranks) noexcept {
    return 3 * map.in_flight * ranks;
  }

  post_office(communicator<Transport>& comm, window<Transport>& memory, const memory_map& map)
      : comm_{&comm}, memory_{&memory}, map_{map}, came_(comm.size()) {}

  /// Tells all peers how many rows each block gets from here, with this rank's note, or why this
  /// rank refuses.
  void post_counts(const step& now, std::span<const std::uint32_t> counts,
                   std::span<const std::byte> note, const refusal& mine) {
    const std::size_t at = message_at(now, comm_->rank());
    std::size_t bytes = write_verdict({now.epoch, mine, note.size()}, at);
    if (!mine) {
      write_counts(counts, at);
      bytes = memory_map::header_bytes + counts.size() * map_.count_bytes;
      if (!note.empty()) {
        std::memcpy(local(at + map_.note_at), note.data(), note.size());
        bytes = map_.note_at + note.size();
      }
    }
    for (const rank_id peer : comm_->peers())
      require(now, memory_->put(peer, at, memory_->local().subspan(at, bytes)));
    announce(now);
  }

  /// Leaves word at all peers that this rank refuses a combine, or of how many bytes its output
  /// attachments are. Seen with the next `announce`.
  void post_verdict(const step& now, const refusal& mine, std::size_t attachment_bytes) {
    const std::size_t at = refusal_at(now, comm_->rank());
    const std::size_t bytes = write_verdict({now.epoch, mine, attachment_bytes}, at);
    for (const rank_id peer : comm_->peers())
      require(now, memory_->put(peer, at, memory_->local().subspan(at, bytes)));
  }

  /// Raises this step's signal at all peers.
  void announce(const step& now) {
    require(now, memory_->signal_each(comm_->peers(), signal_of(now, comm_->rank()), now.epoch));
  }

  [[nodiscard]] bool all_came(const step& now) const noexcept {
    for (const rank_id peer : comm_->peers())
      if (memory_->value(signal_of(now, peer)) < now.epoch) return false;
    return true;
  }
  /// Throws: `error` that names who is missing, and the communicator is poisoned. `besides` ends
  /// its text.
  void await_all(const step& now, deadline until, std::string_view besides = {},
                 std::span<std::int64_t> waited = {}) {
    if (!waited.empty()) measure_arrivals(now, until, waited);
    for (const rank_id peer : comm_->peers()) {
      const errc code = memory_->wait(signal_of(now, peer), now.epoch, until, peer);
      if (code != errc::ok) fail_waiting(now, code, besides);
    }
  }

  /// What all ranks counted. All of them have come.
  [[nodiscard]] count_table counts(const step& now) const noexcept {
    return {local(message_at(now, rank_id{0}) + memory_map::header_bytes), map_.message_bytes,
            map_.count_bytes};
  }

  /// The note that `source` sent with its counts; empty if it sent none. Its counts have come.
  [[nodiscard]] std::span<const std::byte> note(const step& now, rank_id source) const noexcept {
    return {local(message_at(now, source) + map_.note_at), brought(now, source)};
  }
  /// What `source` said that it brings in this step, in bytes; 0 if it said nothing.
  [[nodiscard]] std::size_t brought(const step& now, rank_id source) const noexcept {
    const verdict said = verdict_of(now, source);
    return said.epoch == now.epoch ? said.brought : 0;
  }

  struct refused_by {
    rank_id rank;
    refusal why;
  };
  /// The lowest peer that refuses this step, if any. All ranks see the same refusals.
  [[nodiscard]] std::optional<refused_by> refused(const step& now) const noexcept {
    for (const rank_id peer : comm_->ranks()) {
      if (peer == comm_->rank()) continue;
      const verdict said = verdict_of(now, peer);
      if (said.epoch == now.epoch && said.why) return refused_by{peer, said.why};
    }
    return std::nullopt;
  }

  static std::string title(const step& now) {
    return peerbus::detail::concat(now.name, " ", now.number);
  }
  void require(const step& now, errc code) {
    if (code == errc::ok) return;
    std::string text = title(now) + " failed in the middle";
    if (const auto gone = comm_->missing(); !gone.empty()) text += "; " + gone;
    comm_->fail(code, text);
  }

 private:
  [[nodiscard]] std::size_t message_at(const step& now, rank_id source) const noexcept {
    // Twice as many generations as batches: a rank may send the counts of a batch's next use while
    // a slow one reads those of this.
    const std::size_t generation = now.epoch % (2 * map_.in_flight);
    return map_.counts + (generation * comm_->size() + source.index()) * map_.message_bytes;
  }
  [[nodiscard]] std::size_t refusal_at(const step& now, rank_id source) const noexcept {
    const std::size_t generation = 2 * now.set + now.epoch % 2;
    return map_.refusals + (generation * comm_->size() + source.index()) * cache_line_bytes;
  }
  [[nodiscard]] std::byte* local(std::size_t offset) const noexcept {
    return memory_->local().data() + offset;
  }
  [[nodiscard]] signal_id signal_of(const step& now, rank_id source) const noexcept {
    const std::size_t group = static_cast<std::size_t>(now.which) * map_.in_flight + now.set;
    return static_cast<signal_id>(group * comm_->size() + source.index());
  }

  std::size_t write_verdict(const verdict& mine, std::size_t at) const noexcept {
    static_assert(sizeof mine <= memory_map::header_bytes);
    std::memcpy(local(at), &mine, sizeof mine);
    return sizeof mine;
  }
  [[nodiscard]] verdict verdict_of(const step& now, rank_id source) const noexcept {
    const bool with_counts = now.which == phase::counts;
    verdict said;
    std::memcpy(&said, local(with_counts ? message_at(now, source) : refusal_at(now, source)),
                sizeof said);
    return said;
  }

  void write_counts(std::span<const std::uint32_t> counts, std::size_t at) const noexcept {
    std::byte* const to = local(at + memory_map::header_bytes);
    with_count_type(map_.count_bytes, [&]<class Count>(std::type_identity<Count>) noexcept {
      std::transform(counts.begin(), counts.end(), reinterpret_cast<Count*>(to),
                     [](std::uint32_t wide) { return static_cast<Count>(wide); });
    });
  }

  /// Adds to `waited` how long each peer's signal lets this rank wait, until all are there or one
  /// of them never will be, which the caller finds again.
  void measure_arrivals(const step& now, deadline until, std::span<std::int64_t> waited) noexcept {
    using clock = std::chrono::steady_clock;
    // Between two looks at all signals; short against what makes a rank worth naming.
    constexpr std::chrono::microseconds between_looks{10};
    const auto begin = clock::now();
    std::fill(came_.begin(), came_.end(), std::uint8_t{0});
    for (;;) {
      const rank_id* open = nullptr;
      for (const rank_id& peer : comm_->peers()) {
        if (came_[peer.index()] != 0) continue;
        if (memory_->value(signal_of(now, peer)) < now.epoch) {
          open = &peer;
          continue;
        }
        came_[peer.index()] = 1;
        waited[peer.index()] +=
            std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - begin).count();
      }
      if (open == nullptr || until.expired()) return;
      // A wait that times out makes a system call to look after the peers. The looks at a rank that
      // is late become rarer therefore, as a sixteenth of the time so far is exact enough.
      const auto next_look =
          deadline::after(std::max<clock::duration>((clock::now() - begin) / 16, between_looks));
      const errc code = memory_->wait(signal_of(now, *open), now.epoch,
                                      next_look.when() < until.when() ? next_look : until, *open);
      if (code != errc::ok && code != errc::timed_out) return;
    }
  }

  [[noreturn]] void fail_waiting(const step& now, errc code, std::string_view besides) {
    constexpr std::array names{"counts", "rows", "outputs"};
    std::string text = peerbus::detail::concat(title(now), ": waited for ",
                                               names[static_cast<std::size_t>(now.which)]);
    std::size_t named = 0;
    for (const rank_id peer : comm_->ranks()) {
      const std::uint64_t seen = memory_->value(signal_of(now, peer));
      if (peer == comm_->rank() || seen >= now.epoch) continue;
      text += peerbus::detail::concat(named++ == 0 ? " of " : ", ", peer, " (epoch ", seen,
                                      ", expected ", now.epoch, ")");
    }
    if (const auto gone = comm_->missing(); !gone.empty()) text += "; " + gone;
    comm_->fail(code, text.append(besides));
  }

  communicator<Transport>* comm_;
  window<Transport>* memory_;
  memory_map map_;
  std::vector<std::uint8_t> came_;
};

}  // namespace peerbus::moe::detail

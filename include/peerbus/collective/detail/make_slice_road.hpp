// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/near_part.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/team_map.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::collective::detail {

/// The road over `Transport`.
template <transport Transport>
class slice_road_over final : public slice_road {
 public:
  /// Whether pages must be put to some peers, so that the memory needs slots.
  static constexpr bool has_slots = !direct_transport<Transport>;

  slice_road_over(communicator<Transport>& comm, const team_map& map, window<Transport> memory)
      : slice_road{comm, map, memory.local().data()}, memory_{std::move(memory)} {
    for (const rank_id peer : comm.peers()) {
      set_near(peer, near_part(memory_, peer));
      all_are_near_ = all_are_near_ && is_near(peer);
    }
    // A few microseconds, or less than it takes to give up a core that a peer needs.
    looks_ = comm.bus().boot().shares_cores() ? 64 : 2048;
  }

  errc publish(std::uint64_t round, bool with_header, reach to_peer) noexcept override {
    // Before the puts, whose source the notice is. Far peers wait for the signal.
    // order: release; pairs with the acquire in `is_published`.
    std::atomic_ref{notice_of_own(round).round}.store(round, std::memory_order_release);
    if constexpr (has_slots)
      for (const rank_id peer : group().peers()) {
        if (is_near(peer)) continue;
        if (const errc code = put(round, peer, with_header, to_peer(peer)); code != errc::ok)
          return code;
      }
    return errc::ok;
  }
  errc signal(std::uint64_t round) noexcept override {
    if constexpr (has_slots)
      return memory_.signal_each(group().peers(), signal_of(group().rank()), value_of(round));
    else
      return memory_.signal(group().rank(), own_signal, round);
  }
  [[nodiscard]] bool look(std::uint64_t round) const noexcept override {
    if (!all_are_near_) return false;
    std::uint32_t looks = looks_;
    for (const rank_id peer : group().peers())
      while (!is_published(round, peer))
        if (looks-- == 0) return false;
    return true;
  }
  errc await(std::uint64_t round, rank_id peer, deadline until) noexcept override {
    if (is_near(peer) && is_published(round, peer)) return errc::ok;
    if constexpr (has_slots)
      return memory_.wait(signal_of(peer), value_of(round), until, peer);
    else
      return memory_.wait_at(peer, own_signal, round, until, peer);
  }
  [[nodiscard]] std::uint64_t latest(rank_id peer) const noexcept override {
    if constexpr (has_slots)
      return memory_.value(signal_of(peer)) / values_per_round();
    else
      return memory_.value_at(peer, own_signal);
  }

  errc send_step(std::uint64_t round, std::uint64_t step, rank_id peer, std::size_t slot,
                 bool with_header, byte_range range) noexcept override {
    if constexpr (has_slots) {
      const signal_id id = signal_of(group().rank());
      const std::uint64_t value = value_of(round - 1) + step;
      if (is_near(peer) || (!with_header && range.bytes == 0))
        return memory_.signal(peer, id, value);
      const std::size_t at = map().slot_at(round, rank_id{slot});
      const std::span own{page(round), team_map::header_bytes + map().page_bytes};
      if (with_header && range.offset == 0)
        return memory_.put_signal(peer, at, own.first(team_map::header_bytes + range.bytes), id,
                                  value);
      if (with_header)
        if (const errc code = send_header(round, peer); code != errc::ok) return code;
      return memory_.put_signal(peer, at + team_map::header_bytes,
                                own.subspan(team_map::header_bytes + range.offset, range.bytes), id,
                                value);
    } else {
      return errc::unsupported;
    }
  }
  errc send_header(std::uint64_t round, rank_id peer) noexcept override {
    return is_near(peer) ? errc::ok : put(round, peer, true, {});
  }
  errc await_step(std::uint64_t round, std::uint64_t step, rank_id peer,
                  deadline until) noexcept override {
    if constexpr (has_slots)
      return memory_.wait(signal_of(peer), value_of(round - 1) + step, until, peer);
    else
      return errc::unsupported;
  }
  [[nodiscard]] bool has_published(std::uint64_t round, rank_id peer) const noexcept override {
    if constexpr (has_slots)
      return memory_.value(signal_of(peer)) == value_of(round);
    else
      return latest(peer) == round;
  }

 private:
  /// The values of a signal that a round takes where it may go in steps: one for each step, and
  /// the last one for a round that is published to all ranks.
  [[nodiscard]] std::uint64_t values_per_round() const noexcept { return group().size() + 1; }
  [[nodiscard]] std::uint64_t value_of(std::uint64_t round) const noexcept {
    return round * values_per_round();
  }

  static constexpr signal_id signal_of(rank_id source) noexcept {
    return static_cast<signal_id>(source.index());
  }

  /// The signal of each rank over a transport with peer memory, where its peers wait for it.
  static constexpr auto own_signal = static_cast<signal_id>(0);

  /// Returns whether the notice of `peer`, which is near, tells of `round`. It comes with the
  /// payload's first bytes, while a signal lies in a line of its own.
  [[nodiscard]] bool is_published(std::uint64_t round, rank_id peer) const noexcept {
    auto& word = const_cast<round_notice&>(notice(round, peer)).round;  // Only loaded.
    // order: acquire; pairs with the release in `publish`.
    return std::atomic_ref{word}.load(std::memory_order_acquire) == round;
  }

  errc put(std::uint64_t round, rank_id peer, bool with_header, byte_range range) noexcept {
    const std::size_t slot = map().slot_at(round, group().rank());
    const std::span own{page(round), team_map::header_bytes + map().page_bytes};
    const std::span<const std::byte> payload =
        own.subspan(team_map::header_bytes + range.offset, range.bytes);
    if (!with_header)
      return range.bytes == 0 ? errc::ok
                              : memory_.put(peer, slot + team_map::header_bytes, payload);
    if (range.offset == 0)
      return memory_.put(peer, slot, own.first(team_map::header_bytes + range.bytes));
    const put_piece pieces[] = {{slot, own.first(team_map::header_bytes)},
                                {slot + team_map::header_bytes, payload}};
    return memory_.put_run(peer, pieces);
  }

  window<Transport> memory_;
  std::uint32_t looks_ = 1;  // At a notice, before waiting for the signal.
  bool all_are_near_ = true;
};

/// Makes the road of `comm`. Collective.
/// Throws, on all ranks: as `communicator::make_window`, and out_of_memory.
template <transport Transport>
std::unique_ptr<slice_road> make_slice_road(communicator<Transport>& comm, const team_map& map,
                                            deadline until) {
  auto memory = comm.make_window(map.window_bytes(), map.signals(), until);
  auto road =
      comm.on_all_ranks("the tables of a team", until, [&]() -> std::unique_ptr<slice_road> {
        return std::make_unique<slice_road_over<Transport>>(comm, map, std::move(memory));
      });
  if constexpr (partly_direct_transport<Transport>) road->find_groups(until);
  return road;
}

}  // namespace peerbus::collective::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/near_part.hpp>
#include <peerbus/collective/team_map.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/near_groups.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::collective::detail {

/// A range of bytes. If a peer reads it from a page, `offset` counts from the start of the payload,
/// and `bytes` is no more than `team_map::slice_bytes`.
struct byte_range {
  std::size_t offset = 0;  ///< where it begins
  std::size_t bytes = 0;   ///< its length

  friend constexpr bool operator==(const byte_range&, const byte_range&) = default;
};

/// Returns the range of the own page that a peer reads.
using reach = peerbus::detail::function_ref<byte_range(rank_id)>;

/// How the page of a rank gets to its peers. Near peers read it where it lies; to far peers it is
/// put. It is the one place of the collectives that knows the transport, and a type of its own, so
/// that everything above it is compiled once.
class slice_road {
 public:
  slice_road(const slice_road&) = delete;
  slice_road& operator=(const slice_road&) = delete;
  virtual ~slice_road() = default;

  /// Publishes the own page of `round`: writes its notice, and puts the range of `to_peer` to each
  /// far peer, with the header if `with_header`. Peers that wait find out by `signal`.
  virtual errc publish(std::uint64_t round, bool with_header, reach to_peer) noexcept = 0;
  /// Signals `round`, which is published, to all peers.
  virtual errc signal(std::uint64_t round) noexcept = 0;
  /// Looks for a short while whether all peers have published their pages of `round`, without a
  /// system call. Returns at once where that cannot be seen.
  [[nodiscard]] virtual bool look(std::uint64_t round) const noexcept = 0;
  /// Waits until `peer` has published its page of `round`.
  virtual errc await(std::uint64_t round, rank_id peer, deadline until) noexcept = 0;
  /// Returns the latest round that `peer` has published to all ranks.
  [[nodiscard]] virtual std::uint64_t latest(rank_id peer) const noexcept = 0;

  // A round may go in steps instead, over transports that put pages. In a step a rank sends some
  // bytes of its page to one peer. docs/memory_model.md explains when that is sound.
  /// Sends a range of the page to `peer` as step `step` of `round`, with the header if
  /// `with_header`, and signals it. Steps count from 1; there are no more than ranks. A far peer
  /// gets the range in its slot number `slot`.
  virtual errc send_step(std::uint64_t round, std::uint64_t step, rank_id peer, std::size_t slot,
                         bool with_header, byte_range range) noexcept = 0;
  /// Puts the header of the page to a far peer, without a signal.
  virtual errc send_header(std::uint64_t round, rank_id peer) noexcept = 0;
  /// Waits until `peer` has sent step `step` of `round` to this rank, or has published the round.
  virtual errc await_step(std::uint64_t round, std::uint64_t step, rank_id peer,
                          deadline until) noexcept = 0;
  /// Returns whether `round` is the latest one of `peer`, and `peer` has published it to all ranks.
  [[nodiscard]] virtual bool has_published(std::uint64_t round, rank_id peer) const noexcept = 0;
  /// Returns what `peer` sent in a step of `round` from byte `page_at` of its payload on, to the
  /// slot number `slot`.
  [[nodiscard]] const std::byte* step_payload(std::uint64_t round, rank_id peer, std::size_t slot,
                                              std::size_t page_at) const noexcept {
    const std::byte* const near = near_[peer.index()];
    return team_map::header_bytes + (near != nullptr ? near + map_.page_at(round) + page_at
                                                     : own_ + map_.slot_at(round, rank_id{slot}));
  }

  /// Returns the group of the ranks.
  [[nodiscard]] rank_group& group() const noexcept { return *group_; }
  /// Returns the places and sizes of the memory.
  [[nodiscard]] const team_map& map() const noexcept { return map_; }
  /// Returns the own page of `round`, header first.
  [[nodiscard]] std::byte* page(std::uint64_t round) const noexcept {
    return own_ + map_.page_at(round);
  }
  /// Returns the header of the page of `peer`, another rank.
  [[nodiscard]] const std::byte* header(std::uint64_t round, rank_id peer) const noexcept {
    const std::byte* const near = near_[peer.index()];
    return near != nullptr ? near + map_.page_at(round) : own_ + map_.slot_at(round, peer);
  }
  /// Returns the notice of a page, of which the own road alone writes and reads `round`.
  [[nodiscard]] round_notice& notice_of_own(std::uint64_t round) const noexcept {
    return *peerbus::detail::placed<round_notice>(page(round) + team_map::notice_at);
  }
  /// Returns the notice of the page of `peer`, another rank.
  [[nodiscard]] const round_notice& notice(std::uint64_t round, rank_id peer) const noexcept {
    return *peerbus::detail::placed<round_notice>(header(round, peer) + team_map::notice_at);
  }
  /// Returns the range of the payload of `peer`, another rank, which begins there at `offset` and
  /// was published for this rank.
  [[nodiscard]] const std::byte* payload(std::uint64_t round, rank_id peer,
                                         std::size_t offset) const noexcept {
    const bool is_near = near_[peer.index()] != nullptr;
    return header(round, peer) + team_map::header_bytes + (is_near ? offset : 0);
  }
  /// Finds the groups of near ranks. Collective.
  void find_groups(bootstrap& boot, deadline until) {
    rank_id leader = group_->rank();
    for (const rank_id peer : group_->peers())
      if (is_near(peer)) leader = std::min(leader, peer);
    groups_ = find_near_groups(*group_, boot, leader, until);
  }
  /// Returns the groups of near ranks.
  [[nodiscard]] const near_groups& groups() const noexcept { return groups_; }
  /// Returns room for a pointer per rank, and for one more.
  [[nodiscard]] std::span<const std::byte*> sources() noexcept { return sources_; }
  /// Returns room for the addresses of operands in a window, by rank.
  [[nodiscard]] std::span<std::byte*> operands() noexcept { return operands_; }
  /// Returns room for the parts of an input that this rank sends to each rank.
  [[nodiscard]] std::span<byte_range> sends() noexcept { return sends_; }
  /// Returns room for the parts of an output that this rank receives from each rank.
  [[nodiscard]] std::span<byte_range> receives() noexcept { return receives_; }

 protected:
  slice_road(rank_group& group, const team_map& map, std::byte* own)
      : group_{&group},
        map_{map},
        own_{own},
        near_(group.size()),
        sources_(group.size() + 1),
        operands_(group.size()),
        sends_(group.size()),
        receives_(group.size()) {}

  /// Notes where the memory of `peer` is read.
  void set_near(rank_id peer, const std::byte* part) noexcept { near_[peer.index()] = part; }
  [[nodiscard]] bool is_near(rank_id peer) const noexcept { return near_[peer.index()] != nullptr; }

 private:
  rank_group* group_;
  team_map map_;
  std::byte* own_;
  near_groups groups_;
  std::vector<const std::byte*> near_;  // By rank: the start of its part, or nullptr.
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> operands_;
  std::vector<byte_range> sends_;
  std::vector<byte_range> receives_;
};

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

}  // namespace peerbus::collective::detail

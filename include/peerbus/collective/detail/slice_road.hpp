// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/team_map.hpp>
#include <peerbus/communicator/near_groups.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

using peerbus::detail::near_groups;

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
/// put. `slice_road_over` alone knows the transport, so that everything above is compiled once.
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
  void find_groups(deadline until) {
    groups_ = peerbus::detail::find_near_groups(*group_, "collective::team: near ranks", until,
                                                [this](rank_id peer) { return is_near(peer); });
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

}  // namespace peerbus::collective::detail

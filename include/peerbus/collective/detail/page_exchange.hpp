// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/way_trials.hpp>
#include <peerbus/collective/team_map.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/member_window.hpp>
#include <peerbus/communicator/near_groups.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>

namespace peerbus::collective::detail {

using peerbus::detail::member_window;
using peerbus::detail::near_groups;

/// A range of bytes. If a peer reads it from a page, `offset` counts from the start of the payload,
/// and `bytes` is no more than `team_map::slice_bytes`.
struct byte_range {
  std::size_t offset = 0;  ///< the first byte
  std::size_t bytes = 0;   ///< its length

  friend constexpr bool operator==(const byte_range&, const byte_range&) = default;
};

/// A callable that returns the range of this rank's page that a peer reads.
using page_range = peerbus::detail::function_ref<byte_range(rank_id)>;

/// The memory through which the ranks of a team publish pages, one in each round. Near peers load a
/// page directly; it is put to far peers. The object also has the tables that operations of the
/// team fill, so that no operation allocates. If ranks of the communicator are gone, the others are
/// renumbered.
///
/// Functions that return `errc` return ok or the first failure of the transport. They cost one call
/// of `any_window` for each peer that they tell or await, with two exceptions: `publish` and `poll`
/// only load and store for near peers, and `signal` costs one call in all.
class page_exchange {
 public:
  /// Takes `whole`, a window of all ranks of the communicator. It must have the sizes of `map`, the
  /// map for the members of its view. `shares_cores` says whether ranks of this host share cores.
  page_exchange(std::shared_ptr<any_window> whole, const team_map& map, bool shares_cores);
  page_exchange(const page_exchange&) = delete;
  page_exchange& operator=(const page_exchange&) = delete;
  ~page_exchange() = default;

  /// Returns the members that `go_on` needs in the present view of the communicator. Allocates.
  [[nodiscard]] std::unique_ptr<member_window> members_of_view() const;
  /// Continues among `members`, and forgets the results of trials. All ranks must load pages.
  void go_on(std::unique_ptr<member_window> members) noexcept;

  /// Publishes this rank's page of `round`: writes its notice, and puts the range of `to_peer` to
  /// each far peer, with the header if `with_header`. Peers that wait are woken by `signal`.
  errc publish(std::uint64_t round, bool with_header, page_range to_peer) noexcept;
  /// Signals `round`, which must be published, to all peers.
  errc signal(std::uint64_t round) noexcept;
  /// Returns whether all peers have published their pages of `round`. Polls for a short while,
  /// without a system call. If a peer is far, returns false at once.
  [[nodiscard]] bool poll(std::uint64_t round) const noexcept;
  /// Waits until `peer` has published its page of `round`.
  errc await(std::uint64_t round, rank_id peer, deadline until) noexcept;
  /// Returns the latest round that `peer` has published to all ranks.
  [[nodiscard]] std::uint64_t latest(rank_id peer) const noexcept;

  // A round may go in steps instead, over transports that put pages. In a step a rank sends some
  // bytes of its page to one peer. docs/proofs.md explains when that is sound.
  /// Sends a range of the page to `peer` as step `step` of `round`, with the header if
  /// `with_header`, and signals it. Steps count from 1; there must be no more steps than ranks. A
  /// far peer gets the range in its slot number `slot`.
  errc send_step(std::uint64_t round, std::uint64_t step, rank_id peer, std::size_t slot,
                 bool with_header, byte_range range) noexcept;
  /// Puts the header of the page to a far peer, without a signal.
  errc send_header(std::uint64_t round, rank_id peer) noexcept;
  /// Waits until `peer` has sent step `step` of `round` to this rank, or has published the round.
  errc await_step(std::uint64_t round, std::uint64_t step, rank_id peer, deadline until) noexcept;
  /// Returns whether `round` is the latest one of `peer`, and `peer` has published it to all ranks.
  [[nodiscard]] bool has_published(std::uint64_t round, rank_id peer) const noexcept;
  /// Returns the bytes that `peer` sent in a step of `round` to slot number `slot`, from byte
  /// `page_at` of its payload on.
  [[nodiscard]] const std::byte* step_payload(std::uint64_t round, rank_id peer, std::size_t slot,
                                              std::size_t page_at) const noexcept {
    const std::byte* const near = memory_->part(peer);
    return team_map::header_bytes + (near != nullptr ? near + map_.page_at(round) + page_at
                                                     : own_ + map_.slot_at(round, rank_id{slot}));
  }

  /// Returns the group of the ranks.
  [[nodiscard]] rank_group& group() const noexcept { return *group_; }
  /// Returns the communicator to which the ranks belong.
  [[nodiscard]] rank_group& communicator() const noexcept { return whole_->group(); }
  /// Returns the number of `rank` in the communicator.
  [[nodiscard]] rank_id in_communicator(rank_id rank) const noexcept {
    return members_ ? members_->group.in_whole(rank) : rank;
  }
  /// Returns the places and sizes of the memory.
  [[nodiscard]] const team_map& map() const noexcept { return map_; }
  /// Returns this rank's page of `round`, header first.
  [[nodiscard]] std::byte* page(std::uint64_t round) const noexcept {
    return own_ + map_.page_at(round);
  }
  /// Returns the header of the page of rank `peer`, which may be this rank.
  [[nodiscard]] const std::byte* header(std::uint64_t round, rank_id peer) const noexcept {
    const std::byte* const near = memory_->part(peer);
    return near != nullptr ? near + map_.page_at(round) : own_ + map_.slot_at(round, peer);
  }
  /// Returns the notice of this rank's page of `round`. Only this class may access its member
  /// `round`.
  [[nodiscard]] round_notice& notice_of_own(std::uint64_t round) const noexcept {
    return *peerbus::detail::placed<round_notice>(page(round) + team_map::notice_at);
  }
  /// Returns the notice of the page of rank `peer`, which may be this rank.
  [[nodiscard]] const round_notice& notice(std::uint64_t round, rank_id peer) const noexcept {
    return *peerbus::detail::placed<round_notice>(header(round, peer) + team_map::notice_at);
  }
  /// Returns the bytes that rank `peer` published for this rank, which begin at byte `offset` of
  /// its payload.
  [[nodiscard]] const std::byte* payload(std::uint64_t round, rank_id peer,
                                         std::size_t offset) const noexcept {
    return header(round, peer) + team_map::header_bytes + (is_near(peer) ? offset : 0);
  }
  /// Returns the results of the team's trials.
  [[nodiscard]] way_trials& trials() noexcept { return trials_; }
  /// Reads private memory of a peer. Contract as `any_window::get_private`.
  errc get_private(rank_id peer, std::uint64_t address, std::span<std::byte> target) noexcept {
    return memory_->get_private(peer, address, target);
  }
  /// Finds the groups of near ranks, for `groups`. Collective.
  /// Throws: as `rank_group::gather`.
  void find_groups(deadline until);
  /// Returns the groups of near ranks.
  [[nodiscard]] const near_groups& groups() const noexcept { return groups_; }
  /// Returns scratch space for one source pointer per rank and one for a residual.
  [[nodiscard]] std::span<const std::byte*> sources() noexcept { return sources_; }
  /// Returns scratch space for the addresses of operands that peers read where they lie, by rank.
  [[nodiscard]] std::span<std::byte*> operands() noexcept { return operands_; }
  /// Returns the table of the parts of an input that this rank sends to each rank.
  [[nodiscard]] std::span<byte_range> sends() noexcept { return sends_; }
  /// Returns the table of the parts of an output that this rank receives from each rank.
  [[nodiscard]] std::span<byte_range> receives() noexcept { return receives_; }

 private:
  /// Returns whether this rank loads the pages of `peer`.
  [[nodiscard]] bool is_near(rank_id peer) const noexcept { return memory_->part(peer) != nullptr; }
  /// Returns whether the notice of `peer`, which must be near, announces `round`. The notice comes
  /// with the payload's first bytes, while a signal lies in a separate line.
  [[nodiscard]] bool is_published(std::uint64_t round, rank_id peer) const noexcept;
  /// Returns the increase of a signal in a round: 1 for each step, and 1 for publishing it.
  [[nodiscard]] std::uint64_t values_per_round() const noexcept { return group_->size() + 1; }
  /// Returns the value of a signal after `round` is published.
  [[nodiscard]] std::uint64_t value_of(std::uint64_t round) const noexcept {
    return round * values_per_round();
  }
  errc put(std::uint64_t round, rank_id peer, bool with_header, byte_range range) noexcept;

  std::shared_ptr<any_window> whole_;
  std::unique_ptr<member_window> members_;  // Unless they are all ranks.
  any_window* memory_;
  rank_group* group_;
  team_map map_;
  std::byte* own_;
  bool has_slots_;            // Some peers cannot load pages, by the transport's type.
  bool all_are_near_;         // All peers can.
  std::uint32_t most_polls_;  // Of notices, before waiting for the signal.
  near_groups groups_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> operands_;
  std::vector<byte_range> sends_;
  std::vector<byte_range> receives_;
  way_trials trials_;
};

/// Makes the pages of a team of the members of `group`'s view, in a window that `make_window`
/// makes. Collective. `access` says how pages get to peers over the transport.
/// Throws, on all ranks: as `communicator::make_window`, and out_of_memory.
std::unique_ptr<page_exchange> make_page_exchange(rank_group& group, bootstrap& boot,
                                                  page_access access, window_source make_window,
                                                  const team_map& map, deadline until);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/page_exchange.ipp>  // IWYU pragma: keep
#endif

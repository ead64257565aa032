// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/communicator/group_view.hpp>
#include <peerbus/communicator/posted_boards.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/communicator/view_agreement.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/concept.hpp>

/// One-sided communication between the ranks of a group: bootstraps, by which ranks meet;
/// transports, which give them windows; and communicators.
namespace peerbus {

/// A group of ranks that share windows. Its constructor, `make_window`, `agree` and `barrier` are
/// collective: all ranks call them in the same order. Ranks that call different ones get an error
/// that says so, or time out if one of them is `barrier`.
///
/// A failure that leaves the ranks out of step (a time-out or a dead peer in the middle of a
/// collective) poisons the communicator: every later collective on it throws `poisoned`. If a rank
/// has died, the others may `continue_without_the_dead`. Otherwise build a new one on a new
/// bootstrap. If the failure was in `barrier` or an exchange and all ranks are alive, the same
/// bootstrap can be used again.
///
/// Threads: collectives of the communicator from one thread at a time; windows as `transport` says;
/// each exchange may have a thread of its own. A communicator is neither copied nor moved, because
/// windows refer to it.
template <transport Transport>
class communicator : public rank_group {
 public:
  /// Cost: one window of ceil(log2 size) signals, and one agreement if `needs_fetch_add` is set.
  /// Throws, on all ranks: `error` unsupported if the transport lacks what `options` need, or as
  /// `make_window`.
  explicit communicator(Transport bus, communicator_options options = {});
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  ~communicator() override;

  /// Returns the transport, for queries and for calls on its own windows.
  [[nodiscard]] Transport& bus() noexcept { return bus_; }
  [[nodiscard]] std::string missing() const override;

  ///@{
  /// Makes a window with `bytes` of zeroed memory and `signals` zero signals on every rank, for
  /// latency traffic unless `shape.traffic` says bulk. Collective. Windows are independent of each
  /// other.
  /// Cost: one agreement, and `make_window` of the transport.
  /// Throws, on all ranks: `error` mismatch if they ask for different shapes, out_of_memory if one
  /// cannot have it, timed_out or peer_dead if one does not come.
  [[nodiscard]] window<Transport> make_window(std::size_t bytes, std::size_t signals);
  [[nodiscard]] window<Transport> make_window(std::size_t bytes, std::size_t signals,
                                              deadline until);
  [[nodiscard]] window<Transport> make_window(window_shape shape);
  [[nodiscard]] window<Transport> make_window(window_shape shape, deadline until);
  ///@}

  ///@{
  /// Returns after all ranks have called it. Collective. Everything that a rank wrote before is
  /// visible to all ranks after.
  /// Cost: ceil(log2 size) signals, one after the other. Where ranks share cores and the transport
  /// has peer memory: one signal, and a wait for each peer's.
  /// `until` bounds the wait for signals. Before them comes `quiet`, which waits for this rank's
  /// bulk puts, too, as long as they move.
  /// Throws: `error` timed_out or peer_dead, and the communicator is poisoned.
  void barrier();
  void barrier(deadline until);
  ///@}

  ///@{
  /// Goes on without the ranks that have died or left since. The living ranks call it, when an
  /// operation has thrown `peer_dead` on them, and agree on the next view without a coordinator,
  /// also if more ranks die meanwhile. No other call of this rank is under way. If no rank is gone,
  /// the view stays as it is. Other communicators on the same bootstrap go on too, before their
  /// next operation.
  ///
  /// In the new view `barrier`, `make_window`, `agree` and windows work as before, and exchanges,
  /// teams and channels that are resumed (`moe::exchange::resume`, `collective::team::resume`) or
  /// made anew. Until then those throw view_changed. The part of a rank that is gone stays in
  /// windows made before, and is memory that nobody shares in later ones. That needs a transport by
  /// which every rank reaches the memory of all (`peer_reach::all`), and a bootstrap that
  /// `can_go_on`.
  ///
  /// Over other transports a bootstrap with `messages` is needed, such as a `tcp_bootstrap` whose
  /// `tcp_settings::mesh` is set. Then the ranks only agree on the view: of this communicator, and
  /// of all that is made from it, `survivors` alone works in it, and operations throw poisoned. A
  /// rank that is out of reach may live, and take this one for out of reach: without such ranks
  /// only more than half of the members of the view go on, or half of them with the first.
  /// Cost: each living rank writes the set of dead ranks once, or again if it grows, and reads that
  /// of all; by `messages`, a message to each rank for that.
  /// Throws: `error` unsupported over others; timed_out, with a living rank that did not call;
  /// view_changed if the others went on without this rank; unreachable if ranks are out of reach
  /// and too few are left. The communicator is as before.
  const group_view& continue_without_the_dead();
  const group_view& continue_without_the_dead(deadline until);
  ///@}
  ///@{
  /// Goes on without `evicted` too, who may live, be stopped or out of reach: for who decides that
  /// they are out. Then does as `continue_without_the_dead`. All others call this, or that once a
  /// call of theirs has failed, again while it returns the view that they are in. Ranks that are
  /// gone may be named again.
  ///
  /// Processes that share memory with this one in windows that go on to be used are ended as by
  /// `kill -9`, as they could still write there. Over transports where the ranks only agree, they
  /// are not: an evicted rank gets view_changed when it calls this or `continue_without_the_dead`.
  /// Waits of the others, and of an evicted rank that lives, end with peer_dead as soon as they
  /// hear of it, as after a death. One side decides: ranks that name each other at the same time
  /// may both go on, and so may one that is out of reach and goes on with others. After timed_out
  /// the ranks stay named: call again.
  /// Throws: `error` invalid_argument if `evicted` names the caller or no rank; as
  /// `membership::end` and `continue_without_the_dead`.
  const group_view& continue_without(std::span<const rank_id> evicted);
  const group_view& continue_without(std::span<const rank_id> evicted, deadline until);
  ///@}
  [[nodiscard]] std::vector<std::byte> gather_in_view(std::string_view doing,
                                                      std::span<const std::byte> own,
                                                      deadline until) override;
  void end_together(std::string_view doing, deadline until) override {
    if (agreement_) static_cast<void>(gather_in_view(doing, {}, until));
  }

 private:
  /// Does the work of `barrier`, whose number is `barrier_epoch_`.
  void meet(deadline until);
  static constexpr std::size_t barrier_rounds(std::size_t ranks) noexcept {
    return static_cast<unsigned>(std::bit_width(ranks - 1));
  }

  window<Transport> make_control_window(bool needs_fetch_add);
  std::unique_ptr<detail::posted_boards> make_posted_boards();
  std::optional<detail::view_agreement> make_agreement();
  [[nodiscard]] detail::view_agreement& agreement(std::string_view doing);
  const group_view& go_on(std::span<const rank_id> evicted, deadline until);
  void require(errc code);

  window<Transport> make_agreed_window(window_shape shape, deadline until);

  Transport bus_;
  bool shares_cores_;  // All ranks find the same if the transport is direct.
  /// The number of the next window. Before `control_`, which has the first.
  std::uint32_t windows_ = 0;
  std::unique_ptr<detail::posted_boards> posted_;  ///< null if ranks go on in this memory or not
  window<Transport> control_;
  std::optional<detail::view_agreement> agreement_;  ///< empty if the transport does not go on
  std::uint64_t barrier_epoch_ = 0;
  std::shared_ptr<rank_group*> self_ = std::make_shared<rank_group*>(this);  ///< ends with this
};

}  // namespace peerbus

#include <peerbus/communicator/communicator.ipp>  // IWYU pragma: keep

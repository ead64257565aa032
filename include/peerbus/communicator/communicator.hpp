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
/// collective: all ranks call them in the same order. Ranks that call different functions get an
/// error that says so, or time out if one of the functions is `barrier`.
///
/// A failure that leaves the ranks out of step (a time-out or a dead peer in the middle of a
/// collective) poisons the communicator: every later collective on it throws `poisoned`. If a rank
/// has died, the others may `continue_without_the_dead`. Otherwise build a new communicator on a
/// new bootstrap. If the failure was in `barrier` or an exchange and all ranks are alive, the same
/// bootstrap can be used again.
///
/// Threads: collectives of the communicator from one thread at a time; windows as `transport` says;
/// each exchange may have a thread of its own. A communicator is neither copied nor moved, because
/// windows refer to it.
template <transport Transport>
class communicator : public rank_group {
 public:
  /// Makes the communicator of all ranks that `bus` connects. Collective.
  /// Cost: one window of ceil(log2 size) signals, and one agreement if `needs_fetch_add` is set.
  /// Throws, on all ranks: `error` unsupported if the transport lacks a feature that `options`
  /// need, or as `make_window`.
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
  /// Throws, on all ranks: `error` mismatch if ranks ask for different shapes, out_of_memory if a
  /// rank cannot allocate it, timed_out or peer_dead if a rank does not call.
  [[nodiscard]] window<Transport> make_window(std::size_t bytes, std::size_t signals);
  [[nodiscard]] window<Transport> make_window(std::size_t bytes, std::size_t signals,
                                              deadline until);
  [[nodiscard]] window<Transport> make_window(window_shape shape);
  [[nodiscard]] window<Transport> make_window(window_shape shape, deadline until);
  ///@}

  ///@{
  /// Waits until all ranks have called it. Collective. Everything that a rank wrote before the call
  /// is visible to all ranks after it. First calls `quiet`, which waits for all puts of this rank,
  /// also bulk puts, as long as they progress. Then waits for signals, no longer than `until`.
  /// Cost: ceil(log2 size) signals, one after the other. Where ranks share cores and the transport
  /// has peer memory: one signal, and a wait for the signal of each peer.
  /// Throws: `error` timed_out or peer_dead, and the communicator is poisoned.
  void barrier();
  void barrier(deadline until);
  ///@}

  ///@{
  /// Continues without the ranks that have died or left. The living ranks call it after an
  /// operation has thrown `peer_dead` on them, and agree on the next view without a coordinator,
  /// also if more ranks die meanwhile. No other call of this rank may be under way. If no rank is
  /// gone, the view is unchanged. Other communicators on the same bootstrap continue too, before
  /// their next operation.
  ///
  /// In the new view `barrier`, `make_window`, `agree` and windows work as before, and so do
  /// exchanges, teams and channels after they are resumed (`moe::exchange::resume`,
  /// `collective::team::resume`) or made again. Until then they throw view_changed. In windows made
  /// before, the part of a rank that is gone remains. In later windows, that part is memory that no
  /// other rank shares. This needs a transport by which every rank reaches the memory of all
  /// (`peer_reach::all`), and a bootstrap that `can_go_on`.
  ///
  /// Other transports need a bootstrap with `messages`, such as a `tcp_bootstrap` whose
  /// `tcp_settings::mesh` is set. Then the ranks only agree on the view: of this communicator and
  /// all objects made from it, only `survivors` works in the new view, and operations throw
  /// poisoned. A rank that is out of reach may live, and may consider this rank out of reach. The
  /// others continue without such ranks only if they are more than half of the view's members, or
  /// half of them with its first member.
  /// Cost: each living rank writes the set of dead ranks once, or again if it grows, and reads the
  /// sets of all; with `messages`, that takes a message to each rank.
  /// Throws: `error` unsupported over any other transport or bootstrap; timed_out, with a living
  /// rank that did not call; view_changed if the others continued without this rank; unreachable if
  /// ranks are out of reach and too few are left. The communicator is then unchanged.
  const group_view& continue_without_the_dead();
  const group_view& continue_without_the_dead(deadline until);
  ///@}
  ///@{
  /// Continues also without the ranks `evicted`, which may live, be stopped or be out of reach: for
  /// a caller that decides to exclude them. Otherwise as `continue_without_the_dead`. All other
  /// ranks call either function after a call of theirs has failed, and again while it returns their
  /// present view. Ranks that are gone may be named again.
  ///
  /// If windows remain in use, evicted processes that share their memory with this process are
  /// ended as by `kill -9`, because they could still write there. Over transports where the ranks
  /// only agree, they are not ended: an evicted rank gets view_changed when it calls this or
  /// `continue_without_the_dead`. Waits of the other ranks, and of an evicted rank that lives, end
  /// with peer_dead when they learn of the eviction, as after a death.
  ///
  /// If ranks name each other at the same time, at most one side continues. The others get
  /// view_changed. Ranks that continue without a connected rank must be more than half of the
  /// view's members, or half of them with its first member. Fewer ranks wait until each such rank
  /// has ended or left, or has learned of the eviction by a call of its own. Of ranks that are out
  /// of reach, the caller must know that they do not continue. After timed_out and unreachable the
  /// ranks stay named: call again.
  /// Throws: `error` invalid_argument if `evicted` names the caller or a rank that does not exist;
  /// as `membership::end` and `continue_without_the_dead`.
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
  /// Does the work of the `barrier` with number `barrier_epoch_`.
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
  /// The number of the next window. Declared before `control_`, which has the first number.
  std::uint32_t windows_ = 0;
  std::unique_ptr<detail::posted_boards> posted_;  ///< null unless ranks post views
  window<Transport> control_;
  std::optional<detail::view_agreement> agreement_;  ///< empty if ranks cannot continue
  std::uint64_t barrier_epoch_ = 0;
  /// The address of this object. Weak references to it expire when the object is destroyed.
  std::shared_ptr<rank_group*> self_ = std::make_shared<rank_group*>(this);
};

}  // namespace peerbus

#include <peerbus/communicator/communicator.ipp>  // IWYU pragma: keep

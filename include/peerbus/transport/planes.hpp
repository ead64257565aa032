// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/archetype.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/planes/group.hpp>
#include <peerbus/transport/planes/options.hpp>
#include <peerbus/transport/planes/pair.hpp>
#include <peerbus/transport/planes/traffic.hpp>
#include <peerbus/transport/planes/wakeups.hpp>
#include <peerbus/transport/planes/window.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus {

/// Connects near ranks, such as the ranks of one host, by `Near`, and all other pairs of ranks by
/// `Far`. Near ranks are reached by stores and far ranks by requests, in the same window and with
/// the same signals.
///
/// `Near` makes the memory of a window, and `Far` makes it reachable for far ranks, so nothing is
/// stored twice. A signal is one word. Near ranks raise it by a store, and its owner raises it for
/// far ranks. A pair of ranks always uses the same plane, so each pair keeps its order. If all
/// ranks are near each other, there is no `Far`: no memory is locked, and no device is needed. Puts
/// take any local memory if all planes in use do. With far ranks, all `fetch_add`s use `Far`,
/// because a processor's atomics and a device's need not be atomic with respect to each other. A
/// wait polls both planes, yields, then sleeps for both (docs/planes.md). `Near` may be `planes`,
/// with groups inside the group, and so may `Far` if its `Near` can adopt memory.
///
/// Cost: a put, get or signal adds a load of a table and up to two atomic additions. A signal to a
/// near rank may add a load that tells whether the peer sleeps. `make_window` takes that of `Near`,
/// one call of `bootstrap::allgather`, and `adopt_window` of `Far`.
template <near_transport Near, adopting_transport Far, wait_policy Wait = adaptive_wait>
class planes : public detail::ranks_of<Near> {
  using pair = detail::plane_pair<Near, Far>;

 public:
  /// A window of both planes, over the same memory.
  using window = typename pair::window;

  /// The refinements of `planes`. Some depend on `Near` and `Far`.
  static constexpr transport_refinements refines{
      .find_peer_memory = true,
      .put_run = true,
      .signal_each = true,
      .describe_trouble = detail::refinements_of<Near>().describe_trouble ||
                          detail::refinements_of<Far>().describe_trouble,
      .adopt_window = adopting_transport<Near>,
      .local_signals = true,
      .arrival_events = pair::has_wakeups};

  /// Makes both planes over `boot`. Collective.
  /// Cost: three allgathers, a subgroup, and the cost of `Near` and `Far`. If either of them has
  /// arrival events, also a window of `Near` and two allgathers of the near ranks. If all ranks are
  /// near, nothing for `Far`, and no subgroup unless they met over TCP.
  /// Throws, on all ranks: `error` mismatch if only some ranks name their group; with the group's
  /// name and ranks, the error that `Near` throws, such as unsupported if the ranks of a group
  /// cannot map each other's memory; the error that `Far` throws on a rank, also if it throws on
  /// this rank alone.
  explicit planes(bootstrap& boot, const planes_options& options = {}, Wait policy = {})
    requires std::constructible_from<Near, bootstrap&> && std::constructible_from<Far, bootstrap&>
      : planes{boot, options, [](bootstrap& group) { return Near{group}; },
               [](bootstrap& all) { return Far{all}; }, policy} {}

  /// Makes both planes by `make_near(bootstrap&)` and `make_far(bootstrap&)`. Collective.
  /// `make_near` gets the bootstrap of the near ranks. `make_far` gets a bootstrap that acts as
  /// `boot` and lives as long as the planes; it is not called if all ranks are near.
  /// Cost: as the constructor without functions.
  /// Throws: as the constructor without functions. If a function throws `std::bad_alloc`, the error
  /// is out_of_memory; for any other `std::exception`, it is system with the text of the exception.
  template <class MakeNear, class MakeFar>
    requires std::same_as<std::invoke_result_t<MakeNear&, bootstrap&>, Near> &&
                 std::same_as<std::invoke_result_t<MakeFar&, bootstrap&>, Far>
  planes(bootstrap& boot, const planes_options& options, MakeNear make_near, MakeFar make_far,
         Wait policy = {})
      : thresholds_{policy.thresholds(boot.ranks_here(), boot.cores_here())},
        pair_{boot, options, make_near, make_far} {
    // Sleeping on a descriptor takes several system calls where a futex takes one. So other ranks
    // are given their turn more often before, as in `verbs`.
    if constexpr (pair::has_wakeups) thresholds_.yields *= 8;
  }

  /// Returns the ranks that are near the caller, in ascending order and including the caller.
  [[nodiscard]] std::span<const rank_id> near_ranks() const noexcept { return group().members(); }
  /// Returns whether there is a far plane, because some ranks are far from each other.
  [[nodiscard]] bool has_far() const noexcept { return far() != nullptr; }
  ///@{
  /// Returns the traffic of this rank over one plane. Does not count loads and stores through
  /// `find_peer_memory`, which an exchange uses for near ranks.
  [[nodiscard]] plane_traffic near_traffic() const noexcept { return pair_.traffic().near.read(); }
  [[nodiscard]] plane_traffic far_traffic() const noexcept { return pair_.traffic().far.read(); }
  ///@}
  /// Returns the number of bytes in this rank's windows that `Far` has adopted, and so may have
  /// locked. Includes windows that peers have not released yet.
  [[nodiscard]] std::size_t adopted_bytes() const noexcept { return pair_.adopted_bytes(); }

  ///@{
  /// Implements a call of the concept `transport`, which states its contract.
  [[nodiscard]] bootstrap& boot() const noexcept { return pair_.boot(); }
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    const transport_capabilities of_near = near().capabilities();
    if (far() == nullptr) return of_near;
    const transport_capabilities of_far = far()->capabilities();
    return {.any_local_memory = of_near.any_local_memory && of_far.any_local_memory,
            .fetch_add = of_far.fetch_add,
            .traffic_classes = of_far.traffic_classes};
  }
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    return pair_.make([&] { return near().make_window(shape, until); }, shape.traffic, until);
  }
  [[nodiscard]] window adopt_window(window_memory memory, deadline until)
    requires adopting_transport<Near>
  {
    const traffic_class traffic = memory.traffic;
    return pair_.make([&] { return near().adopt_window(std::move(memory), until); }, traffic,
                      until);
  }
  [[nodiscard]] std::span<std::byte> local(const window& memory) const noexcept {
    return near().local(memory.near());
  }
  [[nodiscard]] std::span<signal_word> local_signals(const window& memory) const noexcept {
    return memory.signals();
  }
  [[nodiscard]] std::byte* find_peer_memory(const window& memory, rank_id peer) const noexcept {
    return group().is_near(peer) ? pair_.near_memory(memory.near(), group().number_of(peer))
                                 : nullptr;
  }

  [[nodiscard]] errc put(rank_id peer, const window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    return pair_.by_plane(
        peer, source.size(), 1,
        [&](rank_id number) noexcept { return near().put(number, memory.near(), offset, source); },
        [&]() noexcept { return far()->put(peer, memory.far(), offset, source); });
  }
  [[nodiscard]] errc put_run(rank_id peer, const window& memory,
                             std::span<const put_piece> pieces) noexcept {
    std::size_t bytes = 0;
    for (const put_piece& piece : pieces) bytes += piece.source.size();
    return pair_.by_plane(
        peer, bytes, pieces.size(),
        [&](rank_id number) noexcept {
          return detail::put_run(near(), number, memory.near(), pieces);
        },
        [&]() noexcept { return detail::put_run(*far(), peer, memory.far(), pieces); });
  }
  [[nodiscard]] errc signal(rank_id peer, const window& memory, signal_id id,
                            std::uint64_t value) noexcept {
    return pair_.by_plane(
        peer, 0, 1,
        [&](rank_id number) noexcept {
          const errc code = near().signal(number, memory.near(), id, value);
          if (code == errc::ok) pair_.wake(number, memory, id);
          return code;
        },
        [&]() noexcept { return far()->signal(peer, memory.far(), id, value); });
  }
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, const window& memory, signal_id id,
                                 std::uint64_t value) noexcept {
    if (index(id) >= memory.signals().size()) return errc::out_of_range;
    for (const rank_id peer : peers)
      if (peer.index() >= group().all()) return errc::out_of_range;
    // Far ones first, so that they travel meanwhile.
    for (const rank_id peer : peers)
      if (!group().is_near(peer))
        if (const errc code = signal(peer, memory, id, value); code != errc::ok) return code;
    for (std::size_t i = 0; i < peers.size();) {
      std::array<rank_id, 64> numbers;
      std::size_t count = 0;
      for (; i < peers.size() && count < numbers.size(); ++i)
        if (group().is_near(peers[i])) numbers[count++] = group().number_of(peers[i]);
      if (count == 0) break;  // The others are far.
      const std::span<const rank_id> batch{numbers.data(), count};
      if (const errc code = detail::signal_each(near(), batch, memory.near(), id, value);
          code != errc::ok)
        return code;
      for (const rank_id number : batch) pair_.wake(number, memory, id);
      pair_.traffic().near.add(0, count);
    }
    return errc::ok;
  }
  [[nodiscard]] errc put_signal(rank_id peer, const window& memory, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    return pair_.by_plane(
        peer, source.size(), 1,
        [&](rank_id number) noexcept {
          const errc code = near().put_signal(number, memory.near(), offset, source, id, value);
          if (code == errc::ok) pair_.wake(number, memory, id);
          return code;
        },
        [&]() noexcept {
          return far()->put_signal(peer, memory.far(), offset, source, id, value);
        });
  }
  [[nodiscard]] errc get(rank_id peer, const window& memory, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    return pair_.by_plane(
        peer, target.size(), 1,
        [&](rank_id number) noexcept { return near().get(number, memory.near(), offset, target); },
        [&]() noexcept { return far()->get(peer, memory.far(), offset, target); });
  }
  [[nodiscard]] errc fetch_add(rank_id peer, const window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    const errc code = far() == nullptr
                          ? near().fetch_add(peer, memory.near(), offset, addend, before)
                          : far()->fetch_add(peer, memory.far(), offset, addend, before);
    detail::pair_traffic& traffic = pair_.traffic();
    if (code == errc::ok) (far() == nullptr ? traffic.near : traffic.far).add(0);
    return code;
  }

  [[nodiscard]] errc wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    return pair_.wait(memory, id, value, until, awaited, thresholds_);
  }
  [[nodiscard]] std::uint64_t value(const window& memory, signal_id id) const noexcept {
    return pair_.poll(memory, id);
  }

  [[nodiscard]] errc flush(rank_id peer) noexcept {
    if (peer.index() >= group().all()) return errc::out_of_range;
    return group().is_near(peer) ? near().flush(group().number_of(peer)) : far()->flush(peer);
  }
  [[nodiscard]] errc quiet() noexcept {
    const errc code = near().quiet();
    return code == errc::ok && far() != nullptr ? far()->quiet() : code;
  }
  [[nodiscard]] errc progress() noexcept {
    const errc code = near().progress();
    return code == errc::ok && far() != nullptr ? far()->progress() : code;
  }
  [[nodiscard]] std::string describe_trouble() const
    requires(refines.describe_trouble)
  {
    std::string text = detail::describe_trouble(near());
    if (far() == nullptr) return text;
    const std::string of_far = detail::describe_trouble(*far());
    return text.empty() || of_far.empty() ? text + of_far : text + "; " + of_far;
  }

  [[nodiscard]] int arrival_fd() const noexcept
    requires(refines.arrival_events)
  {
    return pair_.arrival_fd();
  }
  [[nodiscard]] bool arm() noexcept
    requires(refines.arrival_events)
  {
    return pair_.arm(detail::wakeups::any_signal);
  }
  void disarm() noexcept
    requires(refines.arrival_events)
  {
    pair_.disarm();
  }
  [[nodiscard]] errc health(std::optional<rank_id> awaited) noexcept
    requires(refines.arrival_events)
  {
    return pair_.health(awaited);
  }
  ///@}

 private:
  [[nodiscard]] const detail::plane_group& group() const noexcept { return pair_.group(); }
  [[nodiscard]] auto& near() noexcept { return pair_.near(); }
  [[nodiscard]] auto& near() const noexcept { return pair_.near(); }
  [[nodiscard]] Far* far() noexcept { return pair_.far(); }
  [[nodiscard]] const Far* far() const noexcept { return pair_.far(); }

  wait_thresholds thresholds_;
  pair pair_;
};

static_assert(partly_direct_transport<planes<loopback, adopting_transport_archetype>> &&
              adopting_transport<planes<loopback, loopback>> &&
              near_transport<planes<loopback, loopback>> &&
              runnable_transport<planes<loopback, loopback>>);

}  // namespace peerbus

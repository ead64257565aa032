// SPDX-License-Identifier: MIT
#pragma once

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
#include <peerbus/transport/archetype.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

namespace detail {

/// Returns whether a decorator can keep the refinements `kept` of a transport that has `all`.
consteval bool can_keep(transport_refinements kept, transport_refinements all) {
  return kept.peer_memory <= all.peer_memory && kept.find_peer_memory <= all.find_peer_memory &&
         kept.put_run <= all.put_run && kept.signal_each <= all.signal_each &&
         kept.describe_trouble <= all.describe_trouble && kept.adopt_window <= all.adopt_window &&
         kept.local_signals <= all.local_signals && kept.arrival_events <= all.arrival_events &&
         kept.private_memory <= all.private_memory && kept.reach <= all.reach;
}

/// The base of a decorator, with `ranks_are`, and `run_ranks` if it exists, of a transport that
/// `run` can make. Empty for other transports.
template <class T>
struct ranks_of {};
template <runnable_transport T>
struct ranks_of<T> {
  static constexpr rank_kind ranks_are = T::ranks_are;
  template <class F>
    requires(T::ranks_are == rank_kind::fibres)
  [[nodiscard]] static int run_ranks(std::size_t n, F f) {
    return T::run_ranks(n, std::move(f));
  }
};

}  // namespace detail

/// A transport that forwards every call to another transport. Derive from it, and write the calls
/// that differ; they hide the decorator's calls:
///
///     class quiet_log : public peerbus::transport_decorator<peerbus::unified_bus> {
///      public:
///       using transport_decorator::transport_decorator;
///       [[nodiscard]] peerbus::errc quiet() noexcept {
///         ++calls;
///         return inner().quiet();
///       }
///       std::size_t calls = 0;
///     };
///
/// `Inner` is the type of the held transport, or a reference to a transport that outlives the
/// decorator. `Kept` names the refinements that the decorator forwards: by default, all refinements
/// of the inner transport. Calls are forwarded one by one. So a class that changes `put` must also
/// change `put_signal` and `put_run`, and a class that changes `signal` also `put_signal` and
/// `signal_each`, or leave the refinements out of `Kept`. If `peer_memory` is kept, a signal to any
/// rank follows all puts (requirement 13). `wait` and `wait_at` must change together. Stores
/// through `peer_memory` pass no decorator. A class that adds a refinement declares `refines`
/// again.
///
/// Windows are those of the inner transport. A derived class may have its own type of window if it
/// converts to the inner window.
///
/// Results, errors, ordering and threads are those of the inner transport. Forwarding costs
/// nothing, because no call is virtual.
template <class Inner,
          transport_refinements Kept = detail::refinements_of<std::remove_reference_t<Inner>>()>
  requires transport<std::remove_reference_t<Inner>>
class transport_decorator : public detail::ranks_of<std::remove_reference_t<Inner>> {
 public:
  /// The type of the held transport, without a reference.
  using inner_transport = std::remove_reference_t<Inner>;
  /// The window of the inner transport.
  using window = typename inner_transport::window;

  /// The refinements that the decorator forwards.
  static constexpr transport_refinements refines = Kept;
  static_assert(detail::can_keep(Kept, detail::refinements_of<inner_transport>()),
                "Kept names a refinement that the inner transport does not have");

  /// Makes the inner transport over `boot`, as its own constructor does.
  explicit transport_decorator(bootstrap& boot)
    requires std::constructible_from<Inner, bootstrap&>
      : inner_{boot} {}
  /// Takes the transport `inner`, or keeps a reference to it if `Inner` is a reference.
  explicit transport_decorator(Inner inner) : inner_{std::forward<Inner>(inner)} {}

  ///@{
  /// Forwards the call to the inner transport. The concept `transport` states its contract.
  [[nodiscard]] bootstrap& boot() const noexcept { return inner_.boot(); }
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    return inner_.capabilities();
  }
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    return inner_.make_window(shape, until);
  }
  [[nodiscard]] std::span<std::byte> local(const window& memory) const noexcept {
    return inner_.local(memory);
  }
  [[nodiscard]] errc put(rank_id peer, const window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    return inner_.put(peer, memory, offset, source);
  }
  [[nodiscard]] errc signal(rank_id peer, const window& memory, signal_id id,
                            std::uint64_t value) noexcept {
    return inner_.signal(peer, memory, id, value);
  }
  [[nodiscard]] errc put_signal(rank_id peer, const window& memory, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    return inner_.put_signal(peer, memory, offset, source, id, value);
  }
  [[nodiscard]] errc get(rank_id peer, const window& memory, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    return inner_.get(peer, memory, offset, target);
  }
  [[nodiscard]] errc fetch_add(rank_id peer, const window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    return inner_.fetch_add(peer, memory, offset, addend, before);
  }
  [[nodiscard]] errc wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    return inner_.wait(memory, id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value(const window& memory, signal_id id) const noexcept {
    return inner_.value(memory, id);
  }
  [[nodiscard]] errc flush(rank_id peer) noexcept { return inner_.flush(peer); }
  [[nodiscard]] errc quiet() noexcept { return inner_.quiet(); }
  [[nodiscard]] errc progress() noexcept { return inner_.progress(); }

  [[nodiscard]] std::byte* peer_memory(const window& memory, rank_id peer) const noexcept
    requires(Kept.peer_memory)
  {
    return inner_.peer_memory(memory, peer);
  }
  [[nodiscard]] errc wait_at(rank_id owner, const window& memory, signal_id id, std::uint64_t value,
                             deadline until, std::optional<rank_id> awaited) noexcept
    requires(Kept.peer_memory || Kept.reach)
  {
    return inner_.wait_at(owner, memory, id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value_at(rank_id owner, const window& memory,
                                       signal_id id) const noexcept
    requires(Kept.peer_memory || Kept.reach)
  {
    return inner_.value_at(owner, memory, id);
  }
  [[nodiscard]] std::byte* find_peer_memory(const window& memory, rank_id peer) const noexcept
    requires(Kept.find_peer_memory)
  {
    return inner_.find_peer_memory(memory, peer);
  }
  [[nodiscard]] peer_reach reach() const noexcept
    requires(Kept.reach)
  {
    return inner_.reach();
  }
  [[nodiscard]] errc put_run(rank_id peer, const window& memory,
                             std::span<const put_piece> pieces) noexcept
    requires(Kept.put_run)
  {
    return inner_.put_run(peer, memory, pieces);
  }
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, const window& memory, signal_id id,
                                 std::uint64_t value) noexcept
    requires(Kept.signal_each)
  {
    return inner_.signal_each(peers, memory, id, value);
  }
  [[nodiscard]] std::string describe_trouble() const
    requires(Kept.describe_trouble)
  {
    return inner_.describe_trouble();
  }
  [[nodiscard]] window adopt_window(window_memory memory, deadline until)
    requires(Kept.adopt_window)
  {
    return inner_.adopt_window(std::move(memory), until);
  }
  [[nodiscard]] std::span<signal_word> local_signals(const window& memory) const noexcept
    requires(Kept.local_signals)
  {
    return inner_.local_signals(memory);
  }
  [[nodiscard]] errc get_private(rank_id peer, const window& memory, std::uint64_t address,
                                 std::span<std::byte> target) noexcept
    requires(Kept.private_memory)
  {
    return inner_.get_private(peer, memory, address, target);
  }
  [[nodiscard]] int arrival_fd() const noexcept
    requires(Kept.arrival_events)
  {
    return inner_.arrival_fd();
  }
  [[nodiscard]] bool arm() noexcept
    requires(Kept.arrival_events)
  {
    return inner_.arm();
  }
  void disarm() noexcept
    requires(Kept.arrival_events)
  {
    inner_.disarm();
  }
  [[nodiscard]] errc health(std::optional<rank_id> awaited) noexcept
    requires(Kept.arrival_events)
  {
    return inner_.health(awaited);
  }
  ///@}

 protected:
  ///@{
  /// Returns the inner transport, for the calls of a derived class.
  [[nodiscard]] inner_transport& inner() noexcept { return inner_; }
  [[nodiscard]] const inner_transport& inner() const noexcept { return inner_; }
  ///@}

 private:
  Inner inner_;
};

static_assert(transport<transport_decorator<transport_archetype>> &&
              transport<transport_decorator<transport_archetype&>> &&
              direct_transport<transport_decorator<direct_transport_archetype>> &&
              partly_direct_transport<transport_decorator<partly_direct_transport_archetype>> &&
              adopting_transport<transport_decorator<adopting_transport_archetype>>);
static_assert(
    transport<transport_decorator<direct_transport_archetype, transport_refinements{}>> &&
    !direct_transport<transport_decorator<direct_transport_archetype, transport_refinements{}>>);

}  // namespace peerbus

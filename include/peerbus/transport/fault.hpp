// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/archetype.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/fault/carrier.hpp>
#include <peerbus/transport/fault/schedule.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

namespace detail {

/// A decorator that forwards no refinement.
template <transport T>
using plain_decorator = transport_decorator<T&, transport_refinements{}>;

}  // namespace detail

/// The transport `T` with faults, for tests of code that is built on transports. A `fault_schedule`
/// names them: calls that are carried out late or in another order, a rank that pauses, a request
/// that fails, a rank that is lost, a put with wrong bounds. The default schedule only delays and
/// reorders, which the contract of `transport` allows at any time.
///
/// Loads and stores pass no transport, so peers' memory is not reached. An exchange takes the
/// staged path, as over a network.
///
/// Completion: a put, get or signal that is delayed or reordered has returned ok and is held. It is
/// carried out at the latest when `longest_delay` requests and looks of this rank have followed. A
/// wait carries out all held calls before it sleeps. `quiet`, a collective of the bootstrap and the
/// end of a window carry out all held calls, and `flush` the calls held for its peer. So a rank
/// that computes between its calls delays its peers, as over a transport that progresses by calls.
/// `fetch_add` is never held.
///
/// Ordering: as the contract promises, and no more. Puts and gets to one peer may pass each other
/// between two signals to it, and so may all calls to different peers.
///
/// Ownership: a held put reads its source when it is carried out. If the caller writes to the
/// source before `flush`, or before a wait proves delivery, the peer gets other bytes.
///
/// Errors: those of `T`, and those that the schedule names; `describe_trouble` names the requests
/// that failed by the schedule. If a held call fails in `T`, the next call to that peer returns the
/// error.
///
/// Threads: as the contract says. Requests of the threads of a rank take turns, so a stall delays
/// all of them. Which thread meets a fault depends on the order of their requests.
///
/// Cost: a request takes a lock and visits the held calls, no more than `held_calls`. A wait calls
/// that of `T` at least every 2 ms.
template <transport T>
class fault : public detail::plain_decorator<T> {
  using decorator = detail::plain_decorator<T>;
  using carrier = detail::fault_carrier<T>;
  using inner_window = typename T::window;
  using call = typename carrier::call;

 public:
  /// A window of `T`.
  class window {
   public:
    window(window&&) noexcept = default;
    window& operator=(window&& other) noexcept {
      window old{std::move(*this)};
      carrier_ = std::move(other.carrier_);
      inner_ = std::move(other.inner_);
      shape_ = other.shape_;
      return *this;
    }
    window(const window&) = delete;
    window& operator=(const window&) = delete;
    ~window() {
      if (inner_) carrier_->forget(*inner_);
    }

    /// Returns the window of `T`. The conversion is implicit, so that forwarded calls take this
    /// window.
    // NOLINTNEXTLINE(google-explicit-constructor)
    operator const inner_window&() const noexcept { return *inner_; }

   private:
    friend fault;
    window(std::shared_ptr<carrier> passing, std::unique_ptr<inner_window> inner,
           window_shape shape)
        : carrier_{std::move(passing)}, inner_{std::move(inner)}, shape_{shape} {}

    std::shared_ptr<carrier> carrier_;
    std::unique_ptr<inner_window> inner_;  // At an address to which held calls refer.
    window_shape shape_;
  };

  /// Texts about failed requests, and windows of existing memory if `T` makes them.
  static constexpr transport_refinements refines{.describe_trouble = true,
                                                 .adopt_window = adopting_transport<T>};

  /// Takes the transport `inner`. Requests call the functions of `schedule`, which must neither
  /// throw nor call this transport.
  /// Throws, on this rank: `error` invalid_argument if a value in `schedule` is outside its
  /// documented range.
  explicit fault(T inner, fault_schedule schedule = {})
      : fault{std::make_shared<carrier>(std::move(inner), std::move(schedule))} {}
  /// Makes the inner transport over `boot`, as its own constructor does.
  /// Throws: as the constructor of `T`; `error` invalid_argument, on this rank, if a value in
  /// `schedule` is outside its documented range.
  explicit fault(bootstrap& boot, fault_schedule schedule = {})
    requires std::constructible_from<T, bootstrap&>
      : fault{T{boot}, std::move(schedule)} {}

  /// Returns the number of faults that this rank has met in all windows, by kind. Takes the lock of
  /// requests.
  [[nodiscard]] fault_counts faults() const noexcept { return carrier_->counts(); }

  ///@{
  /// Implements a call of the concept `transport`, which states its contract.
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    return keep(shape, until, [&] { return carrier_->inner().make_window(shape, until); });
  }
  [[nodiscard]] window adopt_window(window_memory memory, deadline until)
    requires adopting_transport<T>
  {
    const window_shape shape{memory.data.size(), memory.signals.size(), memory.traffic};
    return keep(shape, until,
                [&] { return carrier_->inner().adopt_window(std::move(memory), until); });
  }

  [[nodiscard]] errc put(rank_id peer, const window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    if (!holds(memory, peer, offset, source.size())) return errc::out_of_range;
    return carrier_->request({.what = call::kind::put,
                              .peer = peer,
                              .memory = memory.inner_.get(),
                              .offset = offset,
                              .source = source},
                             source);
  }
  [[nodiscard]] errc signal(rank_id peer, const window& memory, signal_id id,
                            std::uint64_t value) noexcept {
    if (!has(memory, peer, id)) return errc::out_of_range;
    return carrier_->request({.what = call::kind::signal,
                              .peer = peer,
                              .memory = memory.inner_.get(),
                              .id = id,
                              .value = value},
                             {});
  }
  [[nodiscard]] errc put_signal(rank_id peer, const window& memory, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    if (!has(memory, peer, id)) return errc::out_of_range;
    const errc code = put(peer, memory, offset, source);
    return code == errc::ok ? signal(peer, memory, id, value) : code;
  }
  [[nodiscard]] errc get(rank_id peer, const window& memory, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    if (!holds(memory, peer, offset, target.size())) return errc::out_of_range;
    return carrier_->request({.what = call::kind::get,
                              .peer = peer,
                              .memory = memory.inner_.get(),
                              .offset = offset,
                              .target = target},
                             target);
  }
  [[nodiscard]] errc fetch_add(rank_id peer, const window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    if (!holds(memory, peer, offset, sizeof addend)) return errc::out_of_range;
    const errc code = carrier_->begin_now(peer);
    return code == errc::ok ? this->inner().fetch_add(peer, *memory.inner_, offset, addend, before)
                            : code;
  }

  [[nodiscard]] errc wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    constexpr std::uint32_t short_looks = 64;
    for (std::uint32_t looks = 0;; ++looks) {
      const auto found = carrier_->look(awaited);
      if (found.is_dropped) return errc::peer_dead;
      // A wait of the inner transport spins and checks the peers, even if it must not sleep.
      if (!found.is_idle && looks < short_looks && !until.expired() &&
          this->inner().value(*memory.inner_, id) < value)
        continue;
      // A signal that the peer raised before the connection broke still counts.
      const bool may_sleep = found.is_idle && found.health == errc::ok;
      const errc code =
          this->inner().wait(*memory.inner_, id, value, may_sleep ? slice(until) : past(), awaited);
      if (code != errc::timed_out) return code;
      if (found.health != errc::ok) return found.health;
      if (until.expired()) return errc::timed_out;
    }
  }
  [[nodiscard]] std::uint64_t value(const window& memory, signal_id id) const noexcept {
    carrier_->look(std::nullopt);
    return this->inner().value(*memory.inner_, id);
  }
  [[nodiscard]] errc flush(rank_id peer) noexcept {
    const errc found = carrier_->release(peer);
    return found == errc::ok ? this->inner().flush(peer) : found;
  }
  [[nodiscard]] errc quiet() noexcept {
    const errc found = carrier_->release(std::nullopt);
    const errc code = this->inner().quiet();
    return found == errc::ok ? code : found;
  }
  [[nodiscard]] errc progress() noexcept {
    carrier_->look(std::nullopt);
    return this->inner().progress();
  }
  [[nodiscard]] std::string describe_trouble() const { return carrier_->describe(); }
  ///@}

 private:
  explicit fault(std::shared_ptr<carrier> passing)
      : decorator{passing->inner()}, carrier_{std::move(passing)} {}

  template <class Make>
  window keep(window_shape shape, deadline until, Make&& make) {
    return collective_on_all_ranks(this->boot(), "a window", until, [&] {
      auto made = std::make_unique<inner_window>(make());
      carrier_->remember(*made);
      return window{carrier_, std::move(made), shape};
    });
  }
  [[nodiscard]] bool holds(const window& memory, rank_id peer, std::size_t offset,
                           std::size_t bytes) const noexcept {
    const std::size_t all = memory.shape_.bytes;
    return peer.index() < this->boot().size() && offset <= all && bytes <= all - offset;
  }
  [[nodiscard]] bool has(const window& memory, rank_id peer, signal_id id) const noexcept {
    return peer.index() < this->boot().size() && index(id) < memory.shape_.signals;
  }
  static deadline past() noexcept { return deadline{deadline::clock::time_point::min()}; }
  /// Returns the end of the next part of a wait. Another thread's request may be held during the
  /// wait.
  static deadline slice(deadline until) noexcept {
    return detail::earlier(until, deadline::after(std::chrono::milliseconds{2}));
  }

  std::shared_ptr<carrier> carrier_;
};

static_assert(transport<fault<transport_archetype>> &&
              !direct_transport<fault<direct_transport_archetype>> &&
              adopting_transport<fault<adopting_transport_archetype>>);

}  // namespace peerbus

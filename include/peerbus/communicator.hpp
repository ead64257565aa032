// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus {

struct communicator_options {
  /// What blocking calls take as their time limit when given none.
  std::chrono::milliseconds timeout{30'000};
};

/// A group of ranks that share windows. Its constructor, `make_window`, `agree` and `barrier` are
/// collective: all ranks call them in the same order. Ranks that call different ones are told so,
/// or time out where one of them is `barrier`.
///
/// After a failure that leaves the ranks out of step (a time-out or a dead peer in the middle of a
/// collective) the communicator is poisoned: every later collective on it throws `poisoned`. Build
/// a new one on a new bootstrap; if the failure was in `barrier` or an exchange and all ranks are
/// alive, the same bootstrap serves again.
///
/// Threads: collectives of the communicator from one thread at a time; windows as `transport` says;
/// exchanges each from a thread of its own, if need be. Neither copied nor moved, since windows
/// refer to it.
template <transport Transport>
class communicator {
 public:
  /// Throws: `error`, on all ranks.
  explicit communicator(Transport bus, communicator_options options = {})
      : bus_{std::move(bus)},
        options_{options},
        control_{make_agreed_window({.bytes = 0, .signals = barrier_rounds(size())},
                                    default_deadline())} {
    for (std::size_t step = 1; step < size(); ++step)
      peers_.emplace_back((rank().index() + step) % size());
  }
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  ~communicator() = default;

  [[nodiscard]] rank_id rank() const noexcept { return bus_.boot().rank(); }
  [[nodiscard]] std::size_t size() const noexcept { return bus_.boot().size(); }
  [[nodiscard]] all_ranks ranks() const noexcept { return all_ranks{size()}; }
  /// The other ranks in the order in which operations visit them: from the next rank round, so that
  /// not all ranks visit the same one at once, unless `order_peers` said otherwise.
  [[nodiscard]] std::span<const rank_id> peers() const noexcept { return peers_; }
  /// Another order, such as nearest first; of this rank alone. Not while an operation runs.
  /// Throws: `error` invalid_argument unless it names every other rank once.
  void order_peers(std::vector<rank_id> order) {
    std::vector<bool> named(size());
    for (const rank_id peer : order) {
      if (peer.index() >= size() || peer == rank() || named[peer.index()])
        throw error{errc::invalid_argument,
                    detail::concat("order_peers: ", peer, " given, expected each of the ", size(),
                                   " ranks but ", rank(), " once")};
      named[peer.index()] = true;
    }
    if (order.size() + 1 != size())
      throw error{errc::invalid_argument, detail::concat("order_peers: ", order.size(),
                                                         " ranks given, expected ", size() - 1)};
    peers_ = std::move(order);
  }
  [[nodiscard]] Transport& bus() noexcept { return bus_; }
  [[nodiscard]] deadline default_deadline() const noexcept {
    return deadline::after(options_.timeout);
  }

  /// Collective. Zeroed memory of `bytes` and `signals` zero signals on every rank; windows are
  /// independent of each other.
  /// Throws, on all ranks: `error` mismatch if they ask for different shapes, out_of_memory if one
  /// cannot have it, timed_out or peer_dead if one does not come.
  [[nodiscard]] window<Transport> make_window(std::size_t bytes, std::size_t signals) {
    return make_window(bytes, signals, default_deadline());
  }
  [[nodiscard]] window<Transport> make_window(std::size_t bytes, std::size_t signals,
                                              deadline until) {
    const std::array values{declared{"bytes", bytes}, declared{"signals", signals}};
    agree("make_window", values, until);
    return make_agreed_window({.bytes = bytes, .signals = signals}, until);
  }

  /// Collective: returns if all ranks pass the same values and none an objection. For set-up that
  /// must be alike everywhere, such as the sizes of a model.
  /// Throws, on all ranks: `error` that names the value, the ranks and what they have.
  void agree(std::string_view doing, std::span<const declared> values,
             const std::optional<error>& objection = std::nullopt) {
    agree(doing, values, default_deadline(), objection);
  }
  void agree(std::string_view doing, std::span<const declared> values, deadline until,
             const std::optional<error>& objection = std::nullopt) {
    require_healthy(doing);
    guarded([&] { peerbus::agree(bus_.boot(), doing, values, until, objection); });
  }

  /// Collective: returns after all ranks have called it. What a rank wrote before is visible to
  /// all after. Cost: ceil(log2 size) signals, one after the other.
  /// Throws: `error` timed_out or peer_dead, and the communicator is poisoned.
  void barrier() { barrier(default_deadline()); }
  void barrier(deadline until) {
    require_healthy("barrier");
    ++barrier_epoch_;
    require(bus_.quiet());
    // Dissemination: in round k each rank tells the one 2^k further on; after the last round
    // everybody has heard, directly or through others, of everybody.
    std::size_t distance = 1;
    for (std::size_t round = 0; distance < size(); ++round, distance *= 2) {
      const auto id = static_cast<signal_id>(round);
      const rank_id to{(rank().index() + distance) % size()};
      const rank_id from{(rank().index() + size() - distance) % size()};
      require(control_.signal(to, id, barrier_epoch_));
      const errc code = control_.wait(id, barrier_epoch_, until, from);
      if (code == errc::ok) continue;
      std::string text = detail::concat("barrier ", barrier_epoch_, ", round ", round, ": ", from,
                                        " is missing: expected epoch ", barrier_epoch_, ", seen ",
                                        control_.value(id));
      if (const auto gone = missing(); !gone.empty()) text += "; " + gone;
      fail(code, text);
    }
  }

  /// Marks the communicator unusable, as the ranks are out of step, and throws. The first reason
  /// stands. For operations built on windows, from any thread.
  [[noreturn]] void fail(errc code, std::string_view reason) {
    poison(reason);
    throw error{code, reason};
  }
  /// Throws: `error` poisoned, with the first reason. From any thread.
  void require_healthy(std::string_view doing) const {
    // order: acquire; pairs with the release in `poison`: the text is complete.
    if (poisoned_.load(std::memory_order_acquire))
      throw error{errc::poisoned, detail::concat(doing, ": unusable since: ", poison_)};
  }
  /// "rank 3 died", for messages; empty if all ranks are there and can be reached.
  [[nodiscard]] std::string missing() const { return describe_absence(bus_); }

 private:
  static constexpr std::size_t barrier_rounds(std::size_t ranks) noexcept {
    return static_cast<std::size_t>(std::bit_width(ranks - 1));
  }

  void poison(std::string_view reason) {
    const std::lock_guard lock{poisoning_};
    if (poisoned_.load(std::memory_order_relaxed)) return;  // order: written under this lock.
    poison_ = reason;
    poisoned_.store(true, std::memory_order_release);  // order: pairs with `require_healthy`.
  }

  void require(errc code) {
    if (code == errc::ok) return;
    std::string text = detail::concat("barrier ", barrier_epoch_);
    if (const auto gone = missing(); !gone.empty()) text += ": " + gone;
    fail(code, text);
  }

  window<Transport> make_agreed_window(window_shape shape, deadline until) {
    return {bus_, shape, guarded([&] { return bus_.make_window(shape, until); })};
  }

  /// Does `collective` and poisons the communicator if that leaves the ranks out of step. What all
  /// ranks throw together does not.
  template <class Collective>
  auto guarded(Collective&& collective) {
    try {
      return collective();
    } catch (const agreed_error&) {
      throw;
    } catch (const std::exception& problem) {
      poison(problem.what());
      throw;
    }
  }

  Transport bus_;
  communicator_options options_;
  // Before `control_`, whose making may set them.
  std::mutex poisoning_;
  std::atomic<bool> poisoned_{false};
  std::string poison_;
  window<Transport> control_;
  std::vector<rank_id> peers_;
  std::uint64_t barrier_epoch_ = 0;
};

}  // namespace peerbus

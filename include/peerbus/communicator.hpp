// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

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
/// collective: all ranks call them in the same order; ranks that call different ones are told so.
///
/// After a failure that leaves the ranks out of step (a time-out or a dead peer in the middle of a
/// collective) the communicator is poisoned: every later collective on it throws `poisoned`. Build
/// a new one, on a new bootstrap if a rank is gone.
///
/// Threads: collectives from one thread at a time; windows as `transport` says. Neither copied nor
/// moved, since windows refer to it.
template <transport Transport>
class communicator {
 public:
  /// Throws: `error`, on all ranks.
  explicit communicator(Transport bus, communicator_options options = {})
      : bus_{std::move(bus)},
        options_{options},
        control_{make_window_unchecked({.bytes = 0, .signals = barrier_rounds(size())})} {}
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  ~communicator() = default;

  [[nodiscard]] rank_id rank() const noexcept { return bus_.boot().rank(); }
  [[nodiscard]] std::size_t size() const noexcept { return bus_.boot().size(); }
  [[nodiscard]] all_ranks ranks() const noexcept { return all_ranks{size()}; }
  [[nodiscard]] Transport& bus() noexcept { return bus_; }
  [[nodiscard]] deadline default_deadline() const noexcept {
    return deadline::after(options_.timeout);
  }

  /// Collective. Zeroed memory of `bytes` and `signals` zero signals on every rank; windows are
  /// independent of each other.
  /// Throws, on all ranks: `error` mismatch if they ask for different shapes, out_of_memory if one
  /// cannot have it, timed_out or peer_dead if one does not come.
  [[nodiscard]] window<Transport> make_window(std::size_t bytes, std::size_t signals) {
    const std::array values{declared{"bytes", bytes}, declared{"signals", signals}};
    agree("make_window", values);
    return make_window_unchecked({.bytes = bytes, .signals = signals});
  }

  /// Collective: returns if all ranks pass the same values and none an objection.
  /// Throws, on all ranks: `error` that names the value, the ranks and what they have.
  void agree(std::string_view doing, std::span<const declared> values,
             const std::optional<error>& objection = std::nullopt) {
    require_healthy(doing);
    guarded([&] { peerbus::agree(bus_.boot(), doing, values, default_deadline(), objection); });
  }

  /// Collective: returns after all ranks have called it. What a rank wrote before is visible to
  /// all after. Cost: ceil(log2 size) signals, one after the other.
  /// Throws: `error` timed_out or peer_dead, and the communicator is poisoned.
  void barrier() { barrier(default_deadline()); }
  void barrier(deadline until) {
    require_healthy("barrier");
    ++barrier_epoch_;
    check(bus_.quiet(), "barrier");
    // Dissemination: in round k each rank tells the one 2^k further on; after the last round
    // everybody has heard, directly or through others, of everybody.
    std::size_t distance = 1;
    for (std::size_t round = 0; distance < size(); ++round, distance *= 2) {
      const auto id = static_cast<signal_id>(round);
      const rank_id to{(rank().index() + distance) % size()};
      const rank_id from{(rank().index() + size() - distance) % size()};
      check(control_.signal(to, id, barrier_epoch_), "barrier");
      const errc code = control_.wait(id, barrier_epoch_, until, from);
      if (code == errc::ok) continue;
      std::string text = detail::concat("barrier ", barrier_epoch_, ", round ", round, ": ", from,
                                        " is missing: expected epoch ", barrier_epoch_, ", seen ",
                                        control_.value(id));
      if (const auto gone = missing(); !gone.empty()) text += "; " + gone;
      poison(text);
      throw error{code, text};
    }
  }

  /// Marks the communicator unusable, as the ranks are out of step. The first reason stands.
  void poison(std::string_view reason) {
    if (poison_.empty()) poison_ = reason;
  }
  /// Throws: `error` poisoned, with the first reason.
  void require_healthy(std::string_view doing) const {
    if (!poison_.empty())
      throw error{errc::poisoned, detail::concat(doing, ": unusable since: ", poison_)};
  }
  /// "rank 3 died", for messages; empty if all ranks are there.
  [[nodiscard]] std::string missing() const { return bus_.boot().members()->describe_missing(); }

 private:
  static constexpr std::size_t barrier_rounds(std::size_t ranks) noexcept {
    return static_cast<std::size_t>(std::bit_width(ranks - 1));
  }
  window<Transport> make_window_unchecked(window_shape shape) {
    return {bus_, shape, guarded([&] { return bus_.make_window(shape, default_deadline()); })};
  }

  /// Does `collective` and poisons the communicator if that leaves the ranks out of step. A refusal
  /// or a mismatch does not: all ranks throw it.
  template <class Collective>
  auto guarded(Collective&& collective) {
    try {
      return collective();
    } catch (const error& problem) {
      if (problem.code() == errc::timed_out || problem.code() == errc::peer_dead ||
          problem.code() == errc::poisoned || problem.code() == errc::system)
        poison(problem.what());
      throw;
    }
  }

  Transport bus_;
  communicator_options options_;
  std::string poison_;  // Before `control_`, whose making may set it.
  window<Transport> control_;
  std::uint64_t barrier_epoch_ = 0;
};

}  // namespace peerbus

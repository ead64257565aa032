// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/rank_function.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/lane.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/simulated/options.hpp>
#include <peerbus/transport/simulated/simulation.hpp>
#include <peerbus/transport/simulated/window.hpp>

namespace peerbus {

/// Runs `f(bootstrap&)` as `n` simulated ranks on the calling thread, one rank until it waits, then
/// another. Deadlines of the ranks count virtual time, which begins at the start of each run, so
/// that a time-out of a minute passes at once. A wait for anything but the bootstrap, the transport
/// `simulated` and deadlines (a mutex, another thread) stops all ranks. `options` and `f` determine
/// the whole run.
/// Cost: a stack for each rank; set-up takes no virtual time.
/// Returns: the greatest status of all ranks, as `run_threads` does.
/// Throws: `error` invalid_argument if `n` is 0, if a value of `options` is impossible, or if a
/// simulated rank calls it; as `begin` of `options.links`.
template <rank_function F>
[[nodiscard]] int run_simulated(std::size_t n, F f, const simulation_options& options = {}) {
  return detail::run_as_fibres(n, detail::returning_status(f), options);
}

/// Connects the ranks of `run_simulated` in virtual time, by a network that is a cost model
/// (`simulated_platform`, or `simulated_links` in place of its ports). Code that is built on
/// transports runs on it unchanged, to predict times of many ranks and to search for bad orders
/// (docs/simulation.md).
///
/// Completion: as over a network. A put reads its source when its first byte arrives at the peer,
/// and `flush` waits until then. It writes at the peer when its last byte has arrived.
///
/// Near ranks: ranks that share one of the first `simulated_platform::near_levels`. They load and
/// store each other's memory. If an exchange moves rows or outputs so, the bytes are there at once.
/// The signal that follows takes the time of the bytes, and a reader waits for that time. Other
/// stores and loads take no time.
///
/// Ordering: as the contract promises. If the options have a `jitter`, nothing more is ordered,
/// except that a signal follows earlier puts to its peer in windows of all traffic classes.
///
/// Leaving: the destructor waits until everything is delivered.
///
/// Time: requests, signals, looks at signals and row copies take the rank the time that the
/// platform's costs say. `advance` charges everything else.
///
/// Threads: one for all ranks. Lanes of a rank are fibres of `run_lanes`.
///
/// Cost: a put or signal is three events. Unlike in the contract, it may allocate. A copy of the
/// payload is kept while it is in flight.
class simulated {
 public:
  /// A window. Its parts live as long as a rank or a message may access them.
  class window {
   public:
    window(window&&) noexcept = default;
    window(const window&) = delete;
    window& operator=(window&&) noexcept = default;
    window& operator=(const window&) = delete;
    ~window() = default;

   private:
    friend simulated;
    window(std::shared_ptr<const detail::simulated_parts> parts, rank_id own_rank)
        : parts_{std::move(parts)}, own_rank_{own_rank} {}
    /// Returns the part of the caller.
    [[nodiscard]] const detail::simulated_parts::part& own() const noexcept {
      return parts_->of[own_rank_.index()];
    }
    std::shared_ptr<const detail::simulated_parts> parts_;
    rank_id own_rank_;
  };

  /// The kind of ranks that `run` starts for this transport, by `run_ranks`.
  static constexpr rank_kind ranks_are = rank_kind::fibres;
  /// Starts ranks as `run_simulated` does, with the default options.
  template <class F>
  [[nodiscard]] static int run_ranks(std::size_t n, F f) {
    return run_simulated(n, std::move(f));
  }

  /// Runs of puts, which are one message, and the memory of near ranks, if the platform has any.
  static constexpr transport_refinements refines{
      .find_peer_memory = true, .put_run = true, .reach = true};

  /// Makes the transport over `boot`, and keeps a reference to it.
  /// Throws: `error` unsupported if the caller is not a simulated rank.
  explicit simulated(bootstrap& boot) : boot_{&boot}, world_{detail::simulation::of_thread()} {
    if (world_ == nullptr)
      throw error{errc::unsupported,
                  "simulated connects ranks that run_simulated has started, and this one is not"};
  }

  /// Lets the calling rank compute for `span` of virtual time, no more than a day. Does nothing
  /// outside of a simulated rank, or if `span` is negative.
  static void advance(std::chrono::nanoseconds span) noexcept {
    if (auto* const world = detail::simulation::of_thread())
      world->clock.charge(detail::picoseconds(static_cast<double>(span.count())));
  }
  /// Lets the calling rank encode `count` tokens, each for `simulated_costs::token_ns`. Does
  /// nothing outside of a simulated rank.
  static void advance_tokens(std::size_t count) noexcept {
    if (auto* const world = detail::simulation::of_thread())
      world->clock.charge(
          detail::picoseconds(world->options.platform.costs.token_ns * static_cast<double>(count)));
  }
  /// Calls `f(lane{i, count})` for each of `count` lanes of the calling rank. They run at the same
  /// virtual time: each has its own clock, which begins with the caller's time. The caller is lane
  /// 0, and continues at the time of the last lane.
  /// Cost: a stack for each other lane.
  /// Throws: the exception of the lowest lane that threw; `error` unsupported if the caller is not
  /// a simulated rank, invalid_argument unless `count` is 1 to `max_lanes`.
  template <class F>
  static void run_lanes(std::size_t count, F f) {
    auto* const world = detail::simulation::of_thread();
    if (world == nullptr) throw error{errc::unsupported, "run_lanes: called by no simulated rank"};
    if (count == 0 || count > max_lanes)
      throw error{errc::invalid_argument,
                  detail::concat("run_lanes: ", count, " lanes, expected 1 to ", max_lanes)};
    world->run_lanes(count, [&](std::size_t index) { f(lane{index, count}); });
  }
  /// Returns the virtual time of the calling rank since the simulation began, or 0 outside of a
  /// simulated rank.
  [[nodiscard]] static std::chrono::nanoseconds now() noexcept {
    auto* const world = detail::simulation::of_thread();
    return std::chrono::nanoseconds{world == nullptr ? 0 : world->clock.time() / 1000};
  }
  ///@{
  /// Returns the number of bytes or messages that all ranks have sent so far, or 0 outside of a
  /// simulated rank. Bytes include rows that are not carried. A put, a run of puts, a signal, a put
  /// with its signal, a get, an addition, and rows stored to or loaded from a near rank are one
  /// message each. Answers add only bytes.
  [[nodiscard]] static std::uint64_t bytes_sent() noexcept {
    auto* const world = detail::simulation::of_thread();
    return world == nullptr ? 0 : world->messages.bytes_sent();
  }
  [[nodiscard]] static std::uint64_t messages_sent() noexcept {
    auto* const world = detail::simulation::of_thread();
    return world == nullptr ? 0 : world->messages.messages_sent();
  }
  ///@}

  ///@{
  /// Implements a call of the concept `transport`, which states its contract.
  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    return {.any_local_memory = true, .fetch_add = true};
  }
  [[nodiscard]] window make_window(window_shape shape, deadline until);
  [[nodiscard]] std::span<std::byte> local(const window& memory) const noexcept {
    return {memory.own().data, memory.parts_->shape.bytes};
  }
  [[nodiscard]] errc put(rank_id peer, const window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    const put_piece piece{offset, source};
    return put_run(peer, memory, {&piece, 1});
  }
  [[nodiscard]] errc put_run(rank_id peer, const window& memory,
                             std::span<const put_piece> pieces) noexcept;
  [[nodiscard]] errc signal(rank_id peer, const window& memory, signal_id id,
                            std::uint64_t value) noexcept;
  [[nodiscard]] errc put_signal(rank_id peer, const window& memory, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept;
  [[nodiscard]] errc get(rank_id peer, const window& memory, std::size_t offset,
                         std::span<std::byte> target) noexcept;
  [[nodiscard]] errc fetch_add(rank_id peer, const window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept;
  [[nodiscard]] errc wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept;
  [[nodiscard]] std::uint64_t value(const window& memory, signal_id id) const noexcept;
  [[nodiscard]] std::byte* find_peer_memory(const window& memory, rank_id peer) const noexcept;
  [[nodiscard]] peer_reach reach() const noexcept {
    return world_->options.platform.near_levels == 0 ? peer_reach::none : peer_reach::near;
  }
  [[nodiscard]] errc wait_at(rank_id owner, const window& memory, signal_id id, std::uint64_t value,
                             deadline until, std::optional<rank_id> awaited) noexcept {
    return owner == boot_->rank() ? wait(memory, id, value, until, awaited) : errc::unsupported;
  }
  [[nodiscard]] std::uint64_t value_at(rank_id owner, const window& memory,
                                       signal_id id) const noexcept {
    return owner == boot_->rank() ? value(memory, id) : 0;
  }
  [[nodiscard]] errc flush(rank_id peer) noexcept;
  [[nodiscard]] errc quiet() noexcept;
  [[nodiscard]] errc progress() noexcept {
    look();
    return errc::ok;
  }
  ///@}

 private:
  [[nodiscard]] detail::network& messages() const noexcept { return world_->messages; }
  [[nodiscard]] const simulated_costs& costs() const noexcept {
    return world_->options.platform.costs;
  }
  void charge(double ns) const noexcept { world_->clock.charge(detail::picoseconds(ns)); }
  /// Charges a look at a signal, and lets all due events happen.
  void look() const noexcept {
    charge(costs().poll_ns);
    world_->clock.catch_up();
  }
  /// Waits until `is_ready()`. Returns timed_out if nothing can happen any more.
  template <class IsReady>
  errc block(IsReady&& is_ready) noexcept {
    while (!is_ready())
      if (world_->clock.block(is_ready, detail::end_of_time) == detail::scheduler::wake::hopeless)
        return errc::timed_out;
    return errc::ok;
  }
  /// Makes a message to `peer`, which must exist. Returns its number.
  std::uint32_t message_to(rank_id peer, const window& memory, detail::message_kind kind,
                           bool has_cargo = true) noexcept;

  bootstrap* boot_;
  std::unique_ptr<detail::simulation, detail::deliver_all> world_;
  /// The number of each rank in the simulation, from the latest window; null before the first.
  std::shared_ptr<const std::vector<std::uint32_t>> numbers_;
};

static_assert(partly_direct_transport<simulated>);
static_assert(runnable_transport<simulated>);

}  // namespace peerbus

#include <peerbus/transport/simulated/data_path.hpp>  // IWYU pragma: keep

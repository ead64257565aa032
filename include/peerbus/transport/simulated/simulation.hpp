// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/run_rank.hpp>
#include <peerbus/bootstrap/detail/thread_world.hpp>
#include <peerbus/bootstrap/rank_function.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/virtual_clock.hpp>
#include <peerbus/transport/simulated/check_platform.hpp>
#include <peerbus/transport/simulated/network.hpp>
#include <peerbus/transport/simulated/options.hpp>
#include <peerbus/transport/simulated/scheduler.hpp>

namespace peerbus::detail {

/// The clock and the network of the ranks that this thread simulates.
struct simulation final : virtual_clock {
  simulation(const simulation_options& chosen, std::size_t size)
      : options{chosen}, messages{clock, options, size} {}
  simulation(const simulation&) = delete;
  simulation& operator=(const simulation&) = delete;
  ~simulation() = default;

  /// Returns the simulation that this thread runs, or null.
  [[nodiscard]] static simulation*& of_thread() noexcept {
    static thread_local simulation* current = nullptr;
    return current;
  }

  [[nodiscard]] deadline::clock::time_point now() noexcept override { return clock.now(); }
  [[nodiscard]] deadline::clock::time_point glance() const noexcept override {
    return clock.glance();
  }
  void sleep(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
             deadline::clock::time_point until) noexcept override {
    // order: relaxed; one thread runs all ranks.
    const auto is_changed = [&] { return word.load(std::memory_order_relaxed) != expected; };
    sleepers.push_back({&word, clock.current()});
    static_cast<void>(clock.block(is_changed, scheduler::time_of(deadline{until})));
    std::erase(sleepers, sleeper{&word, clock.current()});
  }
  void wake(const std::atomic<std::uint32_t>& word) noexcept override {
    for (const sleeper& each : sleepers)
      if (each.word == &word) clock.poke(each.fibre);
  }
  void note_stores(std::span<const row_access> stored) noexcept override {
    move_rows(message_kind::put, stored);
  }
  void note_loads(std::span<const row_access> loaded) noexcept override {
    move_rows(message_kind::get, loaded);
    const std::uint32_t own = clock.rank();
    static_cast<void>(clock.block([this, own] { return messages.is_answered(own); }, end_of_time));
  }
  /// Charges the running rank for copying rows, and sends messages for rows of other ranks.
  void move_rows(message_kind kind, std::span<const row_access> rows) noexcept;

  /// Implements `simulated::run_lanes`.
  void run_lanes(std::size_t count, function_ref<void(std::size_t)> body);

  /// Returns the rank whose part of a window contains `memory`.
  [[nodiscard]] std::uint32_t owner_of(const void* memory) const noexcept {
    return std::prev(owners.upper_bound(memory))->second;
  }

  /// A fibre that waits for a word to change.
  struct sleeper {
    const std::atomic<std::uint32_t>* word;
    std::uint32_t fibre;
    friend bool operator==(const sleeper&, const sleeper&) = default;
  };

  simulation_options options;
  scheduler clock;
  network messages;
  std::vector<sleeper> sleepers;
  std::map<const void*, std::uint32_t> owners;  ///< ranks of parts of windows, by first byte
};

inline void simulation::move_rows(message_kind kind, std::span<const row_access> rows) noexcept {
  const double rate = options.platform.costs.copy_gb_per_s;
  const std::uint32_t own = clock.rank();
  for (const row_access& each : rows) {
    if (rate != 0) clock.charge(picoseconds(static_cast<double>(each.bytes) / rate));
    const std::uint32_t owner = owner_of(each.memory);
    if (owner != own) messages.send_rows(kind, own, owner, each.rows, each.bytes);
  }
}

inline void simulation::run_lanes(std::size_t count, function_ref<void(std::size_t)> body) {
  const std::uint32_t caller = clock.current();
  std::vector<std::exception_ptr> thrown(count);
  std::vector<std::uint32_t> fibres;
  std::size_t running = 0;
  const auto guarded = [&](std::size_t lane) noexcept {
    try {
      body(lane);
    } catch (...) {
      thrown[lane] = std::current_exception();
    }
  };
  try {
    fibres.reserve(count - 1);
    for (std::size_t lane = 1; lane < count; ++lane) {
      fibres.push_back(clock.add_lane(options.stack_bytes, [&, lane]() noexcept {
        guarded(lane);
        --running;
        clock.poke(caller);
      }));
      ++running;
    }
    guarded(0);
  } catch (...) {  // No memory for a stack. The lanes before it end by their deadlines.
    thrown[0] = std::current_exception();
  }
  const auto is_alone = [&running] { return running == 0; };
  while (!is_alone()) static_cast<void>(clock.block(is_alone, end_of_time));
  for (const std::uint32_t number : fibres) clock.remove_lane(number);
  for (const std::exception_ptr& problem : thrown)
    if (problem) std::rethrow_exception(problem);
}

/// Waits until everything that the calling rank has sent is delivered, because it must not arrive
/// after the news that the rank left.
struct deliver_all {
  void operator()(simulation* running) const noexcept {
    if (running == nullptr || running != simulation::of_thread()) return;
    scheduler& clock = running->clock;
    const auto is_quiet = [running, own = clock.rank()] { return running->messages.is_over(own); };
    while (!is_quiet() && clock.block(is_quiet, end_of_time) != scheduler::wake::hopeless) {
    }
  }
};

/// The lock of a world of fibres, which one thread runs. It also lets fibres wait in the world's
/// allgather.
class fibre_gate {
 public:
  /// A mutex that keeps other fibres from running while it is held.
  struct mutex {
    void lock() noexcept { simulation::of_thread()->clock.stay(true); }
    void unlock() noexcept { simulation::of_thread()->clock.stay(false); }
  };

  /// Waits until `open` is called, and no longer than until `until`. Fibres have no idle work.
  /// Returns false if nothing can happen any more.
  [[nodiscard]] bool wait(std::unique_lock<mutex>& lock, deadline until,
                          std::chrono::milliseconds /*pause*/) {
    scheduler& clock = simulation::of_thread()->clock;
    waiting_.push_back(clock.current());
    const auto seen = opened_;
    lock.unlock();
    const auto why =
        clock.block([this, seen] { return opened_ != seen; }, scheduler::time_of(until));
    std::erase(waiting_, clock.current());
    lock.lock();
    return why != scheduler::wake::hopeless;
  }
  void open() noexcept {
    ++opened_;
    scheduler& clock = simulation::of_thread()->clock;
    for (const std::uint32_t number : waiting_) clock.poke(number);
    clock.note_change();
  }

 private:
  std::vector<std::uint32_t> waiting_;
  std::uint64_t opened_ = 0;
};

using fibre_world = shared_world<fibre_gate>;

/// The bootstrap of a simulated rank. Its host is its group of the first level of the platform.
class fibre_bootstrap final : public shared_bootstrap<fibre_world> {
 public:
  fibre_bootstrap(std::shared_ptr<fibre_world> world, rank_id rank,
                  const simulated_platform& platform)
      : shared_bootstrap{std::move(world), rank, 1} {
    std::vector<rank_id> near;
    for (const rank_id peer : all_ranks{size()})
      if (platform.shared_level(rank.index(), peer.index()) == 0) near.push_back(peer);
    // Each rank has a core of its own in the machine that is played.
    const std::size_t count = near.size();
    set_neighbours(std::move(near), count, count);
  }
};

/// Installs a simulation as this thread's, as long as this object lives.
class simulation_of_thread {
 public:
  explicit simulation_of_thread(simulation& made) noexcept {
    simulation::of_thread() = &made;
    clock_of_thread = &made;
  }
  simulation_of_thread(const simulation_of_thread&) = delete;
  simulation_of_thread& operator=(const simulation_of_thread&) = delete;
  ~simulation_of_thread() {
    simulation::of_thread() = nullptr;
    clock_of_thread = nullptr;
  }
};

/// Implements `run_simulated`.
[[nodiscard]] inline int run_as_fibres(std::size_t n, rank_body body,
                                       const simulation_options& options) {
  refuse_bad_world(n, "run_simulated");
  check_platform(options.platform);
  check_options(options);
  if (simulation::of_thread() != nullptr)
    throw error{errc::invalid_argument, "run_simulated: called by a simulated rank"};
  if (options.links != nullptr) options.links->begin(n);
  simulation running{options, n};
  const simulation_of_thread here{running};
  const auto world = std::make_shared<fibre_world>(n);
  std::vector<int> statuses(n, 0);
  std::vector<std::unique_ptr<fibre_bootstrap>> boots;
  boots.reserve(n);
  for (const rank_id rank : all_ranks{n}) {
    boots.push_back(std::make_unique<fibre_bootstrap>(world, rank, options.platform));
    running.clock.add_rank(options.stack_bytes, [&body, &world, &boot = *boots.back(),
                                                 &status = statuses[rank.index()]]() noexcept {
      status = run_rank(body, boot);
      world->wake();
    });
  }
  running.clock.run(running.messages);
  return *std::ranges::max_element(statuses);
}

}  // namespace peerbus::detail

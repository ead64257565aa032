// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>

#include "support/deferring.hpp"

namespace test {

namespace detail {

/// The requests of a `background` that are not done yet, and the thread that does them.
template <peerbus::direct_transport Base>
struct background_state {
  struct request {
    peerbus::rank_id peer;
    const typename Base::window* at = nullptr;
    std::size_t offset = 0;
    std::span<const std::byte> source{};
    std::span<std::byte> target{};
    peerbus::signal_id id{};
    std::uint64_t value = 0;
    bool is_signal = false;
  };
  struct place {
    std::atomic<bool> full{false};
    request what;
  };

  static constexpr std::size_t place_count = std::size_t{1} << 16U;
  static constexpr std::chrono::microseconds idle{50};

  explicit background_state(Base made) : base{std::move(made)} {
    worker = std::thread{[this] { work(); }};
  }
  background_state(const background_state&) = delete;
  background_state& operator=(const background_state&) = delete;
  ~background_state() {
    post({});  // Without a window: the end.
    worker.join();
  }

  void post(const request& one) noexcept {
    // order: relaxed; a number, nothing else, so that callers are not ordered by it.
    const std::uint64_t number = posted.fetch_add(1, std::memory_order_relaxed);
    // A place that has been used is free once all before it is done. Seldom, as it orders.
    if (number >= place_count) await(number - place_count + 1);
    place& here = places[number % place_count];
    here.what = one;
    // order: release; pairs with the acquire in `work`.
    here.full.store(true, std::memory_order_release);
  }
  void remember(const typename Base::window&) noexcept {}
  void forget(const typename Base::window&) noexcept { drain(); }
  /// All that was posted before the call is done.
  void drain() noexcept {
    await(posted.load(std::memory_order_relaxed));  // order: the caller's own posts, at least.
  }
  void await(std::uint64_t number) noexcept {
    // order: acquire; pairs with the release in `work`: its reads of sources come before.
    while (done.load(std::memory_order_acquire) < number) std::this_thread::yield();
  }

  void work() noexcept {
    std::vector<request> puts;
    std::uint64_t taken = 0;
    std::uint64_t dice = base.boot().rank().index() + 1;
    for (;; ++taken) {
      place& here = places[taken % place_count];
      // order: acquire; pairs with the release in `post`. Asked again and again: std::atomic's
      // own wait and notify go through memory that would order the owner after this thread.
      for (std::size_t asked = 0; !here.full.load(std::memory_order_acquire); ++asked) {
        if (asked == 0) deliver(puts, taken);
        asked < 64 ? std::this_thread::yield() : std::this_thread::sleep_for(idle);
      }
      const request one = here.what;
      here.full.store(false, std::memory_order_relaxed);  // order: `done` is released later.
      if (one.at == nullptr) return deliver(puts, taken + 1);
      if (!one.is_signal) {
        puts.push_back(one);
        continue;
      }
      // Late, so that the caller may go on and do what it must not.
      dice = dice * 6364136223846793005U + 1442695040888963407U;
      for (std::uint64_t i = 0; i < dice >> 62U; ++i) std::this_thread::yield();
      deliver(puts, taken);
      static_cast<void>(base.signal(one.peer, *one.at, one.id, one.value));
    }
  }
  /// Does what is collected, the latest first.
  void deliver(std::vector<request>& puts, std::uint64_t taken) noexcept {
    std::reverse(puts.begin(), puts.end());
    for (const request& one : puts)
      static_cast<void>(one.target.empty() ? base.put(one.peer, *one.at, one.offset, one.source)
                                           : base.get(one.peer, *one.at, one.offset, one.target));
    puts.clear();
    // order: release; pairs with the acquire in `await`.
    done.store(taken, std::memory_order_release);
  }

  Base base;
  // Zeroed by the kernel when it is touched, as most tests use little of it. An empty `place` is
  // zero.
  peerbus::mapping memory = peerbus::mapping::anonymous(place_count * sizeof(place));
  place* places = std::launder(reinterpret_cast<place*>(memory.data()));
  std::atomic<std::uint64_t> posted{0};
  std::atomic<std::uint64_t> done{0};
  std::thread worker;
};

}  // namespace detail

/// `Base` as a transport whose puts, gets and signals are done by a thread of its own, some time
/// after the call, as a network card does them: puts between two signals in any order, even to
/// several peers at once. Nothing that thread does is ordered before anything its owner does, but
/// by what the contract says: `flush`, `quiet`, and signals that peers raise in turn. So
/// ThreadSanitizer sees who reuses a source that has not been proven to be read, or touches a
/// target too early. For ranks that are threads; any number of threads of a rank may call at once.
template <peerbus::direct_transport Base>
class background : public deferring<Base, detail::background_state<Base>> {
  using above = deferring<Base, detail::background_state<Base>>;

 public:
  using above::above;
  using typename above::window;

  [[nodiscard]] peerbus::transport_capabilities capabilities() const noexcept {
    return {.any_local_memory = true, .fetch_add = true};
  }
  [[nodiscard]] peerbus::errc put(peerbus::rank_id peer, const window& at, std::size_t offset,
                                  std::span<const std::byte> source) noexcept {
    if (!this->inside(peer, at, offset, source.size())) return peerbus::errc::out_of_range;
    this->state().post(
        {.peer = peer, .at = this->inner_of(at), .offset = offset, .source = source});
    return peerbus::errc::ok;
  }
  [[nodiscard]] peerbus::errc signal(peerbus::rank_id peer, const window& at, peerbus::signal_id id,
                                     std::uint64_t value) noexcept {
    if (peer.index() >= this->boot().size()) return peerbus::errc::out_of_range;
    this->state().post(
        {.peer = peer, .at = this->inner_of(at), .id = id, .value = value, .is_signal = true});
    return peerbus::errc::ok;
  }
  [[nodiscard]] peerbus::errc put_signal(peerbus::rank_id peer, const window& at,
                                         std::size_t offset, std::span<const std::byte> source,
                                         peerbus::signal_id id, std::uint64_t value) noexcept {
    const peerbus::errc code = put(peer, at, offset, source);
    return code == peerbus::errc::ok ? signal(peer, at, id, value) : code;
  }
  [[nodiscard]] peerbus::errc get(peerbus::rank_id peer, const window& at, std::size_t offset,
                                  std::span<std::byte> target) noexcept {
    if (!this->inside(peer, at, offset, target.size())) return peerbus::errc::out_of_range;
    this->state().post(
        {.peer = peer, .at = this->inner_of(at), .offset = offset, .target = target});
    return peerbus::errc::ok;
  }
  [[nodiscard]] peerbus::errc flush(peerbus::rank_id) noexcept { return quiet(); }
  [[nodiscard]] peerbus::errc quiet() noexcept {
    this->state().drain();
    return peerbus::errc::ok;
  }
};

}  // namespace test

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

#include "support/deferring.hpp"

namespace test {

namespace detail {

/// The requests of an `indirect` that are not done yet.
template <peerbus::direct_transport Base>
struct indirect_state {
  struct transfer {
    peerbus::rank_id peer;
    const typename Base::window* at = nullptr;
    std::size_t offset = 0;
    std::span<const std::byte> source;
    std::span<std::byte> target;
    bool kept = false;  ///< in `state::store`, as a flush gave the source back to its owner
  };

  explicit indirect_state(Base made) : base{std::move(made)} {}

  /// A full queue moves something early, which a card may do as well.
  peerbus::errc later(transfer one) noexcept {
    if (count == queue.size()) run(std::nullopt);
    queue[count++] = std::move(one);
    return peerbus::errc::ok;
  }
  void run(std::optional<peerbus::rank_id> peer) noexcept {
    for (std::size_t i = count; i-- > 0;) {
      const transfer& one = queue[i];
      if (peer && one.peer != *peer) continue;
      if (!one.source.empty())
        static_cast<void>(base.put(one.peer, *one.at, one.offset, one.source));
      if (!one.target.empty())
        static_cast<void>(base.get(one.peer, *one.at, one.offset, one.target));
    }
    remove([&](const transfer& one) { return !peer || one.peer == *peer; });
  }
  void finish(peerbus::rank_id peer) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      transfer& one = queue[i];
      if (one.peer != peer) continue;
      if (!one.target.empty())
        static_cast<void>(base.get(one.peer, *one.at, one.offset, one.target));
      if (one.source.empty() || one.kept) continue;
      // A full store delivers early, which a card may do as well.
      if (one.source.size() > store_bytes - stored) return run(peer);
      std::copy(one.source.begin(), one.source.end(), store.get() + stored);
      one.source = {store.get() + stored, one.source.size()};
      one.kept = true;
      stored += one.source.size();
    }
    remove([&](const transfer& one) { return one.peer == peer && one.source.empty(); });
  }
  void remember(const typename Base::window& made) { windows.push_back(&made); }
  void forget(const typename Base::window& gone) noexcept {
    remove([&](const transfer& one) { return one.at == &gone; });
    std::erase(windows, &gone);
  }
  template <class Predicate>
  void remove(Predicate&& predicate) noexcept {
    const auto end = std::remove_if(queue.begin(),
                                    queue.begin() + static_cast<std::ptrdiff_t>(count), predicate);
    count = static_cast<std::size_t>(end - queue.begin());
    if (count == 0) stored = 0;
  }
  [[nodiscard]] bool registered(std::span<const std::byte> memory) const noexcept {
    return memory.empty() || std::any_of(windows.begin(), windows.end(), [&](const auto* one) {
             const auto part = base.local(*one);
             return memory.data() >= part.data() &&
                    memory.data() + memory.size() <= part.data() + part.size();
           });
  }

  Base base;
  std::vector<const typename Base::window*> windows;
  std::array<transfer, 256> queue;
  static constexpr std::size_t store_bytes = std::size_t{1} << 20U;
  // Not cleared: under a sanitizer that took a large part of the time of a test with small groups.
  std::unique_ptr<std::byte[]> store = std::make_unique_for_overwrite<std::byte[]>(store_bytes);
  std::size_t stored = 0;
  std::size_t count = 0;
};

}  // namespace detail

/// `Base` as a transport that gives nothing beyond the contract, the way a network card would:
/// no peer memory; only memory of its own windows as source and target; a put moves its bytes no
/// sooner than a later signal to that peer or quiet demands, the latest first; a get no
/// sooner than its flush; a flush frees sources but delivers nothing. Who reads a source too early,
/// reuses one too early, or relies on the order of puts, gets wrong bytes.
template <peerbus::direct_transport Base>
class indirect : public deferring<Base, detail::indirect_state<Base>> {
  using above = deferring<Base, detail::indirect_state<Base>>;

 public:
  using above::above;
  using typename above::window;

  static constexpr peerbus::transport_refinements refines{.adopt_window =
                                                              peerbus::adopting_transport<Base>};

  [[nodiscard]] peerbus::transport_capabilities capabilities() const noexcept {
    return {.any_local_memory = false, .fetch_add = true};
  }
  [[nodiscard]] window adopt_window(peerbus::window_memory memory, peerbus::deadline until)
    requires peerbus::adopting_transport<Base>
  {
    return this->adopt_here(std::move(memory), until);
  }
  [[nodiscard]] peerbus::errc put(peerbus::rank_id peer, const window& at, std::size_t offset,
                                  std::span<const std::byte> source) noexcept {
    if (!this->inside(peer, at, offset, source.size())) return peerbus::errc::out_of_range;
    if (!this->state().registered(source)) return peerbus::errc::invalid_argument;
    return this->state().later({peer, this->inner_of(at), offset, source, {}});
  }
  [[nodiscard]] peerbus::errc signal(peerbus::rank_id peer, const window& at, peerbus::signal_id id,
                                     std::uint64_t value) noexcept {
    this->state().run(peer);
    return this->inner().signal(peer, at, id, value);
  }
  [[nodiscard]] peerbus::errc put_signal(peerbus::rank_id peer, const window& at,
                                         std::size_t offset, std::span<const std::byte> source,
                                         peerbus::signal_id id, std::uint64_t value) noexcept {
    if (!this->inside(peer, at, offset, source.size())) return peerbus::errc::out_of_range;
    if (!this->state().registered(source)) return peerbus::errc::invalid_argument;
    this->state().run(peer);
    return this->inner().put_signal(peer, at, offset, source, id, value);
  }
  [[nodiscard]] peerbus::errc get(peerbus::rank_id peer, const window& at, std::size_t offset,
                                  std::span<std::byte> target) noexcept {
    if (!this->inside(peer, at, offset, target.size())) return peerbus::errc::out_of_range;
    if (!this->state().registered(target)) return peerbus::errc::invalid_argument;
    return this->state().later({peer, this->inner_of(at), offset, {}, target});
  }
  [[nodiscard]] peerbus::errc flush(peerbus::rank_id peer) noexcept {
    this->state().finish(peer);
    return this->inner().flush(peer);
  }
  [[nodiscard]] peerbus::errc quiet() noexcept {
    this->state().run(std::nullopt);
    return this->inner().quiet();
  }

 protected:
  [[nodiscard]] std::byte* memory_of(const window& at, peerbus::rank_id peer) const noexcept {
    return this->inner().peer_memory(at, peer);
  }
};

}  // namespace test

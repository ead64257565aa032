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

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>

namespace test {

/// `Base` as a transport that gives nothing beyond the contract, the way a network card would:
/// no peer memory; only memory of its own windows as source and target; a put moves its bytes no
/// sooner than a later signal to that peer or quiet demands, the latest first; a get no
/// sooner than its flush; a flush frees sources but delivers nothing. Who reads a source too early,
/// reuses one too early, or relies on the order of puts, gets wrong bytes.
template <peerbus::direct_transport Base>
class indirect {
  struct state;

 public:
  class window {
   public:
    window(window&&) noexcept = default;
    window& operator=(window&&) = delete;
    ~window() {
      if (inner_ == nullptr) return;
      state_->forget(*inner_);
    }

   private:
    friend indirect;
    window(std::shared_ptr<state> owner, typename Base::window inner)
        : state_{std::move(owner)},
          inner_{std::make_unique<typename Base::window>(std::move(inner))} {
      state_->windows.push_back(inner_.get());
    }
    std::shared_ptr<state> state_;
    std::unique_ptr<typename Base::window> inner_;
  };

  static constexpr peerbus::rank_kind ranks_are = Base::ranks_are;

  explicit indirect(peerbus::bootstrap& boot) : state_{std::make_shared<state>(Base{boot})} {}

  [[nodiscard]] peerbus::bootstrap& boot() const noexcept { return state_->base.boot(); }
  [[nodiscard]] peerbus::transport_capabilities capabilities() const noexcept {
    return {.any_local_memory = false, .fetch_add = true};
  }
  [[nodiscard]] window make_window(peerbus::window_shape shape, peerbus::deadline until) {
    return window{state_, state_->base.make_window(shape, until)};
  }
  [[nodiscard]] std::span<std::byte> local(const window& at) const noexcept {
    return state_->base.local(*at.inner_);
  }

  [[nodiscard]] peerbus::errc put(peerbus::rank_id peer, const window& at, std::size_t offset,
                                  std::span<const std::byte> source) noexcept {
    if (!inside(peer, at, offset, source.size())) return peerbus::errc::out_of_range;
    if (!state_->registered(source)) return peerbus::errc::invalid_argument;
    return state_->later({peer, at.inner_.get(), offset, source, {}});
  }
  [[nodiscard]] peerbus::errc signal(peerbus::rank_id peer, const window& at, peerbus::signal_id id,
                                     std::uint64_t value) noexcept {
    state_->run(peer);
    return state_->base.signal(peer, *at.inner_, id, value);
  }
  [[nodiscard]] peerbus::errc put_signal(peerbus::rank_id peer, const window& at,
                                         std::size_t offset, std::span<const std::byte> source,
                                         peerbus::signal_id id, std::uint64_t value) noexcept {
    if (!inside(peer, at, offset, source.size())) return peerbus::errc::out_of_range;
    if (!state_->registered(source)) return peerbus::errc::invalid_argument;
    state_->run(peer);
    return state_->base.put_signal(peer, *at.inner_, offset, source, id, value);
  }
  [[nodiscard]] peerbus::errc get(peerbus::rank_id peer, const window& at, std::size_t offset,
                                  std::span<std::byte> target) noexcept {
    if (!inside(peer, at, offset, target.size())) return peerbus::errc::out_of_range;
    if (!state_->registered(target)) return peerbus::errc::invalid_argument;
    return state_->later({peer, at.inner_.get(), offset, {}, target});
  }
  [[nodiscard]] peerbus::errc fetch_add(peerbus::rank_id peer, const window& at, std::size_t offset,
                                        std::uint64_t addend, std::uint64_t& before) noexcept {
    return state_->base.fetch_add(peer, *at.inner_, offset, addend, before);
  }
  [[nodiscard]] peerbus::errc wait(const window& at, peerbus::signal_id id, std::uint64_t value,
                                   peerbus::deadline until,
                                   std::optional<peerbus::rank_id> awaited) noexcept {
    return state_->base.wait(*at.inner_, id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value(const window& at, peerbus::signal_id id) const noexcept {
    return state_->base.value(*at.inner_, id);
  }
  [[nodiscard]] peerbus::errc flush(peerbus::rank_id peer) noexcept {
    state_->finish(peer);
    return state_->base.flush(peer);
  }
  [[nodiscard]] peerbus::errc quiet() noexcept {
    state_->run(std::nullopt);
    return state_->base.quiet();
  }
  [[nodiscard]] peerbus::errc progress() noexcept { return state_->base.progress(); }

 protected:
  [[nodiscard]] std::byte* memory_of(const window& at, peerbus::rank_id peer) const noexcept {
    return state_->base.peer_memory(*at.inner_, peer);
  }

 private:
  struct transfer {
    peerbus::rank_id peer;
    const typename Base::window* at = nullptr;
    std::size_t offset = 0;
    std::span<const std::byte> source;
    std::span<std::byte> target;
    bool kept = false;  ///< in `state::store`, as a flush gave the source back to its owner
  };

  struct state {
    explicit state(Base made) : base{std::move(made)} {}

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
        if (one.source.size() > store.size() - stored) return run(peer);
        std::copy(one.source.begin(), one.source.end(), store.data() + stored);
        one.source = {store.data() + stored, one.source.size()};
        one.kept = true;
        stored += one.source.size();
      }
      remove([&](const transfer& one) { return one.peer == peer && one.source.empty(); });
    }
    void forget(const typename Base::window& gone) noexcept {
      remove([&](const transfer& one) { return one.at == &gone; });
      std::erase(windows, &gone);
    }
    template <class Predicate>
    void remove(Predicate&& predicate) noexcept {
      const auto end = std::remove_if(
          queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count), predicate);
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
    std::vector<std::byte> store = std::vector<std::byte>(std::size_t{1} << 20U);
    std::size_t stored = 0;
    std::size_t count = 0;
  };

  bool inside(peerbus::rank_id peer, const window& at, std::size_t offset,
              std::size_t bytes) const noexcept {
    const std::size_t all = local(at).size();
    return peer.index() < boot().size() && offset <= all && bytes <= all - offset;
  }

  std::shared_ptr<state> state_;
};

}  // namespace test

// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/detail/erased_transport.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

/// A transport chosen at run time. Holds any `transport` and forwards to it, so that code compiled
/// once for `any_transport` serves all transports.
///
/// It loads and stores the memory of all peers, of near peers or of none, as the held transport
/// does. Layers above ask `reach` when they are made. An `any_direct_transport` holds only
/// transports that reach all peers, which its type says. If an `any_transport` is made from an
/// `any_direct_transport`, it takes the held transport.
///
/// Capabilities, semantics, results, errors and threads are those of the held transport. `put_run`,
/// `signal_each`, `describe_trouble` and `get_private` always exist. If the held transport lacks
/// one, the call does what the functions in optional_calls.hpp do without it.
/// Cost: one virtual call for each call of the data path, none for `boot`, `local` and
/// `find_peer_memory`, because a window keeps the addresses of all parts. Memory is allocated only
/// with the transport and with each window. Making a window takes one more agreement of the ranks.
/// After a move, the source may only be destroyed; its windows then belong to the target.
class any_transport {
 public:
  /// A window of the held transport, with the addresses of the parts that it reaches.
  class window {
   public:
    window(window&&) noexcept = default;
    window(const window&) = delete;
    window& operator=(window&&) noexcept = default;
    window& operator=(const window&) = delete;
    ~window() = default;

   private:
    friend any_transport;
    window(std::unique_ptr<detail::erased_window> held, std::span<std::byte> local,
           std::vector<std::byte*> parts) noexcept
        : held_{std::move(held)}, local_{local}, parts_{std::move(parts)} {}

    std::unique_ptr<detail::erased_window> held_;
    std::span<std::byte> local_;
    std::vector<std::byte*> parts_;  ///< addresses by rank; null where loads and stores do not
                                     ///< reach
  };

  /// The optional calls, which exist for every held transport.
  static constexpr transport_refinements refines{.find_peer_memory = true,
                                                 .put_run = true,
                                                 .signal_each = true,
                                                 .describe_trouble = true,
                                                 .private_memory = true,
                                                 .reach = true};

  /// Takes the transport `bus`. Allocates.
  template <class Held>
    requires(!std::derived_from<Held, any_transport>) && transport<Held>
  explicit any_transport(Held bus)
      : boot_{&bus.boot()}, held_{std::make_unique<detail::held_transport<Held>>(std::move(bus))} {}
  any_transport(any_transport&&) noexcept = default;
  any_transport(const any_transport&) = delete;
  any_transport& operator=(any_transport&&) = delete;
  any_transport& operator=(const any_transport&) = delete;
  ~any_transport() = default;

  /// Returns the held transport if it is a `Held`, or else nullptr. Gives access to members that
  /// only `Held` has, such as `planes::far_traffic`. The address stays valid until this object, or
  /// the object that it is moved to, is destroyed. A transport that another shared library has put
  /// here may not be found.
  template <transport Held>
  [[nodiscard]] Held* find_held() noexcept {
    return static_cast<Held*>(held_->find(&detail::mark_of<Held>));
  }

  ///@{
  /// Forwards the call to the held transport. The concept `transport` states its contract.
  /// `near_ranks` returns the ranks near the caller, in ascending order and including the caller.
  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    return held_->capabilities();
  }
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    return collective_on_all_ranks(*boot_, "a window of any_transport", until, [&]() -> window {
      auto made = held_->make_window(shape, until);
      std::vector<std::byte*> parts;
      parts.reserve(boot_->size());
      for (const rank_id rank : all_ranks{boot_->size()})
        parts.push_back(held_->find_part(*made, rank));
      const auto local = held_->local(*made);
      return {std::move(made), local, std::move(parts)};
    });
  }
  [[nodiscard]] std::span<std::byte> local(const window& memory) const noexcept {
    return memory.local_;
  }
  [[nodiscard]] errc put(rank_id peer, const window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    return held_->put(peer, *memory.held_, offset, source);
  }
  [[nodiscard]] errc put_run(rank_id peer, const window& memory,
                             std::span<const put_piece> pieces) noexcept {
    return held_->put_run(peer, *memory.held_, pieces);
  }
  [[nodiscard]] errc signal(rank_id peer, const window& memory, signal_id id,
                            std::uint64_t value) noexcept {
    return held_->signal(peer, *memory.held_, id, value);
  }
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, const window& memory, signal_id id,
                                 std::uint64_t value) noexcept {
    return held_->signal_each(peers, *memory.held_, id, value);
  }
  [[nodiscard]] errc put_signal(rank_id peer, const window& memory, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    return held_->put_signal(peer, *memory.held_, offset, source, id, value);
  }
  [[nodiscard]] errc get(rank_id peer, const window& memory, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    return held_->get(peer, *memory.held_, offset, target);
  }
  [[nodiscard]] errc get_private(rank_id peer, const window& memory, std::uint64_t address,
                                 std::span<std::byte> target) noexcept {
    return held_->get_private(peer, *memory.held_, address, target);
  }
  [[nodiscard]] errc fetch_add(rank_id peer, const window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    return held_->fetch_add(peer, *memory.held_, offset, addend, before);
  }
  [[nodiscard]] errc wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    return held_->wait(*memory.held_, id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value(const window& memory, signal_id id) const noexcept {
    return held_->value(*memory.held_, id);
  }
  [[nodiscard]] errc flush(rank_id peer) noexcept { return held_->flush(peer); }
  [[nodiscard]] errc quiet() noexcept { return held_->quiet(); }
  [[nodiscard]] errc progress() noexcept { return held_->progress(); }
  [[nodiscard]] std::string describe_trouble() const { return held_->describe_trouble(); }
  [[nodiscard]] peer_reach reach() const noexcept { return held_->reach(); }
  [[nodiscard]] std::span<const rank_id> near_ranks() const noexcept { return held_->near_ranks(); }
  [[nodiscard]] std::byte* find_peer_memory(const window& memory, rank_id peer) const noexcept {
    return memory.parts_[peer.index()];
  }
  [[nodiscard]] errc wait_at(rank_id owner, const window& memory, signal_id id, std::uint64_t value,
                             deadline until, std::optional<rank_id> awaited) noexcept {
    return held_->wait_at(owner, *memory.held_, id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value_at(rank_id owner, const window& memory,
                                       signal_id id) const noexcept {
    return held_->value_at(owner, *memory.held_, id);
  }
  ///@}

 private:
  bootstrap* boot_;
  std::unique_ptr<detail::erased_transport> held_;
};

static_assert(partly_direct_transport<any_transport> && !runnable_transport<any_transport>);

}  // namespace peerbus

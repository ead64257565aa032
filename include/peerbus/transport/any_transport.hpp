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

/// A transport chosen at run time: holds any `transport` and does what that does, so that code
/// compiled once for `any_transport` serves all of them.
///
/// It moves rows by puts, also where the held transport has memory of all or of near peers:
/// `any_direct_transport` uses that. Made from an `any_direct_transport`, it takes the transport
/// that this holds.
///
/// Capabilities, semantics, results, errors and threads are those of the held transport.
/// `put_run`, `signal_each` and `describe_trouble` are here for all: where the held transport has
/// none, they do what its callers would do instead. A call of the data path costs one
/// virtual call; `boot` and `local` cost none. Memory is allocated with the transport and with each
/// window only. Making a window takes one agreement of the ranks more. After a move, the source may
/// only be destroyed; windows go on with the target.
class any_transport {
 public:
  /// A window of the held transport.
  class window {
   public:
    window(window&&) noexcept = default;
    window(const window&) = delete;
    window& operator=(window&&) noexcept = default;
    window& operator=(const window&) = delete;
    ~window() = default;

   private:
    friend any_transport;
    window(std::unique_ptr<detail::erased_window> held, std::span<std::byte> local) noexcept
        : held_{std::move(held)}, local_{local} {}

    std::unique_ptr<detail::erased_window> held_;
    std::span<std::byte> local_;
  };

  /// The optional calls, which are there whichever transport is held.
  static constexpr transport_refinements refines{
      .put_run = true, .signal_each = true, .describe_trouble = true, .private_memory = true};

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

  ///@{
  /// Forwards the call to the held transport. The concept `transport` states its contract.
  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    return held_->capabilities();
  }
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    return collective_on_all_ranks(*boot_, a_window, until,
                                   [&] { return make_here(shape, until); });
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
  ///@}

 protected:
  /// The name of a window in errors.
  static constexpr std::string_view a_window = "a window of any_transport";

  /// Makes a window of the held transport. If that succeeds, a `std::bad_alloc` may still end the
  /// call on this rank alone: call it by `collective_on_all_ranks`.
  [[nodiscard]] window make_here(window_shape shape, deadline until) {
    auto made = held_->make_window(shape, until);
    const auto local = held_->local(*made);
    return window{std::move(made), local};
  }

  ///@{
  /// A call of the held transport, which must be direct.
  [[nodiscard]] std::byte* held_peer_memory(const window& memory, rank_id peer) const noexcept {
    return held_->peer_memory(*memory.held_, peer);
  }
  [[nodiscard]] errc held_wait_at(rank_id owner, const window& memory, signal_id id,
                                  std::uint64_t value, deadline until,
                                  std::optional<rank_id> awaited) noexcept {
    return held_->wait_at(owner, *memory.held_, id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t held_value_at(rank_id owner, const window& memory,
                                            signal_id id) const noexcept {
    return held_->value_at(owner, *memory.held_, id);
  }
  ///@}

 private:
  bootstrap* boot_;
  std::unique_ptr<detail::erased_transport> held_;
};

static_assert(transport<any_transport> && !direct_transport<any_transport> &&
              !partly_direct_transport<any_transport> && !runnable_transport<any_transport>);

}  // namespace peerbus

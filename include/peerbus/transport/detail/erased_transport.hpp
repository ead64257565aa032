// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::detail {

/// A window of an `erased_transport`.
class erased_window {
 public:
  erased_window() = default;
  erased_window(const erased_window&) = delete;
  erased_window& operator=(const erased_window&) = delete;
  virtual ~erased_window() = default;
};

/// A variable whose address identifies the type `T`, also in programs without run-time types.
template <class T>
inline char mark_of{};

/// The calls of `transport` and of its refinements, for a transport whose type is known only at run
/// time. Each call takes windows that the same transport made.
class erased_transport {
 public:
  erased_transport() = default;
  erased_transport(const erased_transport&) = delete;
  erased_transport& operator=(const erased_transport&) = delete;
  virtual ~erased_transport() = default;

  /// Returns the transport if `mark` is the address of `mark_of` for its type, otherwise nullptr.
  [[nodiscard]] virtual void* find(const char* mark) noexcept = 0;
  [[nodiscard]] virtual transport_capabilities capabilities() const noexcept = 0;
  [[nodiscard]] virtual std::unique_ptr<erased_window> make_window(window_shape shape,
                                                                   deadline until) = 0;
  [[nodiscard]] virtual std::span<std::byte> local(const erased_window& memory) const noexcept = 0;
  [[nodiscard]] virtual peer_reach reach() const noexcept = 0;
  /// Returns the ranks that are near the caller, in ascending order and including the caller.
  [[nodiscard]] virtual std::span<const rank_id> near_ranks() const noexcept = 0;
  /// Returns the start of a rank's part, this rank's included, or nullptr if loads and stores do
  /// not reach it.
  [[nodiscard]] virtual std::byte* find_part(const erased_window& memory,
                                             rank_id rank) const noexcept = 0;
  /// Waits for a signal in the part of `owner`. Returns `unsupported` for another rank's signal,
  /// unless the transport has peers' signals.
  [[nodiscard]] virtual errc wait_at(rank_id owner, const erased_window& memory, signal_id id,
                                     std::uint64_t value, deadline until,
                                     std::optional<rank_id> awaited) noexcept = 0;
  /// Returns the value of a signal in the part of `owner`, or 0 for another rank's signal, unless
  /// the transport has peers' signals.
  [[nodiscard]] virtual std::uint64_t value_at(rank_id owner, const erased_window& memory,
                                               signal_id id) const noexcept = 0;
  [[nodiscard]] virtual errc put(rank_id peer, const erased_window& memory, std::size_t offset,
                                 std::span<const std::byte> source) noexcept = 0;
  [[nodiscard]] virtual errc put_run(rank_id peer, const erased_window& memory,
                                     std::span<const put_piece> pieces) noexcept = 0;
  [[nodiscard]] virtual errc signal(rank_id peer, const erased_window& memory, signal_id id,
                                    std::uint64_t value) noexcept = 0;
  [[nodiscard]] virtual errc signal_each(std::span<const rank_id> peers,
                                         const erased_window& memory, signal_id id,
                                         std::uint64_t value) noexcept = 0;
  [[nodiscard]] virtual errc put_signal(rank_id peer, const erased_window& memory,
                                        std::size_t offset, std::span<const std::byte> source,
                                        signal_id id, std::uint64_t value) noexcept = 0;
  [[nodiscard]] virtual errc get(rank_id peer, const erased_window& memory, std::size_t offset,
                                 std::span<std::byte> target) noexcept = 0;
  /// Reads private memory of `peer`. Returns `unsupported` if the transport does not read private
  /// memory.
  [[nodiscard]] virtual errc get_private(rank_id peer, const erased_window& memory,
                                         std::uint64_t address,
                                         std::span<std::byte> target) noexcept = 0;
  [[nodiscard]] virtual errc fetch_add(rank_id peer, const erased_window& memory,
                                       std::size_t offset, std::uint64_t addend,
                                       std::uint64_t& before) noexcept = 0;
  [[nodiscard]] virtual errc wait(const erased_window& memory, signal_id id, std::uint64_t value,
                                  deadline until, std::optional<rank_id> awaited) noexcept = 0;
  [[nodiscard]] virtual std::uint64_t value(const erased_window& memory,
                                            signal_id id) const noexcept = 0;
  [[nodiscard]] virtual errc flush(rank_id peer) noexcept = 0;
  [[nodiscard]] virtual errc quiet() noexcept = 0;
  [[nodiscard]] virtual errc progress() noexcept = 0;
  [[nodiscard]] virtual std::string describe_trouble() const = 0;
};

/// A `Held` behind the interface. Refinements that `Held` lacks act as the functions in
/// optional_calls.hpp do without them.
template <transport Held>
class held_transport final : public erased_transport {
 public:
  explicit held_transport(Held bus) : bus_{std::move(bus)} {}

  [[nodiscard]] void* find(const char* mark) noexcept override {
    return mark == &mark_of<Held> ? &bus_ : nullptr;
  }
  [[nodiscard]] transport_capabilities capabilities() const noexcept override {
    return bus_.capabilities();
  }
  [[nodiscard]] std::unique_ptr<erased_window> make_window(window_shape shape,
                                                           deadline until) override {
    return std::make_unique<held_window>(bus_.make_window(shape, until));
  }
  [[nodiscard]] std::span<std::byte> local(const erased_window& memory) const noexcept override {
    return bus_.local(held(memory));
  }
  [[nodiscard]] peer_reach reach() const noexcept override { return reach_of(bus_); }
  [[nodiscard]] std::span<const rank_id> near_ranks() const noexcept override {
    return near_ranks_of(bus_);
  }
  [[nodiscard]] std::byte* find_part(const erased_window& memory,
                                     rank_id rank) const noexcept override {
    if (rank == bus_.boot().rank()) return bus_.local(held(memory)).data();
    if constexpr (direct_transport<Held>)
      return bus_.peer_memory(held(memory), rank);
    else if constexpr (partly_direct_transport<Held>)
      return bus_.find_peer_memory(held(memory), rank);
    else
      return nullptr;
  }
  [[nodiscard]] errc wait_at(rank_id owner, const erased_window& memory, signal_id id,
                             std::uint64_t value, deadline until,
                             std::optional<rank_id> awaited) noexcept override {
    if constexpr (has_peer_signals<Held>)
      return bus_.wait_at(owner, held(memory), id, value, until, awaited);
    else
      return owner == bus_.boot().rank() ? bus_.wait(held(memory), id, value, until, awaited)
                                         : errc::unsupported;
  }
  [[nodiscard]] std::uint64_t value_at(rank_id owner, const erased_window& memory,
                                       signal_id id) const noexcept override {
    if constexpr (has_peer_signals<Held>)
      return bus_.value_at(owner, held(memory), id);
    else
      return owner == bus_.boot().rank() ? bus_.value(held(memory), id) : 0;
  }
  [[nodiscard]] errc put(rank_id peer, const erased_window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept override {
    return bus_.put(peer, held(memory), offset, source);
  }
  [[nodiscard]] errc put_run(rank_id peer, const erased_window& memory,
                             std::span<const put_piece> pieces) noexcept override {
    return detail::put_run(bus_, peer, held(memory), pieces);
  }
  [[nodiscard]] errc signal(rank_id peer, const erased_window& memory, signal_id id,
                            std::uint64_t value) noexcept override {
    return bus_.signal(peer, held(memory), id, value);
  }
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, const erased_window& memory,
                                 signal_id id, std::uint64_t value) noexcept override {
    return detail::signal_each(bus_, peers, held(memory), id, value);
  }
  [[nodiscard]] errc put_signal(rank_id peer, const erased_window& memory, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept override {
    return bus_.put_signal(peer, held(memory), offset, source, id, value);
  }
  [[nodiscard]] errc get(rank_id peer, const erased_window& memory, std::size_t offset,
                         std::span<std::byte> target) noexcept override {
    return bus_.get(peer, held(memory), offset, target);
  }
  [[nodiscard]] errc get_private(rank_id peer, const erased_window& memory, std::uint64_t address,
                                 std::span<std::byte> target) noexcept override {
    return detail::get_private(bus_, peer, held(memory), address, target);
  }
  [[nodiscard]] errc fetch_add(rank_id peer, const erased_window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept override {
    return bus_.fetch_add(peer, held(memory), offset, addend, before);
  }
  [[nodiscard]] errc wait(const erased_window& memory, signal_id id, std::uint64_t value,
                          deadline until, std::optional<rank_id> awaited) noexcept override {
    return bus_.wait(held(memory), id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value(const erased_window& memory,
                                    signal_id id) const noexcept override {
    return bus_.value(held(memory), id);
  }
  [[nodiscard]] errc flush(rank_id peer) noexcept override { return bus_.flush(peer); }
  [[nodiscard]] errc quiet() noexcept override { return bus_.quiet(); }
  [[nodiscard]] errc progress() noexcept override { return bus_.progress(); }
  [[nodiscard]] std::string describe_trouble() const override {
    return detail::describe_trouble(bus_);
  }

 private:
  using window = typename Held::window;

  class held_window final : public erased_window {
   public:
    explicit held_window(window made) : memory{std::move(made)} {}
    window memory;
  };

  static const window& held(const erased_window& memory) noexcept {
    return static_cast<const held_window&>(memory).memory;
  }

  Held bus_;
};

}  // namespace peerbus::detail

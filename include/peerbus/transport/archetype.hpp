// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

/// The minimal type that satisfies `transport`. Everything built on transports must compile against
/// it, and a new transport can start from it. It moves no data: each call that reports a result
/// returns `unsupported`.
class transport_archetype {
 public:
  /// A window without memory or signals. It can only be moved.
  class window {
   public:
    window(window&&) noexcept = default;
    window(const window&) = delete;
    window& operator=(window&&) noexcept = default;
    window& operator=(const window&) = delete;
    ~window() = default;

   private:
    friend transport_archetype;
    window() = default;
  };

  /// Keeps a reference to `boot`, which outlives the transport. Not collective.
  explicit transport_archetype(bootstrap& boot) noexcept : boot_{&boot} {}
  transport_archetype(transport_archetype&&) noexcept = default;
  transport_archetype(const transport_archetype&) = delete;
  transport_archetype& operator=(transport_archetype&&) = delete;
  transport_archetype& operator=(const transport_archetype&) = delete;
  ~transport_archetype() = default;

  ///@{
  /// Implements a call of the concept `transport`, without effect. `local` returns no memory,
  /// `capabilities` none, `value` 0, and calls with an `errc` return `unsupported`.
  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  [[nodiscard]] transport_capabilities capabilities() const noexcept { return {}; }
  [[nodiscard]] window make_window(window_shape, deadline) { return window{}; }
  [[nodiscard]] std::span<std::byte> local(const window&) const noexcept { return {}; }
  [[nodiscard]] errc put(rank_id, const window&, std::size_t, std::span<const std::byte>) noexcept {
    return errc::unsupported;
  }
  [[nodiscard]] errc signal(rank_id, const window&, signal_id, std::uint64_t) noexcept {
    return errc::unsupported;
  }
  [[nodiscard]] errc put_signal(rank_id, const window&, std::size_t, std::span<const std::byte>,
                                signal_id, std::uint64_t) noexcept {
    return errc::unsupported;
  }
  [[nodiscard]] errc get(rank_id, const window&, std::size_t, std::span<std::byte>) noexcept {
    return errc::unsupported;
  }
  [[nodiscard]] errc fetch_add(rank_id, const window&, std::size_t, std::uint64_t,
                               std::uint64_t&) noexcept {
    return errc::unsupported;
  }
  [[nodiscard]] errc wait(const window&, signal_id, std::uint64_t, deadline,
                          std::optional<rank_id>) noexcept {
    return errc::unsupported;
  }
  [[nodiscard]] std::uint64_t value(const window&, signal_id) const noexcept { return 0; }
  [[nodiscard]] errc flush(rank_id) noexcept { return errc::unsupported; }
  [[nodiscard]] errc quiet() noexcept { return errc::unsupported; }
  [[nodiscard]] errc progress() noexcept { return errc::unsupported; }
  ///@}

 private:
  bootstrap* boot_;
};

static_assert(transport<transport_archetype> && !direct_transport<transport_archetype> &&
              !runnable_transport<transport_archetype>);

/// The minimal type that satisfies `direct_transport`.
class direct_transport_archetype : public transport_archetype {
 public:
  /// Names `peer_memory`, the only refinement that a direct transport needs.
  static constexpr transport_refinements refines{.peer_memory = true};

  using transport_archetype::transport_archetype;
  /// Returns nullptr, because a window of the archetype has no memory.
  [[nodiscard]] std::byte* peer_memory(const window&, rank_id) const noexcept { return nullptr; }
  ///@{
  /// Returns `unsupported` or 0, because a window of the archetype has no signals.
  [[nodiscard]] errc wait_at(rank_id, const window&, signal_id, std::uint64_t, deadline,
                             std::optional<rank_id>) noexcept {
    return errc::unsupported;
  }
  [[nodiscard]] std::uint64_t value_at(rank_id, const window&, signal_id) const noexcept {
    return 0;
  }
  ///@}
};

static_assert(direct_transport<direct_transport_archetype>);

/// The minimal type that satisfies `partly_direct_transport`.
class partly_direct_transport_archetype : public transport_archetype {
 public:
  /// Names `find_peer_memory`, the only refinement that a partly direct transport needs.
  static constexpr transport_refinements refines{.find_peer_memory = true};

  using transport_archetype::transport_archetype;
  /// Returns nullptr, because every peer is far.
  [[nodiscard]] std::byte* find_peer_memory(const window&, rank_id) const noexcept {
    return nullptr;
  }
};

static_assert(partly_direct_transport<partly_direct_transport_archetype>);

/// The minimal type that satisfies `adopting_transport`.
class adopting_transport_archetype : public transport_archetype {
 public:
  /// Names `adopt_window`, the only refinement that an adopting transport needs.
  static constexpr transport_refinements refines{.adopt_window = true};

  using transport_archetype::transport_archetype;
  /// Releases `memory`, and returns a window without memory.
  [[nodiscard]] window adopt_window(window_memory memory, deadline until) {
    memory.owner.reset();
    return make_window({}, until);
  }
};

static_assert(adopting_transport<adopting_transport_archetype>);

}  // namespace peerbus

// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
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
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus {

/// The optional calls that a transport has. A transport with optional calls names them:
///
///     static constexpr transport_refinements refines{.peer_memory = true, .signal_each = true};
///
/// A transport whose calls differ from the calls that it names does not satisfy `transport`. So a
/// call with a wrong signature, or without its name here, fails to compile; it is never passed over
/// in favour of a slower way.
struct transport_refinements {
  bool peer_memory = false;       ///< requirement 13: `direct_transport`
  bool find_peer_memory = false;  ///< requirement 14: `partly_direct_transport`
  bool put_run = false;           ///< requirement 15
  bool signal_each = false;       ///< requirement 16
  bool describe_trouble = false;  ///< requirement 17
  bool adopt_window = false;      ///< requirement 18: `adopting_transport`
  bool local_signals = false;     ///< requirement 19
  bool arrival_events = false;    ///< requirement 20
  bool private_memory = false;    ///< requirement 21
  bool reach = false;             ///< requirement 22
};

/// The peers whose memory the caller loads and stores like its own.
enum class peer_reach {
  all,   ///< all ranks are near each other
  near,  ///< the near peers, for which `find_peer_memory` returns an address
  none   ///< no peers: all other ranks are reached by requests
};

/// One write of a `put_run`: `source` goes to byte `offset` of the peer's part.
struct put_piece {
  std::size_t offset = 0;             ///< offset in bytes from the start of the peer's part
  std::span<const std::byte> source;  ///< bytes to write, unchanged until `flush`, as for `put`
};

/// A rank's part of a window as memory, which a transport lends or adopts.
struct window_memory {
  std::span<std::byte> data;                       ///< the bytes, aligned to a cache line
  std::span<signal_word> signals;                  ///< one word per signal
  std::shared_ptr<const void> owner;               ///< keeps `data` and `signals` alive
  traffic_class traffic = traffic_class::latency;  ///< the class of the window, as in
                                                   ///< `window_shape`
};

namespace detail {

/// A type without `T::refines`, or whose `T::refines` is a constant of type
/// `transport_refinements`.
template <class T>
concept has_sound_refines =
    !requires { T::refines; } || std::same_as<decltype(T::refines), const transport_refinements>;

/// Returns the refinements that `T` names.
template <class T>
consteval transport_refinements refinements_of() {
  if constexpr (requires { T::refines; } && has_sound_refines<T>)
    return T::refines;
  else
    return {};
}

template <class T>
concept has_peer_memory = requires(const T& idle, const typename T::window& window, rank_id peer) {
  { idle.peer_memory(window, peer) } noexcept -> std::same_as<std::byte*>;
};

template <class T>
concept has_peer_signals =
    requires(T& bus, const T& idle, const typename T::window& window, rank_id owner, signal_id id,
             std::uint64_t value, deadline until, std::optional<rank_id> awaited) {
      { bus.wait_at(owner, window, id, value, until, awaited) } noexcept -> std::same_as<errc>;
      { idle.value_at(owner, window, id) } noexcept -> std::same_as<std::uint64_t>;
    };

template <class T>
concept has_find_peer_memory =
    requires(const T& idle, const typename T::window& window, rank_id peer) {
      { idle.find_peer_memory(window, peer) } noexcept -> std::same_as<std::byte*>;
    };

template <class T>
concept has_put_run = requires(T& bus, const typename T::window& window, rank_id peer,
                               std::span<const put_piece> pieces) {
  { bus.put_run(peer, window, pieces) } noexcept -> std::same_as<errc>;
};

template <class T>
concept has_signal_each =
    requires(T& bus, const typename T::window& window, std::span<const rank_id> peers, signal_id id,
             std::uint64_t value) {
      { bus.signal_each(peers, window, id, value) } noexcept -> std::same_as<errc>;
    };

template <class T>
concept has_describe_trouble = requires(const T& idle) {
  { idle.describe_trouble() } -> std::same_as<std::string>;
};

template <class T>
concept has_adopt_window = requires(T& bus, window_memory memory, deadline until) {
  { bus.adopt_window(std::move(memory), until) } -> std::same_as<typename T::window>;
};

template <class T>
concept has_local_signals = requires(const T& idle, const typename T::window& window) {
  { idle.local_signals(window) } noexcept -> std::same_as<std::span<signal_word>>;
};

template <class T>
concept has_arrival_events = requires(T& bus, const T& idle, std::optional<rank_id> awaited) {
  { idle.arrival_fd() } noexcept -> std::same_as<int>;
  { bus.arm() } noexcept -> std::same_as<bool>;
  { bus.disarm() } noexcept -> std::same_as<void>;
  { bus.health(awaited) } noexcept -> std::same_as<errc>;
};

template <class T>
concept has_get_private = requires(T& bus, const typename T::window& window, rank_id peer,
                                   std::uint64_t address, std::span<std::byte> target) {
  { bus.get_private(peer, window, address, target) } noexcept -> std::same_as<errc>;
};

template <class T>
concept has_reach = requires(const T& idle) {
  { idle.reach() } noexcept -> std::same_as<peer_reach>;
};

/// A type that has exactly the refinements that it names.
template <class T>
concept has_what_it_refines =
    has_sound_refines<T> && (refinements_of<T>().peer_memory == has_peer_memory<T>) &&
    ((refinements_of<T>().peer_memory || refinements_of<T>().reach) == has_peer_signals<T>) &&
    (refinements_of<T>().find_peer_memory == has_find_peer_memory<T>) &&
    (refinements_of<T>().put_run == has_put_run<T>) &&
    (refinements_of<T>().signal_each == has_signal_each<T>) &&
    (refinements_of<T>().describe_trouble == has_describe_trouble<T>) &&
    (refinements_of<T>().adopt_window == has_adopt_window<T>) &&
    (refinements_of<T>().local_signals == has_local_signals<T>) &&
    (refinements_of<T>().arrival_events == has_arrival_events<T>) &&
    (refinements_of<T>().private_memory == has_get_private<T>) &&
    (refinements_of<T>().reach == has_reach<T>) &&
    // A transport with the memory of all peers has that of the near ones.
    !(refinements_of<T>().peer_memory && refinements_of<T>().find_peer_memory) &&
    // A `reach` speaks of `find_peer_memory`.
    refinements_of<T>().reach <= refinements_of<T>().find_peer_memory;

}  // namespace detail

}  // namespace peerbus

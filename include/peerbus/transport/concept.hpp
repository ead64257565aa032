// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus {

/// The part of a window that each rank contributes: `bytes` of memory and `signals` signal words.
struct window_shape {
  std::size_t bytes = 0;    ///< size of a rank's data, in bytes; the same on all ranks
  std::size_t signals = 0;  ///< number of a rank's signal words; they are numbered from 0
  /// The class of everything that is sent to the window; the same on all ranks.
  traffic_class traffic = traffic_class::latency;
};

/// The parts of the contract that a transport may leave out, depending on its device.
struct transport_capabilities {
  /// `put` may read from, and `get` may write to, any memory of the caller. Otherwise this memory
  /// must lie in the local part of a window of the same transport.
  bool any_local_memory = false;
  /// `fetch_add` works (it returns `unsupported` otherwise).
  bool fetch_add = false;
  /// Windows of different classes have separate queues, and bulk traffic yields to latency traffic.
  /// Otherwise the class of a window changes nothing.
  bool traffic_classes = false;
};

/// One-sided communication among the ranks of a bootstrap.
///
/// Set-up
///  1. Making a transport over a bootstrap is collective. The transport keeps a reference to the
///     bootstrap, `boot()`, which outlives the transport and its windows.
///  2. `bus.make_window(shape, until)` is collective, with the same shape on all ranks, and throws
///     on all ranks or on none. The memory is zero. A window may be destroyed at any time after the
///     owner's last operation on it; destruction is not collective, and the transport keeps the
///     memory while peers may still access it. A window can be moved. If it is assigned to another
///     window, the memory of that window is released. `shape.traffic` is advice: a transport
///     without `traffic_classes` in `capabilities()` treats all classes alike.
///  3. `bus.local(window)` is the caller's own part: `shape.bytes` long, aligned to a cache line.
///
/// Data path. Every function is noexcept and allocates nothing. It takes no lock except that of a
/// device's queue. It makes no system call except to notify a device of requests, to yield, park
/// and wake, and to check in a long wait whether its peers are alive. It returns `errc::ok`, or the
/// reason why it did nothing: for a peer or range that does not exist, `out_of_range` before any
/// byte is written.
///  4. `put(peer, window, offset, source)` writes `source` at byte `offset` of the peer's part.
///     Unordered with other puts. `source` stays unchanged until `flush(peer)` or a later completed
///     `wait` that proves delivery.
///  5. `signal(peer, window, id, value)` makes signal `id` of the peer's part at least `value`,
///     after all earlier puts of this rank to that peer are visible there (release). This covers
///     only puts to windows of the same traffic class as `window`. Only one rank at a time may
///     raise a signal, and never to a smaller value than before; transports do not check this.
///     Signals to one peer in windows of one class arrive in order.
///  6. `put_signal(...)` is 4 followed by 5, as one operation where the hardware has one.
///  7. `get(peer, window, offset, target)` reads from byte `offset` of the peer's part. `target` is
///     filled after `flush(peer)`.
///  8. `fetch_add(peer, window, offset, addend, before)` adds to the 64-bit word at `offset` (a
///     multiple of 8) atomically with respect to other `fetch_add`s. `before` is filled on return.
///  9. `wait(window, id, value, until, awaited)` returns ok once signal `id` of the caller's own
///     part is at least `value`; then everything before the matching `signal` is visible (acquire).
///     Returns `timed_out` after `until`; `peer_dead` within milliseconds if any rank dies, if
///     `awaited` leaves, or if all other ranks leave. A `wait` checks whether its peers are alive
///     before it returns `timed_out`. So short waits in a loop, even with a deadline in the past,
///     end with `peer_dead` as soon as one long wait does. 10 does not check peers.
///  10. `value(window, id)` is the present value of the caller's own signal (acquire), or 0 if
///     there is no such signal.
///  11. `flush(peer)`: sources and targets of earlier calls to `peer` are reusable. `quiet()`:
///     earlier puts to all peers are visible there. Both hold for windows of all classes.
///  12. `progress()` advances requests on transports that do so only in the caller's calls.
///
/// Cost: if loads and stores reach the memory of peers, 4 and 7 copy the bytes once, 5 is a store
/// and a fence, 8 is an atomic instruction, and 11 and 12 do nothing. If a device carries the
/// operations, 4 and 7 are requests that this rank does not copy, 5 travels with the last put where
/// it can, and 8 is a round trip. 9 spins before it yields and sleeps.
///
/// Refinements. A transport names those that it has in `refines`; see `transport_refinements`.
///  13. `peer_memory(window, peer)`, for a rank that exists, is the start of its part of
///     `shape.bytes`. Plain stores through it are ordered before a later `signal` to that peer, as
///     puts are; plain loads after a `wait` see what its signal published. `wait_at(owner, window,
///     id, value, until, awaited)` and `value_at(owner, window, id)` are 9 and 10 for a signal in
///     the part of `owner`, for which any number of ranks may wait. So one signal tells all ranks:
///     5 then holds for all earlier puts and stores of the raiser to any rank. All ranks are near
///     each other, so that `boot().shares_cores()` is the same on all of them.
///  14. `find_peer_memory(window, peer)`, for a rank that exists, is the address of 13 if `peer` is
///     near, and nullptr if it is far. Nearness is the same in every window, and the same for both
///     ranks of a pair. A rank is not asked about itself.
///  15. `put_run(peer, window, pieces)` is 4 for each of `pieces`, in their order, as one
///     operation. If a piece is out of range, none is written.
///  16. `signal_each(peers, window, id, value)` is 5 for each of `peers`. If a peer does not exist,
///     no signal is raised.
///  17. `describe_trouble()` is a text that says which connections broke and why, or an empty
///     string. 4 to 12 return `unreachable` after a break. A transport without 17 cannot break: all
///     its memory is this machine's.
///  18. `adopt_window(memory, until)` is 2 for memory of the caller: `memory.data` and
///     `memory.signals`, equally long on all ranks and all zero, become the caller's part, of the
///     class `memory.traffic`. Memory that is missing or not aligned to a cache line is refused as
///     invalid_argument. The transport keeps `memory.owner` as long as peers may access the part.
///     Another transport may raise the same signals: the last raise of a signal determines
///     its value, and no raise lowers it.
///  19. `local_signals(window)` are the signal words of the caller's own part. Peers store to them
///     by `signal_word::raise`.
///  20. `arrival_fd()` is a descriptor for `poll`, or -1 if there is none; `arm` then returns
///     false.
///     `arm()` takes what has arrived; if it returns true, what arrives later makes the descriptor
///     readable until `disarm()`, which the same thread calls. Another thread of the rank may take
///     the arrival first, so callers sleep for no more than milliseconds. Only one thread at a time
///     is armed: `arm` returns false to any other.
///     `health(awaited)` is the code with which 9 would end while nothing arrives, or ok. So one
///     thread can sleep for several transports.
///  21. `get_private(peer, window, address, target)` is 7 from the private memory of the peer's
///     process: `address` is an address there, and the memory need not lie in a window. Complete on
///     return. When `window` is made, each rank finds out for each peer whether the read is
///     possible. Returns `unsupported` if it is not, or no longer; `out_of_range` if part of the
///     memory cannot be read, and then `target` may be partly filled; `peer_dead` if the process is
///     gone.
///  22. `reach()` tells at run time which peers' memory 14 finds. It is the same on all ranks and
///     never changes. If it is `all`, 13 holds, with `find_peer_memory` for `peer_memory`.
///     Otherwise `wait_at` and `value_at` are for the caller's own part only.
///
/// Threads: different windows may be used by different threads at once; one window's data-path
/// calls may come from several threads as long as they touch different bytes and signals.
template <class T>
concept transport =
    std::move_constructible<T> && std::movable<typename T::window> &&
    requires(T& bus, const T& idle, const typename T::window& window, rank_id peer,
             window_shape shape, std::size_t offset, std::span<const std::byte> source,
             std::span<std::byte> target, signal_id id, std::uint64_t value, std::uint64_t& before,
             deadline until, std::optional<rank_id> awaited) {
      { idle.boot() } noexcept -> std::same_as<bootstrap&>;
      { idle.capabilities() } noexcept -> std::same_as<transport_capabilities>;
      { bus.make_window(shape, until) } -> std::same_as<typename T::window>;
      { idle.local(window) } noexcept -> std::same_as<std::span<std::byte>>;
      { bus.put(peer, window, offset, source) } noexcept -> std::same_as<errc>;
      { bus.signal(peer, window, id, value) } noexcept -> std::same_as<errc>;
      { bus.put_signal(peer, window, offset, source, id, value) } noexcept -> std::same_as<errc>;
      { bus.get(peer, window, offset, target) } noexcept -> std::same_as<errc>;
      { bus.fetch_add(peer, window, offset, value, before) } noexcept -> std::same_as<errc>;
      { bus.wait(window, id, value, until, awaited) } noexcept -> std::same_as<errc>;
      { idle.value(window, id) } noexcept -> std::same_as<std::uint64_t>;
      { bus.flush(peer) } noexcept -> std::same_as<errc>;
      { bus.quiet() } noexcept -> std::same_as<errc>;
      { bus.progress() } noexcept -> std::same_as<errc>;
    } &&
    detail::has_what_it_refines<T>;

/// A transport by which a rank loads and stores the memory of all peers like its own: requirement
/// 13.
template <class T>
concept direct_transport = transport<T> && detail::refinements_of<T>().peer_memory;

/// A transport by which a rank loads and stores the memory of near peers: requirement 14. Only 4 to
/// 8 reach far peers.
template <class T>
concept partly_direct_transport = transport<T> && detail::refinements_of<T>().find_peer_memory;

/// A transport that makes windows of existing memory: requirement 18.
template <class T>
concept adopting_transport = transport<T> && detail::refinements_of<T>().adopt_window;

/// The form in which ranks are made.
enum class rank_kind {
  threads,    ///< threads of the process that calls `run`
  processes,  ///< processes that `run` forks
  fibres      ///< fibres of the thread that calls `run`; `T::run_ranks(n, f)` starts them, in place
              ///< of `run_threads`
};

/// A transport of which `run` needs only the type: `T{boot}` makes the transport, and
/// `T::ranks_are` states the kind of ranks that `run` must start.
template <class T>
concept runnable_transport = transport<T> && std::constructible_from<T, bootstrap&> &&
                             std::same_as<decltype(T::ranks_are), const rank_kind>;

}  // namespace peerbus

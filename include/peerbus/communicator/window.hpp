// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

/// A contiguous range of objects that may be copied as bytes.
template <class R>
concept spannable = requires(R&& range) {
  std::span{range};
  requires std::is_trivially_copyable_v<typename decltype(std::span{range})::element_type>;
};

/// Memory of a communicator's ranks that all of them may write: one part of the same size on each
/// rank. `communicator::make_window` makes it. The destructor releases it and is not collective.
/// Moving a window into another releases the memory of the target. A window must not outlive its
/// communicator. Offsets are bytes from the start of a rank's part.
///
/// The functions that return `errc` are the data path: noexcept, no allocation, no lock except that
/// of a device's queue. They return ok, or the reason why they did nothing: out_of_range for a
/// rank, signal or bytes that do not exist, invalid_argument for local memory that the transport
/// cannot use (`transport_capabilities::any_local_memory`), timed_out, unreachable or peer_dead.
/// `transport` has the numbered semantics.
template <transport Transport>
class window {
 public:
  /// Takes the transport's window `memory`, which must have the shape `shape`. For
  /// `communicator::make_window`. `bus` must outlive the window. `number` is the result of
  /// `number()`.
  window(Transport& bus, window_shape shape, typename Transport::window memory,
         std::uint32_t number = 0)
      : bus_{&bus}, shape_{shape}, number_{number}, memory_{std::move(memory)} {}

  /// Returns the shape of the part that each rank contributes.
  [[nodiscard]] window_shape shape() const noexcept { return shape_; }
  /// Returns the number of the window among the windows of its communicator, which increases in the
  /// order in which they are made. The same on all ranks. The communicator itself, teams and
  /// exchanges make windows, too.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  /// Returns the transport of the communicator that made the window.
  [[nodiscard]] const Transport& bus() const noexcept { return *bus_; }
  /// Returns the transport's own window, for code that drives the transport itself.
  [[nodiscard]] const typename Transport::window& memory() const noexcept { return memory_; }

  /// Returns this rank's part, as whole `T`s.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<T> local() const noexcept {
    const auto bytes = bus_->local(memory_);
    return {peerbus::detail::placed<T>(bytes.data()), bytes.size() / sizeof(T)};
  }

  /// Returns the part of `peer`, as whole `T`s, for loads and stores. The rank must exist.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T> && direct_transport<Transport>
  [[nodiscard]] std::span<T> peer(rank_id peer) const noexcept {
    return {peerbus::detail::placed<T>(bus_->peer_memory(memory_, peer)), shape_.bytes / sizeof(T)};
  }

  /// Returns the part of `peer`, as whole `T`s, for loads and stores. Empty if `peer` is far. The
  /// rank must exist.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T> && partly_direct_transport<Transport>
  [[nodiscard]] std::span<T> find_peer(rank_id peer) const noexcept {
    std::byte* const part = bus_->find_peer_memory(memory_, peer);
    return {peerbus::detail::placed<T>(part), part == nullptr ? 0 : shape_.bytes / sizeof(T)};
  }

  /// Writes `source` (anything that converts to a span) at byte `offset` of the peer's part. The
  /// bytes are visible there after a later `signal` to the peer; `source` is reusable after
  /// `flush`.
  /// Cost: a direct transport copies `source` once. Others send it directly from `source`.
  /// Returns: out_of_range, with nothing written, if the bytes do not lie within the part.
  template <spannable Source>
  [[nodiscard]] errc put(rank_id peer, std::size_t offset, const Source& source) noexcept {
    return bus_->put(peer, memory_, offset, std::as_bytes(std::span{source}));
  }
  /// Does a `put` for each of `pieces`, in their order, as one operation if the transport supports
  /// that.
  /// Cost: that of the puts, with the lock of the peer's queue taken once if there are queues.
  /// Returns: out_of_range, with nothing written, if a piece does not lie within the part.
  [[nodiscard]] errc put_run(rank_id peer, std::span<const put_piece> pieces) noexcept {
    return detail::put_run(*bus_, peer, memory_, pieces);
  }
  /// Does a `put`, then a `signal`, as one operation if the hardware supports that.
  /// Cost: that of both.
  template <spannable Source>
  [[nodiscard]] errc put_signal(rank_id peer, std::size_t offset, const Source& source,
                                signal_id id, std::uint64_t value) noexcept {
    return bus_->put_signal(peer, memory_, offset, std::as_bytes(std::span{source}), id, value);
  }
  /// Reads from byte `offset` of the peer's part into `target`. Complete after `flush`.
  /// Cost: a direct transport copies the bytes once. Others request them from the peer's device.
  template <spannable Target>
  [[nodiscard]] errc get(rank_id peer, std::size_t offset, Target&& target) noexcept {
    return bus_->get(peer, memory_, offset, std::as_writable_bytes(std::span{target}));
  }
  /// Reads into `target` from address `address` of the private memory of the peer's process.
  /// Complete on return. `transport` says when that is possible.
  /// Cost: one copy by the kernel: a system call, and some time for each page.
  /// Returns: ok; unsupported if this process may not read there; out_of_range if not all of it is
  /// readable memory, with some of it in `target`, or if the rank does not exist; peer_dead.
  template <spannable Target>
    requires(detail::refinements_of<Transport>().private_memory)
  [[nodiscard]] errc get_private(rank_id peer, std::uint64_t address, Target&& target) noexcept {
    return bus_->get_private(peer, memory_, address, std::as_writable_bytes(std::span{target}));
  }
  /// Raises signal `id` of the peer to `value`. This happens after all earlier puts of this rank to
  /// that peer are visible there; over a direct transport, after all its earlier puts and stores to
  /// any rank. `value` must not be below the present value. Only one rank at a time may raise a
  /// signal.
  /// Cost: over a direct transport a store and a fence, and a system call if the peer sleeps. Over
  /// others a message, or a part of the message of the last put.
  [[nodiscard]] errc signal(rank_id peer, signal_id id, std::uint64_t value) noexcept {
    return bus_->signal(peer, memory_, id, value);
  }
  /// Raises signal `id` of each of `peers`, as one operation if the transport supports that.
  /// Cost: that of a signal to each, with one fence over a direct transport.
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, signal_id id,
                                 std::uint64_t value) noexcept {
    return detail::signal_each(*bus_, peers, memory_, id, value);
  }
  /// Adds `addend` to the 64-bit word at byte `offset` of the peer's part, a multiple of 8. Sets
  /// `before` to its previous value.
  /// Cost: over a direct transport one atomic instruction. Over others a round trip.
  [[nodiscard]] errc fetch_add(rank_id peer, std::size_t offset, std::uint64_t addend,
                               std::uint64_t& before) noexcept {
    return bus_->fetch_add(peer, memory_, offset, addend, before);
  }
  /// Waits until sources and targets of earlier calls to `peer` are reusable.
  /// Cost: none over a direct transport, whose calls are complete when they return.
  /// Returns: ok, out_of_range if the rank does not exist, unreachable.
  [[nodiscard]] errc flush(rank_id peer) noexcept { return bus_->flush(peer); }

  /// Waits until this rank's own signal `id` is at least `value`. The wait ends early if any rank
  /// dies, if all others leave, or if `awaited` leaves, which is the rank that will raise the
  /// signal. Before a wait returns `timed_out`, it also checks for these ends, which takes a system
  /// call; `value` only looks at the signal.
  /// Cost: a load if the signal is already raised. Otherwise the thread spins, yields, then sleeps.
  /// Returns: ok, timed_out, peer_dead, unreachable, out_of_range if the signal or rank does not
  /// exist.
  [[nodiscard]] errc wait(signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited = std::nullopt) noexcept {
    return bus_->wait(memory_, id, value, until, awaited);
  }
  /// Waits as `wait` does, for a signal in the part of `owner`. Any number of ranks may wait for
  /// it, so that one signal tells all of them. The transport must reach all peers, by its type or
  /// by `bus().reach()`.
  /// Returns: as `wait`; out_of_range also if rank `owner` does not exist.
  template <transport Direct = Transport>
    requires detail::has_peer_signals<Direct>
  [[nodiscard]] errc wait_at(rank_id owner, signal_id id, std::uint64_t value, deadline until,
                             std::optional<rank_id> awaited = std::nullopt) noexcept {
    return bus_->wait_at(owner, memory_, id, value, until, awaited);
  }
  /// Returns the present value of this rank's own signal, or 0 if it does not exist. Bytes that
  /// were put before it was raised are visible.
  /// Cost: a load, and a poll for arrivals if signals arrive by a device.
  [[nodiscard]] std::uint64_t value(signal_id id) const noexcept {
    return bus_->value(memory_, id);
  }
  /// Returns the present value of a signal in the part of `owner`, as `value` does.
  /// Cost: a load.
  template <transport Direct = Transport>
    requires detail::has_peer_signals<Direct>
  [[nodiscard]] std::uint64_t value_at(rank_id owner, signal_id id) const noexcept {
    return bus_->value_at(owner, memory_, id);
  }

  /// Waits as `wait` does, and throws if `wait` returns a failure.
  /// Cost: as `wait`.
  /// Throws: `error` with the expected and the present value and the missing ranks.
  void await(signal_id id, std::uint64_t value, deadline until,
             std::optional<rank_id> awaited = std::nullopt) {
    const membership& members = *bus_->boot().members();
    const auto wait_begun =
        members.begin_wait({.operation = group_operation::signal, .number = value});
    const errc code = wait(id, value, until, awaited);
    if (code == errc::ok) return members.end_wait(wait_begun, {.epoch = value, .last = awaited});
    members.fail_wait(wait_begun, code, awaited);
    std::string text = detail::concat("wait for signal ", index(id), " of ", shape_.signals);
    if (awaited) text += detail::concat(" from ", *awaited);
    text += detail::concat(": expected at least ", value, ", seen ", this->value(id), " after ",
                           detail::describe_elapsed(wait_begun));
    if (awaited)
      if (const auto seen = members.describe_last_seen(*awaited); !seen.empty())
        text += detail::concat("; ", *awaited, " ", seen);
    if (const auto missing = describe_absence(*bus_); !missing.empty()) text += "; " + missing;
    throw error{code, text};
  }

 private:
  Transport* bus_;
  window_shape shape_;
  std::uint32_t number_;
  typename Transport::window memory_;
};

}  // namespace peerbus

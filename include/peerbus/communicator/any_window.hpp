// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

/// A window without the type of its transport. Exchanges, teams and channels use it, so that they
/// are compiled once for all transports. They use a transport in no other way.
///
/// The type of the transport is erased, and with it the set of its optional calls: `put_run` and
/// `signal_each` are available for all transports. Direct access becomes a value: `part` returns
/// the address of a rank's part, or nullptr if it cannot be loaded and stored to.
///
/// Functions that return `errc` return ok or the first failure of the transport. They have the
/// contract of the function of the same name in `window`.
///
/// Cost: a call costs one virtual call more than that of the transport. Functions that are not
/// virtual cost one or two loads; in particular, loads from near parts and stores to them cost no
/// call. Memory is allocated when the window is made, and never later.
/// Ownership: an object owns its window, and releases it when it is destroyed, which is not
/// collective. The group must outlive the object. An object is neither copied nor moved.
/// Threads: as `transport` says for windows.
class any_window {
 public:
  any_window(const any_window&) = delete;
  any_window& operator=(const any_window&) = delete;
  virtual ~any_window() = default;

  /// Returns the ranks that share the window.
  [[nodiscard]] rank_group& group() const noexcept { return *group_; }
  /// Returns whether this rank can load, store and wait in the parts of all ranks, as the transport
  /// promises by its type or `reach`.
  [[nodiscard]] bool is_direct() const noexcept { return is_direct_; }
  /// Returns the start of this rank's part.
  [[nodiscard]] std::byte* local() const noexcept { return part(group_->rank()); }
  /// Returns the start of the part of `rank`, or nullptr if loads and stores do not reach it.
  [[nodiscard]] std::byte* part(rank_id rank) const noexcept { return parts_[rank.index()]; }

  ///@{
  /// Moves bytes to a peer, raises signals there, or does both.
  [[nodiscard]] virtual errc put(rank_id peer, std::size_t offset,
                                 std::span<const std::byte> source) noexcept = 0;
  [[nodiscard]] virtual errc put_run(rank_id peer, std::span<const put_piece> pieces) noexcept = 0;
  [[nodiscard]] virtual errc put_signal(rank_id peer, std::size_t offset,
                                        std::span<const std::byte> source, signal_id id,
                                        std::uint64_t value) noexcept = 0;
  [[nodiscard]] virtual errc signal(rank_id peer, signal_id id, std::uint64_t value) noexcept = 0;
  [[nodiscard]] virtual errc signal_each(std::span<const rank_id> peers, signal_id id,
                                         std::uint64_t value) noexcept = 0;
  ///@}
  /// Reads from the part of a peer. Complete after `settle`.
  [[nodiscard]] virtual errc get(rank_id peer, std::size_t offset,
                                 std::span<std::byte> target) noexcept = 0;
  /// Reads private memory of a peer's process, from an address there. Complete on return. Returns
  /// `unsupported` also if the transport does not read private memory.
  [[nodiscard]] virtual errc get_private(rank_id peer, std::uint64_t address,
                                         std::span<std::byte> target) noexcept = 0;
  /// Waits for a signal in the part of `owner`: this rank, or any rank if the window `is_direct`.
  /// `raiser` is the rank that will raise the signal.
  [[nodiscard]] virtual errc wait_at(rank_id owner, signal_id id, std::uint64_t value,
                                     deadline until, rank_id raiser) noexcept = 0;
  /// Returns the present value of a signal in the part of `owner`. `owner` is as for `wait_at`.
  [[nodiscard]] virtual std::uint64_t value_at(rank_id owner, signal_id id) const noexcept = 0;
  /// Waits until all puts of this rank are complete at their peers, and all its reads at this rank.
  [[nodiscard]] virtual errc settle() noexcept = 0;

 protected:
  /// Makes a window of `group`, which must outlive it. The derived class sets the parts.
  any_window(rank_group& group, bool is_direct)
      : group_{&group}, parts_(group.size()), is_direct_{is_direct} {}

  /// Sets the start of the part of `rank`.
  void set_part(rank_id rank, std::byte* start) noexcept { parts_[rank.index()] = start; }

 private:
  rank_group* group_;
  std::vector<std::byte*> parts_;  ///< [ranks]
  bool is_direct_;
};

/// A window of a communicator, as an `any_window`. It calls the transport without further
/// indirection.
template <transport Transport>
class any_window_over final : public any_window {
 public:
  /// Takes the window `made`. `comm` must outlive it.
  any_window_over(communicator<Transport>& comm, window<Transport> made)
      : any_window{comm, reach_of(comm.bus()) == peer_reach::all},
        bus_{&comm.bus()},
        memory_{std::move(made)} {
    for (const rank_id rank : comm.ranks()) set_part(rank, find_part(rank));
  }

  /// Returns the window with its type.
  [[nodiscard]] window<Transport>& memory() noexcept { return memory_; }

  [[nodiscard]] errc put(rank_id peer, std::size_t offset,
                         std::span<const std::byte> source) noexcept override {
    return bus_->put(peer, memory_.memory(), offset, source);
  }
  [[nodiscard]] errc put_run(rank_id peer, std::span<const put_piece> pieces) noexcept override {
    return detail::put_run(*bus_, peer, memory_.memory(), pieces);
  }
  [[nodiscard]] errc put_signal(rank_id peer, std::size_t offset, std::span<const std::byte> source,
                                signal_id id, std::uint64_t value) noexcept override {
    return bus_->put_signal(peer, memory_.memory(), offset, source, id, value);
  }
  [[nodiscard]] errc signal(rank_id peer, signal_id id, std::uint64_t value) noexcept override {
    return bus_->signal(peer, memory_.memory(), id, value);
  }
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, signal_id id,
                                 std::uint64_t value) noexcept override {
    return detail::signal_each(*bus_, peers, memory_.memory(), id, value);
  }
  [[nodiscard]] errc get(rank_id peer, std::size_t offset,
                         std::span<std::byte> target) noexcept override {
    return bus_->get(peer, memory_.memory(), offset, target);
  }
  [[nodiscard]] errc get_private(rank_id peer, std::uint64_t address,
                                 std::span<std::byte> target) noexcept override {
    return detail::get_private(*bus_, peer, memory_.memory(), address, target);
  }
  [[nodiscard]] errc wait_at(rank_id owner, signal_id id, std::uint64_t value, deadline until,
                             rank_id raiser) noexcept override {
    if constexpr (detail::has_peer_signals<Transport>)
      if (owner != group().rank())
        return bus_->wait_at(owner, memory_.memory(), id, value, until, raiser);
    return bus_->wait(memory_.memory(), id, value, until, raiser);
  }
  [[nodiscard]] std::uint64_t value_at(rank_id owner, signal_id id) const noexcept override {
    if constexpr (detail::has_peer_signals<Transport>)
      if (owner != group().rank()) return bus_->value_at(owner, memory_.memory(), id);
    return bus_->value(memory_.memory(), id);
  }
  [[nodiscard]] errc settle() noexcept override {
    for (const rank_id peer : group().peers())
      if (const errc code = bus_->flush(peer); code != errc::ok) return code;
    // A rank may read its own part through the transport, too.
    if (const errc code = bus_->flush(group().rank()); code != errc::ok) return code;
    return bus_->quiet();
  }

 private:
  [[nodiscard]] std::byte* find_part(rank_id rank) const noexcept {
    if (rank == group().rank()) return memory_.local().data();
    if constexpr (direct_transport<Transport>)
      return bus_->peer_memory(memory_.memory(), rank);
    else if constexpr (partly_direct_transport<Transport>)
      return bus_->find_peer_memory(memory_.memory(), rank);
    else
      return nullptr;
  }

  Transport* bus_;
  window<Transport> memory_;
};

/// A callable that makes a window of one communicator, for code that does not know the type of its
/// transport. Collective.
/// Throws: as `make_any_window`.
using window_source =
    detail::function_ref<std::unique_ptr<any_window>(window_shape shape, deadline until)>;

/// Makes a window of `comm`, which must outlive it. Collective.
/// Throws: as `communicator::make_window`; on one rank only, `std::bad_alloc`, so that the caller
/// must make all ranks agree (`on_all_ranks`).
template <transport Transport>
[[nodiscard]] std::unique_ptr<any_window> make_any_window(communicator<Transport>& comm,
                                                          window_shape shape, deadline until) {
  return std::make_unique<any_window_over<Transport>>(comm, comm.make_window(shape, until));
}

}  // namespace peerbus

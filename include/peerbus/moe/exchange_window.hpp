// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::moe {

/// The window of an exchange without the type of its transport, so that the messages and the roads
/// of exchanges are compiled once for all transports. `exchange_window_over` is the only class of
/// an exchange that knows the transport.
///
/// Functions that return `errc` return ok or the first failure of the transport. They have the
/// contract of the function of the same name in `window`.
class exchange_window {
 public:
  exchange_window(const exchange_window&) = delete;
  exchange_window& operator=(const exchange_window&) = delete;
  virtual ~exchange_window() = default;

  /// Returns the ranks that share the window.
  [[nodiscard]] rank_group& group() const noexcept { return *group_; }
  /// Returns whether this rank can load, store and wait in the parts of all ranks, as the transport
  /// promises by its type.
  [[nodiscard]] bool is_direct() const noexcept { return is_direct_; }
  /// Returns the start of this rank's part.
  [[nodiscard]] std::byte* local() const noexcept { return part(group_->rank()); }
  /// Returns the start of the part of `rank`, or nullptr if loads and stores do not reach it.
  [[nodiscard]] std::byte* part(rank_id rank) const noexcept { return parts_[rank.index()]; }

  /// Reads from the part of a peer. Done after `settle`.
  [[nodiscard]] virtual errc get(rank_id peer, std::size_t offset,
                                 std::span<std::byte> target) noexcept = 0;
  ///@{ Moves bytes to a peer, or raises signals there.
  [[nodiscard]] virtual errc put(rank_id peer, std::size_t offset,
                                 std::span<const std::byte> source) noexcept = 0;
  [[nodiscard]] virtual errc put_run(rank_id peer, std::span<const put_piece> pieces) noexcept = 0;
  [[nodiscard]] virtual errc signal(rank_id peer, signal_id id, std::uint64_t value) noexcept = 0;
  [[nodiscard]] virtual errc signal_each(std::span<const rank_id> peers, signal_id id,
                                         std::uint64_t value) noexcept = 0;
  ///@}
  /// Waits for a signal in the part of `owner`: this rank, or any if the window `is_direct`.
  [[nodiscard]] virtual errc wait_at(rank_id owner, signal_id id, std::uint64_t value,
                                     deadline until, rank_id raiser) noexcept = 0;
  /// Returns a signal in the part of `owner`, as for `wait_at`.
  [[nodiscard]] virtual std::uint64_t value_at(rank_id owner, signal_id id) const noexcept = 0;
  /// Waits until all puts of this rank are complete at their peers, and all its reads here.
  [[nodiscard]] virtual errc settle() noexcept = 0;

 protected:
  /// Makes a window of `group`, which outlives it. The derived class sets the parts.
  exchange_window(rank_group& group, bool is_direct)
      : group_{&group}, parts_(group.size()), is_direct_{is_direct} {}

  /// Says where the part of `rank` lies.
  void set_part(rank_id rank, std::byte* start) noexcept { parts_[rank.index()] = start; }

 private:
  rank_group* group_;
  std::vector<std::byte*> parts_;  ///< [ranks]
  bool is_direct_;
};

/// A window of a communicator, as an `exchange_window`.
template <transport Transport>
class exchange_window_over final : public exchange_window {
 public:
  /// Takes the window `made`. `comm` outlives it.
  exchange_window_over(communicator<Transport>& comm, window<Transport> made)
      : exchange_window{comm, direct_transport<Transport>}, comm_{&comm}, memory_{std::move(made)} {
    for (const rank_id rank : comm.ranks()) set_part(rank, find_part(rank));
  }

  /// Returns the window with its type.
  [[nodiscard]] window<Transport>& memory() noexcept { return memory_; }

  [[nodiscard]] errc get(rank_id peer, std::size_t offset,
                         std::span<std::byte> target) noexcept override {
    return memory_.get(peer, offset, target);
  }
  [[nodiscard]] errc put(rank_id peer, std::size_t offset,
                         std::span<const std::byte> source) noexcept override {
    return memory_.put(peer, offset, source);
  }
  [[nodiscard]] errc put_run(rank_id peer, std::span<const put_piece> pieces) noexcept override {
    return memory_.put_run(peer, pieces);
  }
  [[nodiscard]] errc signal(rank_id peer, signal_id id, std::uint64_t value) noexcept override {
    return memory_.signal(peer, id, value);
  }
  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, signal_id id,
                                 std::uint64_t value) noexcept override {
    return memory_.signal_each(peers, id, value);
  }
  [[nodiscard]] errc wait_at(rank_id owner, signal_id id, std::uint64_t value, deadline until,
                             rank_id raiser) noexcept override {
    if constexpr (direct_transport<Transport>)
      if (owner != comm_->rank()) return memory_.wait_at(owner, id, value, until, raiser);
    return memory_.wait(id, value, until, raiser);
  }
  [[nodiscard]] std::uint64_t value_at(rank_id owner, signal_id id) const noexcept override {
    if constexpr (direct_transport<Transport>)
      if (owner != comm_->rank()) return memory_.value_at(owner, id);
    return memory_.value(id);
  }
  [[nodiscard]] errc settle() noexcept override {
    for (const rank_id peer : comm_->peers())
      if (const errc code = memory_.flush(peer); code != errc::ok) return code;
    return comm_->bus().quiet();
  }

 private:
  [[nodiscard]] std::byte* find_part(rank_id rank) const noexcept {
    if (rank == comm_->rank()) return memory_.local().data();
    if constexpr (direct_transport<Transport>)
      return memory_.peer(rank).data();
    else if constexpr (partly_direct_transport<Transport>)
      return memory_.find_peer(rank).data();
    else
      return nullptr;
  }

  communicator<Transport>* comm_;
  window<Transport> memory_;
};

}  // namespace peerbus::moe

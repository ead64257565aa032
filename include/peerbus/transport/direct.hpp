// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/process_memory.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

/// A window whose parts are all mapped into the caller's address space. If a part is one mapping,
/// its data come first, so that they begin on a huge page, and its signal words follow.
class direct_window {
 public:
  /// Makes a window of `parts`. `parts[r]` is the part of rank r, and `processes[r]` the private
  /// memory of its process.
  direct_window(window_shape shape, rank_id own_rank, std::vector<window_memory> parts,
                std::vector<process_memory> processes);

  /// Returns a rank's part that begins at `start`, in memory that `owner` keeps. At least
  /// `mapped_bytes(shape)` bytes must follow `start`.
  [[nodiscard]] static window_memory part_at(std::byte* start, std::shared_ptr<const mapping> owner,
                                             window_shape shape) noexcept;

  /// Returns the size of one part of a window, in bytes.
  [[nodiscard]] static constexpr std::size_t mapped_bytes(window_shape shape) noexcept {
    return signals_at(shape) + shape.signals * sizeof(signal_word);
  }

  /// Returns the shape of the part that each rank contributes.
  [[nodiscard]] window_shape shape() const noexcept { return shape_; }
  /// Returns the rank of the caller.
  [[nodiscard]] rank_id mine() const noexcept { return mine_; }
  /// Returns the number of parts, one for each rank.
  [[nodiscard]] std::size_t ranks() const noexcept { return parts_.size(); }
  /// Returns the start of the data of `rank`, aligned to a cache line. Does not check `rank`.
  [[nodiscard]] std::byte* data(rank_id rank) const noexcept { return parts_[rank.index()].data; }
  /// Returns the private memory of the process of `rank`. Does not check `rank`.
  [[nodiscard]] const process_memory& process(rank_id rank) const noexcept {
    return processes_[rank.index()];
  }
  /// Returns the signal words of the caller's own part.
  [[nodiscard]] std::span<signal_word> local_signals() const noexcept {
    return {parts_[mine_.index()].signals, shape_.signals};
  }
  /// Returns signal word `id` in the part of `rank`. Does not check `rank` or `id`.
  [[nodiscard]] signal_word& signal(rank_id rank, signal_id id) const noexcept {
    return parts_[rank.index()].signals[index(id)];
  }

 private:
  static constexpr std::size_t signals_at(window_shape shape) noexcept {
    return align_up(shape.bytes, cache_line_bytes);
  }

  struct addresses {
    std::byte* data;
    signal_word* signals;
  };

  window_shape shape_;
  rank_id mine_;
  std::vector<addresses> parts_;
  std::vector<process_memory> processes_;
  std::vector<std::shared_ptr<const void>> owners_;
};

/// The data path of every transport by which a rank loads and stores the memory of all peers. A
/// derived transport adds only the source of the memory. Semantics: the numbered list at
/// `transport`.
class direct_path {
 public:
  /// The window, which has an address for the part of each rank.
  using window = direct_window;

  /// The refinements that every derived transport has: peers' memory, a signal to several peers at
  /// once, access to the caller's own signal words, and reads of peers' private memory.
  static constexpr transport_refinements refines{
      .peer_memory = true, .signal_each = true, .local_signals = true, .private_memory = true};

  ///@{
  /// Implements a call of the concept `transport`, which states its contract. Puts and gets are
  /// copies by the caller and complete on return.
  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    return {.any_local_memory = true, .fetch_add = true};
  }

  [[nodiscard]] std::span<std::byte> local(const window& memory) const noexcept {
    return {memory.data(memory.mine()), memory.shape().bytes};
  }
  [[nodiscard]] std::span<signal_word> local_signals(const window& memory) const noexcept {
    return memory.local_signals();
  }
  [[nodiscard]] std::byte* peer_memory(const window& memory, rank_id peer) const noexcept {
    return memory.data(peer);
  }

  [[nodiscard]] errc put(rank_id peer, const window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    if (!holds(memory, peer, offset, source.size())) return errc::out_of_range;
    peerbus::detail::copy_bytes(memory.data(peer) + offset, source.data(), source.size());
    return errc::ok;
  }

  [[nodiscard]] errc signal(rank_id peer, const window& memory, signal_id id,
                            std::uint64_t value) noexcept {
    if (!has(memory, peer, id)) return errc::out_of_range;
    memory.signal(peer, id).raise(value);
    return errc::ok;
  }

  [[nodiscard]] errc signal_each(std::span<const rank_id> peers, const window& memory, signal_id id,
                                 std::uint64_t value) noexcept {
    for (const rank_id peer : peers)
      if (!has(memory, peer, id)) return errc::out_of_range;
    signal_word::raise_each(
        peers.size(),
        [&](std::size_t i) noexcept -> signal_word& { return memory.signal(peers[i], id); }, value);
    return errc::ok;
  }

  [[nodiscard]] errc put_signal(rank_id peer, const window& memory, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    if (!has(memory, peer, id)) return errc::out_of_range;
    if (const errc code = put(peer, memory, offset, source); code != errc::ok) return code;
    memory.signal(peer, id).raise(value);
    return errc::ok;
  }

  [[nodiscard]] errc get(rank_id peer, const window& memory, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    if (!holds(memory, peer, offset, target.size())) return errc::out_of_range;
    peerbus::detail::copy_bytes(target.data(), memory.data(peer) + offset, target.size());
    return errc::ok;
  }

  [[nodiscard]] errc get_private(rank_id peer, const window& memory, std::uint64_t address,
                                 std::span<std::byte> target) noexcept {
    if (peer.index() >= memory.ranks()) return errc::out_of_range;
    return memory.process(peer).read(address, target);
  }

  [[nodiscard]] errc fetch_add(rank_id peer, const window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    if (!holds(memory, peer, offset, sizeof addend)) return errc::out_of_range;
    if (offset % sizeof addend != 0) return errc::invalid_argument;
    auto& word = *peerbus::detail::placed<std::uint64_t>(memory.data(peer) + offset);
    // order: seq_cst, so that a counter may serve as a lock or a ticket on its own.
    before = std::atomic_ref{word}.fetch_add(addend, std::memory_order_seq_cst);
    return errc::ok;
  }

  [[nodiscard]] errc wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    return wait_at(memory.mine(), memory, id, value, until, awaited);
  }
  [[nodiscard]] errc wait_at(rank_id owner, const window& memory, signal_id id, std::uint64_t value,
                             deadline until, std::optional<rank_id> awaited) noexcept {
    if (!has(memory, owner, id) || !has(memory, awaited.value_or(owner), id))
      return errc::out_of_range;
    return memory.signal(owner, id).wait_at_least(
        value, until, thresholds_, [&]() noexcept { return members_->health(awaited); });
  }

  [[nodiscard]] std::uint64_t value(const window& memory, signal_id id) const noexcept {
    return value_at(memory.mine(), memory, id);
  }
  [[nodiscard]] std::uint64_t value_at(rank_id owner, const window& memory,
                                       signal_id id) const noexcept {
    return has(memory, owner, id) ? memory.signal(owner, id).value() : 0;
  }

  // Stores need no help: they are done when the call returns, and `signal` orders them.
  [[nodiscard]] errc flush(rank_id peer) noexcept {
    return peer.index() < members_->size() ? errc::ok : errc::out_of_range;
  }
  [[nodiscard]] errc quiet() noexcept { return errc::ok; }
  [[nodiscard]] errc progress() noexcept { return errc::ok; }
  ///@}

 protected:
  /// Keeps a reference to `boot`. `thresholds` say when a wait stops spinning and when it stops
  /// yielding.
  direct_path(bootstrap& boot, wait_thresholds thresholds);

 private:
  static bool holds(const window& memory, rank_id peer, std::size_t offset,
                    std::size_t bytes) noexcept {
    const std::size_t all = memory.shape().bytes;
    return peer.index() < memory.ranks() && offset <= all && bytes <= all - offset;
  }
  static bool has(const window& memory, rank_id peer, signal_id id) noexcept {
    return peer.index() < memory.ranks() && index(id) < memory.shape().signals;
  }

  bootstrap* boot_;
  std::shared_ptr<membership> members_;
  wait_thresholds thresholds_;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/direct.ipp>  // IWYU pragma: keep
#endif

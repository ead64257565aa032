// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe::detail {

/// The place where the ranks of an exchange tell all others something: bytes at an offset that only
/// one rank writes, and signals that only one rank raises. Offsets and signals are those of the
/// window.
///
/// More than `few_ranks` over a direct transport have one board, in the part of rank 0. A notice is
/// then written once, and one signal tells all ranks. Otherwise each rank has a board in its own
/// part, and a notice is put there by its writer.
///
/// Functions that return `errc` return ok or the first failure of the transport.
template <transport Transport>
class notice_board {
 public:
  /// The most ranks that tell each other everything one by one. A rank reads its own notice as
  /// well. On a shared board it then waits until its peers' caches have given up the lines that it
  /// writes, which takes longer than writing a few copies (1.3 us of a dispatch of 2 ranks).
  static constexpr std::size_t few_ranks = 4;

  notice_board(communicator<Transport>& comm, window<Transport>& memory)
      : comm_{&comm}, memory_{&memory}, bytes_{memory.local().data()} {
    if constexpr (direct_transport<Transport>) {
      is_shared_ = comm.size() > few_ranks;
      if (is_shared_) bytes_ = memory.peer(owner).data();
    }
  }

  /// Returns the address of byte `offset` of the board that this rank reads, and where it writes
  /// its own notices before it posts them.
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return bytes_ + offset; }

  /// Shows all peers the `bytes` bytes at `offset`, which this rank has written. They see them
  /// after the next signal of this rank.
  /// Cost: nothing on a shared board, else a put to each peer.
  [[nodiscard]] errc post(std::size_t offset, std::size_t bytes) noexcept {
    if (is_shared_) return errc::ok;
    for (const rank_id peer : comm_->peers())
      if (const errc code = memory_->put(peer, offset, std::span{at(offset), bytes});
          code != errc::ok)
        return code;
    return errc::ok;
  }
  /// Raises signal `id` to `value` for all peers.
  /// Cost: one signal on a shared board, else one to each peer.
  [[nodiscard]] errc announce(signal_id id, std::uint64_t value) noexcept {
    return is_shared_ ? memory_->signal(owner, id, value)
                      : memory_->signal_each(comm_->peers(), id, value);
  }

  /// Returns the present value of signal `id`. The notices that its raiser posted before are
  /// visible.
  [[nodiscard]] std::uint64_t value(signal_id id) const noexcept {
    if constexpr (direct_transport<Transport>)
      if (is_shared_) return memory_->value_at(owner, id);
    return memory_->value(id);
  }
  /// Waits until signal `id` is at least `value`. `raiser` is the rank that raises it.
  [[nodiscard]] errc wait(signal_id id, std::uint64_t value, deadline until,
                          rank_id raiser) noexcept {
    if constexpr (direct_transport<Transport>)
      if (is_shared_) return memory_->wait_at(owner, id, value, until, raiser);
    return memory_->wait(id, value, until, raiser);
  }

 private:
  static constexpr rank_id owner{0};  ///< of a shared board

  communicator<Transport>* comm_;
  window<Transport>* memory_;
  std::byte* bytes_;
  bool is_shared_ = false;
};

}  // namespace peerbus::moe::detail

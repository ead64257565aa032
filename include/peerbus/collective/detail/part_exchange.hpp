// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// The layout of parts in a page.
enum class page_layout {
  shared,  ///< all peers read the same bytes
  parts    ///< each peer reads a separate part
};

/// One call of a variable form, in which the sizes of parts differ between pairs of ranks.
///
/// The tables `team_access::sends` and `team_access::receives` say what this rank sends and
/// receives. In the first round each rank tells each peer the bytes that it will get, and the
/// largest part for any peer. A rank that expects another size refuses the call in the second
/// round, the first with data. The first half of a call ends when this rank has told its peers.
class part_exchange {
 public:
  /// Takes the call. `step` is the largest slice that a rank publishes for a peer, in bytes. Does
  /// not communicate.
  part_exchange(call_rounds& moves, const request& given, page_layout pages,
                std::size_t step) noexcept;

  /// Compares the sizes that ranks send and expect. Returns whether data may be moved now, which is
  /// false after the first half of the call.
  /// Throws: as `call_rounds::await`; `error` mismatch on all ranks if a rank expects another size.
  [[nodiscard]] bool compare();

  /// Calls `take(done)` after each round. The `bytes_from(peer, done)` bytes at `from(peer, done)`
  /// are then readable.
  template <class Take>
  void in_slices(Take&& take) {
    moves_.in_slices(
        largest_, step_,
        [&](std::size_t done, std::size_t bytes) {
          slice_ = bytes;
          offer(done);
          moves_.put([&](rank_id peer) noexcept {
            return byte_range{place_of(peer), rest_of(sends_, peer, done)};
          });
        },
        [&](std::size_t done, std::size_t) { take(done); });
  }
  /// Copies the parts that peers sent to their places in the output, and this rank's own part.
  void copy_all();

  /// Returns the bytes that `peer` sent in the latest round, from byte `done` of its part for this
  /// rank on.
  [[nodiscard]] const std::byte* from(rank_id peer, std::size_t done) noexcept {
    return moves_.reads_operands() ? moves_.sources()[peer.index()]
                                   : moves_.slice(peer, place_of(moves_.self()), done);
  }
  /// Returns the number of bytes at `from(peer, done)`.
  [[nodiscard]] std::size_t bytes_from(rank_id peer, std::size_t done) const noexcept {
    return rest_of(receives_, peer, done);
  }

 private:
  /// The message of a rank to a peer in the first round, in bytes.
  struct announcement {
    std::uint64_t bytes = 0;    ///< the size of the peer's part
    std::uint64_t offset = 0;   ///< the part's offset in the input
    std::uint64_t largest = 0;  ///< the size of the largest part for any peer
  };

  void announce();
  void find_largest() noexcept;
  void offer(std::size_t done) noexcept;
  [[nodiscard]] std::size_t place_of(rank_id reader) const noexcept {
    return pages_ == page_layout::shared ? 0 : reader.index() * step_of_pages_;
  }
  [[nodiscard]] std::size_t rest_of(std::span<const byte_range> table, rank_id peer,
                                    std::size_t done) const noexcept {
    const std::size_t bytes = table[peer.index()].bytes;
    return bytes <= done ? 0 : std::min(slice_, bytes - done);
  }

  call_rounds& moves_;
  const request& given_;
  std::span<const byte_range> sends_;
  std::span<const byte_range> receives_;
  page_layout pages_;
  std::size_t step_;
  std::size_t step_of_pages_;  // The distance of parts in a page.
  std::size_t largest_ = 0;    // The bytes of the largest part of all pairs of ranks.
  std::size_t slice_ = 0;      // The size of slices in the latest round.
};

/// Carries out an operation whose parts are copied from page bytes that all peers read.
void copy_shared_parts(call_rounds& moves, const request& given, const reducer& reduce);
/// Carries out an operation whose parts are copied from page bytes that only one peer reads.
void copy_own_parts(call_rounds& moves, const request& given, const reducer& reduce);
/// Carries out an operation in which each rank reduces the parts of all ranks for it.
void reduce_parts(call_rounds& moves, const request& given, const reducer& reduce);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/part_exchange.ipp>  // IWYU pragma: keep
#endif

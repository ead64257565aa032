// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/in_window.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// One call of a collective operation: the rounds in which ranks publish slices.
///
/// A round is: write `page()`, `publish`, `await`, read `slice(...)`. The next round may begin
/// without further ado. The first round carries the description of the call. Its `await` throws on
/// all ranks if the calls differ, so an operation writes its output after the first `await` only.
class call {
 public:
  /// Begins a call. Does not communicate unless `objection`, which says what is wrong with the
  /// arguments, is not empty; then it refuses the call on all ranks.
  /// Throws: `error` poisoned; with an objection invalid_argument, and as `await`.
  call(team& on, const call_header& header, const operands& given, const call_options& options,
       std::string_view objection);

  /// Returns the number of ranks.
  [[nodiscard]] std::size_t ranks() const noexcept { return road_.group().size(); }
  /// Returns the rank of the caller.
  [[nodiscard]] rank_id self() const noexcept { return road_.group().rank(); }
  /// Returns the other ranks in the order in which operations visit them.
  [[nodiscard]] std::span<const rank_id> peers() const noexcept { return road_.group().peers(); }
  /// Returns the largest slice for a peer if a page holds `parts` slices.
  [[nodiscard]] std::size_t slice_bytes(std::size_t parts) const noexcept {
    return road_.map().slice_bytes(parts);
  }

  /// Calls `round(done, bytes)` for `total` bytes in slices of `step` bytes, in order, and once if
  /// `total` is 0, so that the calls are compared. Where peers access operands in a window, there
  /// is one slice, after which all ranks meet, so that operands may be reused.
  template <class Round>
  void in_slices(std::size_t total, std::size_t step, Round&& round) {
    if (is_in_window()) step = total;
    std::size_t done = 0;
    do {
      const std::size_t bytes = std::min(step, total - done);
      round(done, bytes);
      done += bytes;
    } while (done < total);
    if (is_in_window()) meet([](rank_id) noexcept { return byte_range{}; });
  }

  /// Returns whether peers access the operands in a window.
  [[nodiscard]] bool is_in_window() const noexcept {
    return header_.place != operand_place::memory;
  }
  /// Offers `bytes` bytes of the input from byte `input_at` on to peers: copies them to byte
  /// `page_at` of the next page, unless peers read them in the window.
  void offer(std::size_t page_at, std::size_t input_at, std::size_t bytes) noexcept {
    if (!is_in_window()) copy_bytes(page() + page_at, input_ + input_at, bytes);
  }
  /// Returns the payload of the page of the next round. Writable from `await` to `publish`.
  [[nodiscard]] std::byte* page() noexcept {
    return road_.page(on_.round_ + 1) + team_map::header_bytes;
  }
  /// Publishes the page. `to_peer` returns the range that a peer reads.
  void publish(reach to_peer);
  /// Waits until all peers have published theirs.
  /// Throws: `error` mismatch or refused on all ranks, in the first round only; timed_out,
  /// peer_dead or unreachable, and the communicator is poisoned.
  void await();
  /// Does `publish` and `await` without anything in between.
  void meet(reach to_peer) {
    publish(to_peer);
    await();
  }

  /// Returns what `peer` offered in the latest round from byte `input_at` of its input on, which
  /// begins at `page_at` of its page. Readable until the next `publish` of this rank.
  [[nodiscard]] const std::byte* slice(rank_id peer, std::size_t page_at,
                                       std::size_t input_at) const noexcept {
    return is_in_window() ? operand(peer) + input_at : road_.payload(on_.round_, peer, page_at);
  }
  /// Returns the start of the operand of any rank in the window.
  [[nodiscard]] std::byte* operand(rank_id rank) const noexcept {
    return road_.operands()[rank.index()];
  }
  /// Returns room for a pointer per rank.
  [[nodiscard]] std::span<const std::byte*> sources() noexcept { return road_.sources(); }

 private:
  [[noreturn]] void refuse(std::string_view objection);
  [[nodiscard]] call_header header_of(rank_id rank) const noexcept;
  void await_peers();
  /// Throws unless all ranks make this call. All ranks compare the same headers, so that all throw.
  void compare();
  /// Notes where peers' operands lie in the window, which their headers say.
  void find_operands() noexcept;
  [[nodiscard]] std::string title() const;
  [[noreturn]] void fail_waiting(errc code);
  [[noreturn]] void throw_refused(rank_id refuser, const call_header& theirs);
  [[noreturn]] void throw_mismatch(rank_id other, const call_header& first,
                                   const call_header& theirs);

  team& on_;
  slice_road& road_;
  deadline until_;
  std::uint64_t first_round_;
  call_header header_;
  const std::byte* input_;
  window_place input_in_;
};

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/impl/call.hpp>  // IWYU pragma: keep
#endif

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call_check.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/pattern.hpp>
#include <peerbus/collective/detail/private_reads.hpp>
#include <peerbus/collective/detail/way_trials.hpp>
#include <peerbus/collective/in_window.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/near_groups.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/lane_pool.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// One call of a collective operation: the rounds in which ranks publish slices.
///
/// A round is: write `page()`, `put`, `await`, read `slice(...)`. The next round may begin at once.
/// The first round carries the description of the call. Its `await` throws on all ranks if the
/// calls differ, so an operation must not write its output before the first `await`.
///
/// A call is made whole or in two halves. The first half ends in the middle of the first round,
/// when this rank has published its page. The second half continues from there.
class call_rounds {
 public:
  /// Begins a call. `objection` is the objection to its arguments. If it is not empty, the first
  /// round refuses the call on all ranks. Does not communicate.
  /// Throws: `error` poisoned; view_changed; invalid_argument if an operation of the team is
  /// between its halves, or a first half has several lanes.
  call_rounds(team& team, const call_header& header, const request& given,
              const call_options& options, std::string objection);
  call_rounds(call_rounds&&) = default;
  call_rounds(const call_rounds&) = delete;
  call_rounds& operator=(const call_rounds&) = delete;
  call_rounds& operator=(call_rounds&&) = delete;
  ~call_rounds() = default;

  /// Divides the call: until `resume`, `in_slices` does the first half. If that succeeds, the team
  /// accepts no other call until `resume` or `abandon`.
  void pause() noexcept { half_ = half::first; }
  /// Makes `in_slices` do the second half. `until`, if any, is its deadline.
  /// Throws: `error` poisoned; view_changed if the team has continued without ranks meanwhile.
  void resume(const std::optional<deadline>& until);
  /// Discards the call between its halves. Poisons the communicator, because the ranks are then out
  /// of step, unless the team has already discarded the call.
  void abandon() noexcept;

  ///@{
  /// Returns, for operations with parts of different sizes, the parts that this rank sends to and
  /// receives from each rank.
  [[nodiscard]] std::span<const byte_range> sends() const noexcept { return pages_.sends(); }
  [[nodiscard]] std::span<const byte_range> receives() const noexcept { return pages_.receives(); }
  ///@}

  /// Makes the call a part of a trial, by which its algorithm was chosen.
  void take_part(const way_trials::running& trial) noexcept { way_ = trial; }

  ///@{
  /// Returns the team; the name, the caller's deadline, if any, and the root of the operation.
  [[nodiscard]] team& own_team() const noexcept { return team_; }
  [[nodiscard]] const short_text<16>& operation() const noexcept {
    return check_.header().operation;
  }
  [[nodiscard]] const std::optional<deadline>& until() const noexcept { return until_; }
  [[nodiscard]] rank_id root() const noexcept { return rank_id{check_.header().root}; }
  ///@}
  ///@{
  /// Returns the number of ranks, the rank of the caller, and the other ranks in the order in which
  /// operations visit them.
  [[nodiscard]] std::size_t ranks() const noexcept { return pages_.group().size(); }
  [[nodiscard]] rank_id self() const noexcept { return pages_.group().rank(); }
  [[nodiscard]] std::span<const rank_id> peers() const noexcept { return pages_.group().peers(); }
  ///@}
  /// Returns the shape of the team, on which its algorithms depend.
  [[nodiscard]] const team_shape& shape() const noexcept { return team_.shape_; }
  ///@{
  /// Returns the size of a page, and of the largest slice for a peer in a page of `parts` slices,
  /// in bytes.
  [[nodiscard]] std::size_t page_bytes() const noexcept { return pages_.map().page_bytes; }
  [[nodiscard]] std::size_t slice_bytes(std::size_t parts) const noexcept {
    return pages_.map().slice_bytes(parts);
  }
  ///@}
  /// Returns the distance in bytes between the parts for two ranks, in a page with a part for each
  /// rank. Short parts lie close together: at the distance of a large power of two they would share
  /// a set of a cache.
  [[nodiscard]] std::size_t part_stride() const noexcept { return part_stride_; }

  /// Does a round for each slice of `step` bytes of `total` bytes, in order. If `total` is 0, does
  /// one round, so that the calls are compared. `give(done, bytes)` writes the page and puts it, or
  /// begins a round in steps, which `take` completes. `take(done, bytes)` reads the pages of the
  /// peers, and may do more rounds. Operands that peers read directly have one slice; for operands
  /// in windows, all ranks meet after it, so that operands may be reused. If ranks find in a round
  /// that operands cannot be read in private memory, they begin again by slices.
  ///
  /// The first half does only the first `give`. The second half needs the same arguments, and does
  /// everything else. If this rank refuses the call, neither callable is called.
  template <class Give, class Take>
  void in_slices(std::size_t total, std::size_t step, Give&& give, Take&& take);
  /// Does a first round outside `in_slices`. `give()` writes the page and puts it. Returns whether
  /// the round is over, which is false after the first half.
  /// Throws: as `await`.
  template <class Give>
  [[nodiscard]] bool first_round(Give&& give);

  /// Does `work`, and reports it to listeners: as the operation if `name` is null, otherwise as the
  /// half with this name.
  template <class Work>
  void report(const char* name, const request& given, Work&& work);

  ///@{
  /// Returns whether peers access the operands in a window, or at least read them directly, in a
  /// window or in private memory.
  [[nodiscard]] bool is_in_window() const noexcept { return is_in_window_; }
  [[nodiscard]] bool reads_operands() const noexcept { return is_in_window_ || is_private_; }
  ///@}
  /// Chooses whether to read offered operands in private memory. `bytes` is the size of the largest
  /// row of all ranks.
  void choose_way(std::size_t bytes) noexcept;
  /// Returns the lanes that carry out operations of the team.
  [[nodiscard]] peerbus::detail::lane_pool& pool() const noexcept { return team_.pool_; }
  /// Copies `bytes` bytes. If there are several lanes and enough bytes, all lanes share the copy.
  void copy(std::byte* target, const std::byte* source, std::size_t bytes) const noexcept;
  /// Copies `bytes` bytes from `source`, which `slice` returned for `peer`, by all lanes.
  void read(std::byte* target, rank_id peer, const std::byte* source, std::size_t bytes) noexcept;
  /// Offers `bytes` bytes of the input, from byte `input_at` on, to peers. Copies them to byte
  /// `page_at` of the next page, unless peers read the input directly.
  void offer(std::size_t page_at, std::size_t input_at, std::size_t bytes) noexcept;
  /// Returns the payload of the next round's page. Writable from `await` to `put`.
  [[nodiscard]] std::byte* page() noexcept {
    return pages_.page(team_.round_ + 1) + team_map::header_bytes;
  }
  /// Publishes the page. `to_peer` returns the range that a peer reads. Sleeping peers are woken
  /// only by the signal, which `await` raises. Do no long work between the two.
  void put(page_range to_peer);
  /// Raises the signal of the page that was put.
  void signal();
  /// Does `put` and `signal`, for work that comes before `await`.
  void publish(page_range to_peer) {
    put(to_peer);
    signal();
  }
  /// Waits until all peers have published their pages. If the signal is not yet raised and the
  /// peers come at about the same time, raises it, with its fence, only after it has seen their
  /// pages.
  /// Throws: in rounds that compare the calls (the first, and one after `confirm`), on all ranks,
  /// `error` mismatch or refused, or invalid_argument where this rank refuses. In any round
  /// timed_out, peer_dead or unreachable, and the communicator is poisoned.
  void await();
  /// Does `put` and `await`.
  void meet(page_range to_peer) {
    put(to_peer);
    await();
  }

  // A round in steps, over transports that put pages: `begin_steps` once the page's first bytes are
  // written, then steps, in each of which a rank sends to one peer and awaits one. After the last
  // step a rank must have heard of every rank: from it, or from a rank that had heard of it.
  /// Begins the next round in steps. Its page is `step_page` from here on.
  void begin_steps();
  /// Sends a range of the page to `peer` as step `step`, which counts from 1. In the first round of
  /// a call, `slot` must be this rank. Otherwise it is any number below the number of ranks that
  /// this round has not used for `peer`.
  void send_step(std::uint64_t step, rank_id peer, std::size_t slot, byte_range range);
  /// Waits for step `step` of `peer`. `is_told` returns whether this rank has sent a peer a step of
  /// this round, so that the peer has the description of the call.
  /// Throws: as `await`. In the first round all ranks throw if the calls differ or a rank refuses.
  void await_step(std::uint64_t step, rank_id peer,
                  peerbus::detail::function_ref<bool(rank_id)> is_told);
  /// Returns this rank's page of the round in steps.
  [[nodiscard]] std::byte* step_page() noexcept {
    return pages_.page(team_.round_) + team_map::header_bytes;
  }
  /// Returns the bytes that `peer` has sent to slot `slot`, from byte `page_at` of its page on.
  [[nodiscard]] const std::byte* step_payload(rank_id peer, std::size_t slot,
                                              std::size_t page_at) const noexcept {
    return pages_.step_payload(team_.round_, peer, slot, page_at);
  }
  /// Returns the groups of near ranks.
  [[nodiscard]] const near_groups& groups() const noexcept { return pages_.groups(); }
  /// Makes the next round compare the calls again, so that no rank writes output if another rank
  /// has found in earlier rounds that operands do not fit. `objection` is the objection of this
  /// rank. If it is not empty, it ends the call on all ranks by `code`, which must be mismatch or
  /// refused.
  /// Throws: `error` of that code with the objection.
  void confirm(errc code, std::string_view objection);

  /// Returns the bytes that `rank` published for this rank in the latest round. They begin at byte
  /// `page_at` of its page. Readable until the next `put` of this rank.
  [[nodiscard]] const std::byte* payload(rank_id rank, std::size_t page_at) const noexcept {
    return pages_.payload(team_.round_, rank, page_at);
  }
  /// Returns the bytes that `peer` offered in the latest round, from byte `input_at` of its input
  /// on, which is byte `page_at` of its page. Readable until the next `put` of this rank.
  [[nodiscard]] const std::byte* slice(rank_id peer, std::size_t page_at,
                                       std::size_t input_at) const noexcept {
    return reads_operands() ? operand(peer) + input_at : payload(peer, page_at);
  }
  /// Returns the start of the operand of `rank` in its window, or, for `read`, in its private
  /// memory.
  [[nodiscard]] std::byte* operand(rank_id rank) const noexcept {
    return pages_.operands()[rank.index()];
  }
  /// Returns room for a pointer per rank.
  [[nodiscard]] auto sources() noexcept { return pages_.sources().first(ranks()); }

 private:
  /// The part of a call that `in_slices` does: the whole call, up to the first page, or the rest.
  enum class half { only, first, second };

  /// Writes the page and puts it by `give()`, or refuses the call, unless the first half has done
  /// so. Returns whether the round continues, which is false in the first half.
  template <class Give>
  [[nodiscard]] bool begin_round(Give&& give);
  /// Publishes the round to all ranks, because another rank has published it or has sent another
  /// call.
  /// Throws: the error of the call, on all ranks.
  void leave_steps(peerbus::detail::function_ref<bool(rank_id)> is_told);
  /// Puts a page that says that this rank refuses the call.
  void put_refusal(errc code, std::string_view objection);
  void end_first_half();
  void await_peers();
  void begin_reading();
  [[noreturn]] void throw_objection();
  [[noreturn]] void throw_lanes(lane as);
  /// Returns whether the team still waits for the second half of this call, its latest one.
  [[nodiscard]] bool is_pending() const noexcept {
    return team_.pending_ && team_.calls_ == check_.number();
  }
  [[noreturn]] static void throw_given_up(std::string_view operation);
  /// Records the places of peers' operands in the window, from their notices.
  void find_operands() noexcept;
  /// Meets the other ranks after reads in private memory. Returns whether all ranks have read
  /// everything. If not, operands are staged from then on.
  /// Throws: as `await`; `error` refused on all ranks if an operand is not mapped.
  bool finish_reads();

  team& team_;
  page_exchange& pages_;
  std::optional<deadline> until_;  // Empty: from the first long wait on; a clock takes 20 ns.
  call_check check_;
  std::span<const std::byte> input_;
  operation_kind what_;
  const pattern& kind_;
  window_place input_in_;
  std::size_t stream_least_;  // `offer` streams parts of so many bytes
  std::size_t stream_end_;    // and fewer than so many.
  bool is_in_window_ = false;
  bool offers_ = false;         // Whether ranks tell where operands lie in private memory.
  bool is_private_ = false;     // Whether peers read them there.
  bool is_unreadable_ = false;  // Whether they could not, and operands are staged.
  way_trials::running way_;     // Of a call whose way is found by trial.
  bool is_signalled_ = true;    // Whether the latest page has been.
  bool is_in_steps_ = false;    // Whether the latest round goes in steps, so that it has no signal.
  half half_ = half::only;
  std::size_t part_stride_ = 0;
};

}  // namespace peerbus::collective::detail

#include <peerbus/collective/detail/call_slices.hpp>  // IWYU pragma: keep

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/call_rounds.ipp>  // IWYU pragma: keep
#include <peerbus/collective/detail/call_steps.ipp>   // IWYU pragma: keep
#endif

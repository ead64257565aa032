// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/pattern.hpp>
#include <peerbus/collective/detail/way_trials.hpp>
#include <peerbus/collective/read_choice.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/lane_pool.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// The reads by which ranks of a team get their peers' operands from private memory.
///
/// In calls that are large enough, the notice of the first round says where a rank's input lies, or
/// why it must be staged in pages. If ranks have read operands, the next notice says whether this
/// rank has read all. All ranks see all notices, so they agree on staging, in further rounds if
/// needed, and on later calls. That also shows what the kernel permits, or no longer permits.
class private_reads {
 public:
  /// Reasons to stage operands. They are bits, so that the reasons of all ranks can be combined.
  enum reason : std::uint64_t {
    none = 0,
    rows_in_place = 1,  ///< a rank would overwrite rows that peers read
    not_permitted = 2,  ///< a rank may not read the memory of a peer
    not_there = 4,      ///< memory that a rank offered cannot be read
    gone = 8,           ///< a rank has discarded the call, and may have changed its operand
  };

  /// Makes the reads of a team. `least` is the least contribution of a rank to another rank, in
  /// bytes, that is read privately. Without it, trials decide for each size.
  private_reads(page_exchange& pages, bool shares_cores, std::optional<std::size_t> least) noexcept;

  /// Forgets results of calls, because a failed call may have shown them to some ranks only.
  void forget() noexcept {
    is_forbidden_ = rows_were_in_place_ = false;
    unreadable_ = 0;
  }

  /// Returns whether ranks tell each other the places of rows of `bytes` bytes. The same on all
  /// ranks.
  [[nodiscard]] bool are_offered(const pattern& kind, std::size_t bytes) const noexcept {
    return !kind.reduces && bytes >= least_ && !is_forbidden_;
  }
  /// Returns the way of a call with rows of `bytes` bytes. If the last `all_to_all` or
  /// `all_to_all_v` was in place on a rank, the next one stages its rows. The same on all ranks.
  [[nodiscard]] way_trials::running choose(operation_kind what, std::size_t bytes) noexcept;
  /// Returns the choice for a size, for programs that inspect it.
  [[nodiscard]] read_choice choice(operation_kind what, std::size_t bytes) const noexcept;

  /// Returns the offer of this rank for its notice: the address of its input, or why it is staged.
  [[nodiscard]] static std::uint64_t offer(const pattern& kind, const request& given) noexcept;

  /// Takes the offers of all ranks in `round`. Returns whether no rank gives a reason to stage
  /// operands.
  [[nodiscard]] bool take_offers(std::uint64_t round, const pattern& kind) noexcept;

  /// Reads from `address` in the memory of `peer`, by all lanes. Records a failure for `tell`.
  void read(peerbus::detail::lane_pool& pool, std::byte* target, rank_id peer,
            const std::byte* address, std::size_t bytes) noexcept;
  /// Writes into this rank's notice of `round` whether it has read all.
  void tell(std::uint64_t round) noexcept;
  /// Writes into this rank's notice of `round` that it gives up the call, before its operands
  /// change.
  void give_up(std::uint64_t round) noexcept;
  /// Returns why ranks failed to read, from their notices of `round`.
  [[nodiscard]] reason find_failure(std::uint64_t round) noexcept;
  /// Returns the objection to an `input` that is not mapped, so that peers cannot read it. Empty if
  /// it is mapped.
  [[nodiscard]] static std::string object_to(std::span<const std::byte> input);
  /// Records a call whose memory could not be read although it is mapped, as with some devices.
  /// After a few such calls, nothing is read any more.
  void note_unreadable() noexcept;

 private:
  static constexpr std::uint64_t refusal_bit = std::uint64_t{1} << 63U;  // No address has it.
  static constexpr unsigned most_unreadable = 3;

  static bool is_offer(std::uint64_t offered) noexcept { return (offered & refusal_bit) == 0; }
  /// Returns whether an in-place output overwrites rows for peers.
  static bool swaps_rows(const pattern& kind) noexcept {
    return kind.input_rows && kind.output_rows;
  }
  /// Returns whether to read rows of `bytes` bytes before both ways are measured.
  [[nodiscard]] bool are_assumed(const pattern& kind, std::size_t bytes) const noexcept;

  page_exchange& pages_;
  bool has_trials_;  // Unless the caller has fixed the way.
  std::size_t least_;
  bool shares_cores_;
  bool is_forbidden_ = false;
  bool rows_were_in_place_ = false;
  unsigned unreadable_ = 0;                   // Calls.
  std::atomic<std::uint64_t> failure_{none};  // Of this rank's reads, by any lane.
};

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/private_reads.ipp>  // IWYU pragma: keep
#endif

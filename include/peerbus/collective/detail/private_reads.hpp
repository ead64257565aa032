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

/// How ranks of a team read the operands of their peers in private memory.
///
/// In calls that are worth it, the notice of the first round says where a rank's input lies, or why
/// it must be staged in pages. If ranks have read operands, the notice of the next round says
/// whether this rank could read all. All ranks see all notices, so they agree to stage the operands
/// of a call, if need be in further rounds, and what to expect of later calls. Nothing else is
/// needed to find out what the kernel permits, or no longer permits.
class private_reads {
 public:
  /// Reasons to stage operands. Bits, so that those of all ranks add up.
  enum reason : std::uint64_t {
    none = 0,
    rows_in_place = 1,  ///< a rank would overwrite rows that peers read
    not_permitted = 2,  ///< a rank may not read the memory of a peer
    not_there = 4,      ///< what a rank offered is no memory that can be read
    gone = 8,           ///< a rank has given the call up, and may have changed what it offered
  };

  /// `least` is the least contribution of a rank to another one that is read so, in bytes. Without
  /// it, the way of each size is found out by trial.
  private_reads(page_exchange& pages, bool shares_cores, std::optional<std::size_t> least) noexcept;

  /// Forgets what calls have shown, which a call that broke may not have shown to all ranks.
  void forget() noexcept {
    is_forbidden_ = rows_were_in_place_ = false;
    unreadable_ = 0;
  }

  /// Returns whether ranks tell each other where rows of `bytes` bytes lie. The same on all ranks.
  [[nodiscard]] bool are_offered(const pattern& kind, std::size_t bytes) const noexcept {
    return !kind.reduces && bytes >= least_ && !is_forbidden_;
  }
  /// Returns how to carry out a call whose rows have so many bytes. Rows are not read if they were
  /// not offered in the last such call. The same on all ranks.
  [[nodiscard]] way_trials::running choose(operation_kind what, std::size_t bytes) noexcept;
  /// Returns the choice for a size, for programs that look at it.
  [[nodiscard]] read_choice choice(operation_kind what, std::size_t bytes) const noexcept;

  /// Returns what the notice of this rank says: where its input lies, or why it is staged.
  [[nodiscard]] static std::uint64_t offer(const pattern& kind, const request& given) noexcept;

  /// Takes the offers of all ranks in `round`. Returns whether all operands can be read.
  [[nodiscard]] bool take_offers(std::uint64_t round, const pattern& kind) noexcept;

  /// Reads from `address` in the memory of `peer`, by all lanes. A failure is kept.
  void read(peerbus::detail::lane_pool& pool, std::byte* target, rank_id peer,
            const std::byte* address, std::size_t bytes) noexcept;
  /// Writes into this rank's notice of `round` whether it could read all.
  void tell(std::uint64_t round) noexcept;
  /// Says in it, instead, that this rank gives the call up, before its operands may change.
  void give_up(std::uint64_t round) noexcept;
  /// Returns why not all ranks could, from their notices of `round`.
  [[nodiscard]] reason find_failure(std::uint64_t round) noexcept;
  /// Says that an input, which a peer may not have been able to read, is not mapped. Otherwise an
  /// empty string.
  [[nodiscard]] static std::string object_to(std::span<const std::byte> input);
  /// Notes that memory could not be read although it is mapped, as that of some devices. After a
  /// few such calls, nothing is read any more.
  void note_unreadable() noexcept;

 private:
  static constexpr std::uint64_t refusal_bit = std::uint64_t{1} << 63U;  // No address has it.
  static constexpr unsigned most_unreadable = 3;

  static bool is_offer(std::uint64_t offered) noexcept { return (offered & refusal_bit) == 0; }
  /// Returns whether an output in place of the input overwrites rows for peers.
  static bool swaps_rows(const pattern& kind) noexcept {
    return kind.input_rows && kind.output_rows;
  }
  /// Returns whether rows of so many bytes are read until both ways were measured.
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

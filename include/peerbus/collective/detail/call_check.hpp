// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/pattern.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// The comparison of a call among ranks, in its first round, and the errors of the call, which name
/// the operation, its number, and the ranks that differ or are missing.
class call_check {
 public:
  /// Takes the call's description. `number` counts the calls of the team. `first_round` carries the
  /// description.
  call_check(page_exchange& pages, const call_header& header, std::uint64_t number,
             std::uint64_t first_round) noexcept
      : pages_{pages}, header_{header}, number_{number}, first_round_{first_round} {}

  /// Returns the description of this rank's call.
  [[nodiscard]] const call_header& header() const noexcept { return header_; }
  /// Returns the number of the call among the calls of the team.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// Writes into the description whether operands are read in private memory. Ranks always agree on
  /// that.
  void say_way(std::uint32_t way) noexcept { header_.window = way & call_header::window_mask; }
  /// Turns the description into a refusal, whose payload is a text of `bytes` bytes.
  void refuse(errc code, std::size_t bytes) noexcept;
  /// Returns whether `round` carries the description.
  [[nodiscard]] bool is_first(std::uint64_t round) const noexcept { return round == first_round_; }
  /// Makes `round` carry the description again.
  void compare_again_in(std::uint64_t round) noexcept { first_round_ = round; }

  /// Writes the description of the call to this rank's page of `round`.
  void write(std::uint64_t round) noexcept;
  /// Returns whether the description of `peer` in `round` equals that of this rank.
  [[nodiscard]] bool is_same(std::uint64_t round, rank_id peer) const noexcept {
    return pages_.notice(round, peer).digest == digest_;
  }
  /// Throws unless all ranks make this call. Reads only the line of each notice.
  void compare(std::uint64_t round) const;
  /// Throws, on all ranks, if a rank refuses the call.
  void throw_if_refused(std::uint64_t round) const;
  /// Throws if ranks make different calls. All ranks compare the same headers, so all throw.
  void find_difference(std::uint64_t round) const;

  /// Returns the call in words, such as "all_reduce (collective call 3)".
  [[nodiscard]] std::string title() const;
  /// Records that this rank begins a wait of the call, an operation `what`.
  void begin_wait(operation_kind what) noexcept {
    wait_ = members().begin_wait({shown_as(what), operation_phase::whole, number_});
  }
  /// Records that the wait of `round` has ended. `last` is the rank that came last.
  void end_wait(std::uint64_t round, std::optional<rank_id> last = std::nullopt) const noexcept {
    members().end_wait(wait_, {.epoch = round, .last = last});
  }
  /// Poisons the communicator and throws `code`, the result of a wait of `round`.
  [[noreturn]] void fail(errc code, std::uint64_t round) const;
  /// Poisons the communicator and throws `code`, the result of a wait of `round` for step `step` of
  /// `peer`.
  [[noreturn]] void fail(errc code, std::uint64_t round, rank_id peer, std::uint64_t step) const;

 private:
  [[nodiscard]] call_header header_of(std::uint64_t round, rank_id rank) const noexcept;
  [[noreturn]] void throw_refused(std::uint64_t round, rank_id refuser,
                                  const call_header& theirs) const;
  [[nodiscard]] const membership& members() const noexcept { return *pages_.group().members(); }

  page_exchange& pages_;
  call_header header_;
  std::uint64_t number_;
  std::uint64_t first_round_;
  std::uint64_t digest_ = 0;
  peerbus::detail::activity_line::begun wait_;  // The latest wait.
};

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/call_check.ipp>  // IWYU pragma: keep
#endif

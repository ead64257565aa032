// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/fault/schedule.hpp>

namespace peerbus::detail {

/// Mixes the bits of `value`, so that close numbers have unlike results: the finalizer of
/// splitmix64.
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t value) noexcept {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

/// Decides which requests of a rank meet a fault, and remembers the connections that broke by one.
/// Threads: one at a time.
class fault_plan {
 public:
  /// A plan for `rank`, one of `group_size`.
  /// Throws: `error` invalid_argument if `schedule` has a value outside what it documents.
  fault_plan(fault_schedule schedule, rank_id rank, std::size_t group_size);

  /// Begins a request to `peer`, which must exist. Stalls, or loses the rank, if it is time.
  /// Returns: ok, or the code with which the request ends without having done anything.
  [[nodiscard]] errc begin(rank_id peer) noexcept;

  /// When and in which order a call is to be done.
  struct delivery {
    std::uint64_t delay = 0;             ///< in looks; 0: with the next one
    std::optional<std::uint64_t> place;  ///< decides which earlier calls this one precedes
  };
  /// Decides when the request that was begun last is done, and in which order if it
  /// `can_be_reordered`.
  [[nodiscard]] delivery draw_delivery(bool can_be_reordered) noexcept;
  /// Changes the bounds of the put that was begun last, to a window of `bytes`, if it meets
  /// `corrupt`.
  void corrupt(std::size_t& offset, std::span<const std::byte>& source, std::size_t bytes) noexcept;
  /// The request that was begun last took its place before an earlier call.
  void count_reordered() noexcept { ++counts_.reordered; }

  /// The connection to `peer` is broken, and `code` is what later calls return.
  void break_link(rank_id peer, errc code) noexcept;
  /// Returns ok, or why calls to `peer` are in vain.
  [[nodiscard]] errc state_of(rank_id peer) const noexcept;
  /// Returns ok, or why nothing can come from `awaited`, or from some rank if it is empty.
  [[nodiscard]] errc health(std::optional<rank_id> awaited) const noexcept;
  /// Returns whether the rank is lost.
  [[nodiscard]] bool is_dropped() const noexcept { return counts_.dropped != 0; }

  [[nodiscard]] const fault_schedule& schedule() const noexcept { return schedule_; }
  [[nodiscard]] const fault_counts& counts() const noexcept { return counts_; }
  /// Says which requests failed by the schedule. Empty if none did.
  [[nodiscard]] std::string describe() const;

 private:
  enum class draw : std::uint64_t {
    delay,
    delay_length,
    reorder,
    place,
    stall,
    fail,
    drop,
    corrupt,
    corrupt_form,
    corrupt_bytes
  };
  struct link {
    errc later = errc::ok;      ///< what calls return
    errc given = errc::ok;      ///< what the request that failed by the schedule returned
    std::uint64_t request = 0;  ///< its number
  };

  [[nodiscard]] std::uint64_t random(draw what) const noexcept;
  [[nodiscard]] bool meets(const fault_rule& rule, draw what, std::uint64_t given) const noexcept;

  fault_schedule schedule_;
  rank_id rank_;
  std::vector<link> links_;
  fault_counts counts_;
  std::uint64_t lost_at_ = 0;
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/fault/plan.ipp>  // IWYU pragma: keep
#endif

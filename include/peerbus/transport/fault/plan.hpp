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

/// Mixes the bits of `value`, so that close numbers have unlike results. Source: the finalizer of
/// splitmix64.
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t value) noexcept {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

/// Decides which requests of a rank meet a fault, and remembers the connections that faults broke.
/// Threads: one at a time.
class fault_plan {
 public:
  /// Makes the plan of `rank` in a group of `group_size` ranks.
  /// Throws: `error` invalid_argument if a value in `schedule` is outside its documented range.
  fault_plan(fault_schedule schedule, rank_id rank, std::size_t group_size);

  /// Begins a request to `peer`, which must exist. Stalls or loses the rank if the schedule says
  /// so.
  /// Returns: ok, or the code with which the request ends without effect.
  [[nodiscard]] errc begin(rank_id peer) noexcept;

  /// The time and the order in which a call is carried out.
  struct delivery {
    std::uint64_t delay = 0;             ///< number of looks to skip; 0: carried out at the next
                                         ///< look
    std::optional<std::uint64_t> place;  ///< decides which earlier calls this call precedes
  };
  /// Decides when the latest request is carried out, and in which order if it `can_be_reordered`.
  [[nodiscard]] delivery draw_delivery(bool can_be_reordered) noexcept;
  /// Changes the bounds of the latest request, a put into a window of `bytes` bytes, if it meets
  /// `corrupt`.
  void corrupt(std::size_t& offset, std::span<const std::byte>& source, std::size_t bytes) noexcept;
  /// Counts that the latest request took a place before an earlier call.
  void count_reordered() noexcept { ++counts_.reordered; }

  /// Marks the connection to `peer` as broken. Later calls return `code`, unless it was broken
  /// before.
  void break_link(rank_id peer, errc code) noexcept;
  /// Returns ok, or the error that calls to `peer` return.
  [[nodiscard]] errc state_of(rank_id peer) const noexcept;
  /// Returns ok, or the reason why nothing can arrive from `awaited`, or from some rank if it is
  /// empty.
  [[nodiscard]] errc health(std::optional<rank_id> awaited) const noexcept;
  /// Returns whether the rank is lost.
  [[nodiscard]] bool is_dropped() const noexcept { return counts_.dropped != 0; }

  [[nodiscard]] const fault_schedule& schedule() const noexcept { return schedule_; }
  [[nodiscard]] const fault_counts& counts() const noexcept { return counts_; }
  /// Returns a text that says which requests failed by the schedule. Empty if none did.
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
    errc later = errc::ok;      ///< ok, or the error that later calls return
    errc given = errc::ok;      ///< ok, or the error of the request that failed by the schedule
    std::uint64_t request = 0;  ///< the number of that request
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

// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/core/kernel_file.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/trace/clock_offset.hpp>

namespace peerbus {

namespace detail {

/// Returns a text that is equal for processes with one CLOCK_MONOTONIC.
PEERBUS_INLINE std::string identity_of_clock() {
  struct stat found{};
  const bool has_namespace = ::stat("/proc/self/ns/time", &found) == 0;
  return concat(read_kernel_file("/proc/sys/kernel/random/boot_id"),
                has_namespace ? found.st_ino : ino_t{0});
}

/// Returns what the first rank gave that is not gone.
PEERBUS_INLINE const std::vector<std::byte>& first_given(
    const std::vector<bootstrap::contribution>& all) noexcept {
  return std::find_if(all.begin(), all.end() - 1,
                      [](const auto& given) { return !given.bytes.empty(); })
      ->bytes;
}

/// Gives the present time of this rank to all ranks. Returns the time that the first rank gave.
PEERBUS_INLINE std::int64_t share_time(bootstrap& boot, deadline until) {
  std::int64_t time = operation_event::now();
  bootstrap::contribution own;
  own.bytes.resize(sizeof time);
  std::memcpy(own.bytes.data(), &time, sizeof time);
  const auto all = boot.allgather(std::move(own), until, "clocks of the ranks");
  std::memcpy(&time, first_given(all).data(), sizeof time);
  return time;
}

PEERBUS_INLINE clock_offset measure_other_clock(bootstrap& boot, deadline until) {
  constexpr int rounds = 16;
  // Rank 0 reads the time of a round after it has heard of all ranks in the round before, which
  // they had begun then, and before they have heard of rank 0 in this round.
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t begun = operation_event::now();
  static_cast<void>(share_time(boot, until));
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t begun_next = operation_event::now();
    const std::int64_t time = share_time(boot, until);
    most = std::min(most, time - begun);
    least = std::max(least, time - operation_event::now());
    begun = begun_next;
  }
  return {.nanoseconds = least + (most - least) / 2,
          .error = (most - least + 1) / 2,
          .measured = operation_event::now()};
}

}  // namespace detail

PEERBUS_INLINE std::int64_t clock_offset::of_rank_0(std::int64_t time,
                                                    const clock_offset& later) const noexcept {
  const auto span = static_cast<double>(later.measured - measured);
  const double part = span <= 0 ? 1.0 : static_cast<double>(time - measured) / span;
  const auto drift = static_cast<double>(later.nanoseconds - nanoseconds);
  return time + nanoseconds + static_cast<std::int64_t>(drift * part);
}

PEERBUS_INLINE clock_offset measure_clock(bootstrap& boot, deadline until) {
  const std::string identity = detail::identity_of_clock();
  const auto bytes = std::as_bytes(std::span{identity});
  const auto all = boot.allgather({{bytes.begin(), bytes.end()}, {}}, until, "clocks of the ranks");
  const auto is_of_rank_0 = [&](const bootstrap::contribution& given) {
    return given.bytes.empty() || given.bytes == detail::first_given(all);
  };
  clock_offset found{.measured = operation_event::now()};
  if (std::all_of(all.begin(), all.end(), is_of_rank_0)) return found;
  const clock_offset measured = detail::measure_other_clock(boot, until);
  return is_of_rank_0(all[boot.rank().index()]) ? found : measured;
}

}  // namespace peerbus

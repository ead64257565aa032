// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/observed_group.hpp>

namespace peerbus_inspect {

/// The part that a rank plays in its group at the moment.
enum class standing : std::uint8_t {
  waits,    ///< in an operation of the group
  busy,     ///< in none
  stopped,  ///< its process is
  gone,     ///< ended while others may still count on it
  left,     ///< ended, and takes part in nothing more
  absent    ///< no process has become it yet
};

/// Returns the part that `rank` plays.
inline standing standing_of(const peerbus::observed_rank& rank) {
  using peerbus::rank_state;
  if (rank.announced == rank_state::left || rank.announced == rank_state::excluded)
    return standing::left;
  if (rank.announced != rank_state::running || rank.is == peerbus::process_state::gone)
    return standing::gone;
  if (rank.process == 0) return standing::absent;
  if (rank.is == peerbus::process_state::stopped) return standing::stopped;
  return rank.latest && !rank.latest->is_over ? standing::waits : standing::busy;
}

/// Returns the place of a phase among those of its operation, in the order of time.
inline int place_of(peerbus::operation_phase phase) noexcept {
  using peerbus::operation_phase;
  // Late weights travel before the outputs that they weight.
  if (phase == operation_phase::weights) return static_cast<int>(operation_phase::outputs);
  return static_cast<int>(phase) + (phase == operation_phase::outputs ? 1 : 0);
}

/// Returns the order in which a rank comes to two waits, if their names and numbers tell it.
inline std::optional<std::strong_ordering> order_of(const peerbus::group_wait& a,
                                                    const peerbus::group_wait& b) {
  using peerbus::group_operation;
  const auto is_of_exchange = [](const peerbus::group_wait& wait) {
    return wait.operation == group_operation::dispatch ||
           wait.operation == group_operation::combine;
  };
  // With several batches in flight, the combine of one comes before or after the next dispatch.
  const bool are_comparable = a.operation == b.operation ||
                              (is_of_exchange(a) && is_of_exchange(b) && a.number == b.number);
  // A signal has a value instead of a number, and an allgather has none.
  if (!are_comparable || a.number == 0 || a.operation == group_operation::signal)
    return std::nullopt;
  if (a.number != b.number) return a.number <=> b.number;
  if (a.operation != b.operation) return a.operation <=> b.operation;
  return place_of(a.phase) <=> place_of(b.phase);
}

/// Returns whether `other` is known to have come to the operation in which `waiter` waits.
inline bool has_reached(const peerbus::observed_rank& other, const peerbus::observed_rank& waiter) {
  if (!other.latest) return false;
  const peerbus::group_wait& theirs = other.latest->wait;
  const peerbus::group_wait& awaited = waiter.latest->wait;
  // A rank that is done with another operation may have called that of another exchange.
  if (other.latest->is_over && theirs.operation != awaited.operation) return false;
  if (const auto order = order_of(theirs, awaited)) return *order >= 0;
  return !other.latest->is_over && theirs == awaited;
}

/// The reason why the ranks of a group wait, the worst last.
enum class finding : std::uint8_t {
  ended,      ///< all ranks have left
  moving,     ///< no rank has waited for long
  elsewhere,  ///< those that are seen wait for ranks that are not, or in another group
  busy,       ///< the culprits are in no operation, or have been for less than the patience
  mismatch,   ///< all ranks wait, in operations that do not fit together, or for lost messages
  gone,       ///< the culprits have ended
  stopped     ///< the culprits' processes are stopped
};

/// The answer for one group. Ranks are named by their places among those that are seen.
struct diagnosis {
  finding found = finding::ended;
  std::vector<std::size_t> culprits{};                ///< those at which all chains end; sorted
  std::vector<std::vector<std::size_t>> waits_for{};  ///< [ranks]; empty if it waits for nobody
  std::vector<std::size_t> waiters{};  ///< that wait for a culprit, or for a rank that does; sorted
};

/// Returns the ranks that wait for one of `culprits`, if need be through other ranks.
inline std::vector<std::size_t> waiters_of(const std::vector<std::size_t>& culprits,
                                           const std::vector<std::vector<std::size_t>>& waits_for) {
  std::vector<bool> is_held(waits_for.size());
  for (const std::size_t culprit : culprits) is_held[culprit] = true;
  std::vector<std::size_t> found;
  for (std::size_t before = 1; before != found.size();) {
    before = found.size();
    for (std::size_t i = 0; i < waits_for.size(); ++i)
      if (!is_held[i] && std::ranges::any_of(waits_for[i], [&](auto j) { return is_held[j]; })) {
        is_held[i] = true;
        found.push_back(i);
      }
  }
  std::ranges::sort(found);
  return found;
}

/// Finds out whom each rank waits for, and at whom the chains end. `is_whole` is false if the group
/// has ranks that are not among `ranks`. `waits_elsewhere` says which of them wait in another
/// group: [ranks]. Ranks count as moving until one has waited for `patience`.
inline diagnosis diagnose(const std::vector<peerbus::observed_rank>& ranks, bool is_whole,
                          const std::vector<bool>& waits_elsewhere,
                          std::chrono::nanoseconds patience) {
  std::vector<standing> parts;
  parts.reserve(ranks.size());
  for (const peerbus::observed_rank& rank : ranks) parts.push_back(standing_of(rank));
  diagnosis result;
  result.waits_for.resize(ranks.size());
  std::vector<bool> is_awaited(ranks.size());
  std::chrono::nanoseconds longest{-1};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (parts[i] != standing::waits) continue;
    longest = std::max(longest, ranks[i].latest->since);
    for (std::size_t j = 0; j < ranks.size(); ++j)
      if (j != i && parts[j] != standing::left && !has_reached(ranks[j], ranks[i])) {
        result.waits_for[i].push_back(j);
        is_awaited[j] = true;
      }
    if (!result.waits_for[i].empty() || ranks[i].latest->since < patience) continue;
    // Each exchange and team counts for itself, so a rank that computes may not have come to this
    // one, whatever its number says.
    for (std::size_t j = 0; j < ranks.size(); ++j)
      if (parts[j] == standing::busy) {
        result.waits_for[i].push_back(j);
        is_awaited[j] = true;
      }
  }
  const auto blame = [&](finding found, auto&& is_culprit) {
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (is_culprit(i)) result.culprits.push_back(i);
    if (!result.culprits.empty()) result.found = found;
    result.waiters = waiters_of(result.culprits, result.waits_for);
    return !result.culprits.empty();
  };
  const auto is_idle = [&](std::size_t i) {
    const bool moves = parts[i] == standing::waits && ranks[i].latest->since < patience;
    return is_awaited[i] && (moves || parts[i] == standing::busy || parts[i] == standing::absent);
  };
  if (blame(finding::stopped, [&](auto i) { return parts[i] == standing::stopped; }) ||
      // A rank that ended because of another one is no cause, unless there is no other.
      blame(finding::gone,
            [&](auto i) {
              return parts[i] == standing::gone &&
                     ranks[i].announced != peerbus::rank_state::followed;
            }) ||
      blame(finding::gone, [&](auto i) { return parts[i] == standing::gone; }))
    return result;
  const bool has_ended =
      std::ranges::all_of(parts, [](standing part) { return part == standing::left; });
  result.found = has_ended ? finding::ended : finding::moving;
  if (longest < patience ||
      blame(
          finding::busy, [&](auto i) { return is_idle(i) && !waits_elsewhere[i]; }) ||
      blame(finding::elsewhere, is_idle))
    return result;
  if (is_whole)
    blame(finding::mismatch, [&](auto i) { return parts[i] == standing::waits; });
  else
    result.found = finding::elsewhere;
  return result;
}

}  // namespace peerbus_inspect

// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

PEERBUS_ERROR_PATH const char* name_of(group_operation operation) noexcept {
  // In the order of the enumerators.
  static constexpr std::array names{
      "none",           "allgather",       "barrier",        "continue_without_the_dead",
      "gather_in_view", "signal",          "call_agreement", "dispatch",
      "combine",        "batch_send_recv", "broadcast",      "gather",
      "gather_v",       "scatter",         "scatter_v",      "all_gather",
      "all_gather_v",   "all_to_all",      "all_to_all_v",   "reduce",
      "all_reduce",     "all_reduce_add",  "reduce_scatter", "reduce_scatter_v"};
  static_assert(names.size() == static_cast<std::size_t>(group_operation::reduce_scatter_v) + 1);
  const auto place = static_cast<std::size_t>(operation);
  return place < names.size() ? names[place] : "unknown";
}

PEERBUS_ERROR_PATH const char* name_of(operation_phase phase) noexcept {
  static constexpr std::array names{"whole", "counts", "rows", "outputs", "weights"};
  static_assert(names.size() == static_cast<std::size_t>(operation_phase::weights) + 1);
  const auto place = static_cast<std::size_t>(phase);
  return place < names.size() ? names[place] : "unknown";
}

PEERBUS_ERROR_PATH std::string describe(const activity& seen) {
  std::string text = seen.is_over ? "done with " : "waiting ";
  if (seen.wait.phase != operation_phase::whole)
    text += detail::concat(seen.is_over ? "" : "for ", name_of(seen.wait.phase), " of ");
  else if (!seen.is_over)
    text += "in ";
  text += name_of(seen.wait.operation);
  if (seen.wait.number != 0) text += detail::concat(" ", seen.wait.number);
  return text;
}

namespace detail {

PEERBUS_INLINE void activity_line::claim() noexcept {
  timespec present{};
  ::clock_gettime(CLOCK_BOOTTIME, &present);
  // order: relaxed; the store below publishes it.
  claimed_.store(present.tv_sec * 1'000'000'000 + present.tv_nsec, std::memory_order_relaxed);
  // order: release; pairs with the acquire in `owner`.
  process_.store(::getpid(), std::memory_order_release);
}

PEERBUS_INLINE activity_line::notice activity_line::tell() const noexcept {
  const std::uint64_t latest = latest_.load(std::memory_order_relaxed);
  if ((latest & waits_bit) == 0) return {};
  return {latest, std::max<ticks>(now() - since_.load(std::memory_order_relaxed), 0)};
}

PEERBUS_INLINE void activity_line::hear(const notice& heard) noexcept {
  const ticks present = now();
  since_.store(present - std::clamp<ticks>(heard.age, 0, present), std::memory_order_relaxed);
  latest_.store(heard.word, std::memory_order_relaxed);
  heard_.store(present, std::memory_order_relaxed);
}

PEERBUS_ERROR_PATH std::optional<activity> activity_line::read() const noexcept {
  const std::uint64_t latest = latest_.load(std::memory_order_relaxed);
  if (latest == 0) return std::nullopt;
  const ticks since = since_.load(std::memory_order_relaxed);
  const ticks heard = std::max(since, heard_.load(std::memory_order_relaxed));
  const ticks present = now();
  const auto ago = [present](ticks then) noexcept {
    return std::chrono::nanoseconds{std::max<ticks>(present - then, 0)};
  };
  return activity{decode(latest), (latest & waits_bit) == 0, ago(since), ago(heard)};
}

PEERBUS_ERROR_PATH std::string describe_elapsed(const activity_line::begun& wait) {
  const activity_line::ticks since = wait.since == 0 ? activity_line::now() : wait.since;
  return describe_span(std::chrono::nanoseconds{activity_line::now() - since});
}

}  // namespace detail

}  // namespace peerbus

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include <peerbus/bootstrap/detail/reported.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/bootstrap/event_listeners.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/private_reads.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

/// The templates of `call_rounds`, which operations instantiate.
namespace peerbus::collective::detail {

template <class Give, class Take>
void call_rounds::in_slices(std::size_t total, std::size_t step, Give&& give, Take&& take) {
  const std::size_t staged_step = step;
  if (reads_operands()) step = total;
  part_stride_ = std::min(slice_bytes(ranks()), align_up(total, cache_line_bytes));
  std::size_t done = 0;
  do {
    const std::size_t bytes = std::min(step, total - done);
    if (!begin_round([&] { give(done, bytes); })) return;
    const bool was_private = is_private_;
    if (!is_in_steps_) await();
    if (is_private_ || !was_private) take(done, bytes);
    if (was_private && !finish_reads()) {
      step = staged_step;
      continue;
    }
    done += bytes;
  } while (done < total);
  if (is_in_window()) meet([](rank_id) noexcept { return byte_range{}; });
  if (is_unreadable_) team_.private_.note_unreadable();  // A call that is refused has not got here.
  team_.times_.leave(way_);
}

template <class Work>
void call_rounds::report(const char* name, const request& given, Work&& work) {
  const event_listeners& listeners = pages_.group().members()->listeners();
  if (!listeners.any()) return work();
  peerbus::detail::reported(
      listeners,
      {.what = {.operation = shown_as(what_), .number = check_.number()},
       .name = name == nullptr ? kind_.name : name,
       .bytes = given.input.empty() ? given.output.size() : given.input.size()},
      [&](operation_event& event) {
        work();
        event.epoch = team_.round_;
      });
}

template <class Give>
bool call_rounds::first_round(Give&& give) {
  if (!begin_round(give)) return false;
  await();
  return true;
}

template <class Give>
bool call_rounds::begin_round(Give&& give) {
  if (half_ == half::second)
    half_ = half::only;  // The page is published.
  else if (team_.objection_.empty())
    give();
  else
    put_refusal(errc::invalid_argument, team_.objection_);
  if (half_ != half::first) return true;
  end_first_half();
  return false;
}

}  // namespace peerbus::collective::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <type_traits>
#include <vector>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/control/control_messages.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE void control_messages::post_counts(const step& this_step,
                                                  std::span<const std::uint32_t> counts,
                                                  std::span<const std::byte> note,
                                                  const refusal& own_refusal) {
  const std::size_t offset = message_at(this_step, window_->group().rank());
  std::byte* const message = board_.at(offset);
  std::size_t bytes = write_verdict({this_step.epoch, own_refusal, note.size()}, message);
  if (!own_refusal) {
    bytes = write_counts(counts, message);
    if (!note.empty()) {
      std::memcpy(message + map_.note_at, note.data(), note.size());
      bytes = map_.note_at + note.size();
    }
  }
  require(this_step, board_.post(offset, bytes));
}

PEERBUS_INLINE void control_messages::post_own_counts(const step& this_step,
                                                      const expert_placement& blocks,
                                                      std::span<const std::uint32_t> counts,
                                                      std::span<const std::byte> note,
                                                      const refusal& own_refusal) {
  const rank_group& group = window_->group();
  const std::size_t target = message_at(this_step, group.rank());
  const bool is_for_all = own_refusal || !note.empty();
  for (const rank_id receiver : group.ranks()) {
    const auto own_counts = counts.subspan(blocks.first(receiver), blocks.count(receiver));
    if (!is_for_all && std::all_of(own_counts.begin(), own_counts.end(),
                                   [](std::uint32_t count) { return count == 0; }))
      continue;
    const bool is_own = receiver == group.rank();
    const std::size_t source = is_own ? target : outbox_at(this_step, receiver);
    std::size_t bytes = write_verdict({this_step.epoch, own_refusal, note.size()}, local(source));
    if (!own_refusal) bytes = write_counts(own_counts, local(source));
    if (!is_own) send_part(this_step, receiver, target, source, bytes);
  }
  if (own_refusal || note.empty()) return;
  const std::size_t note_place = target + map_.note_at;
  std::memcpy(local(note_place), note.data(), note.size());
  for (const rank_id peer : group.peers())
    send_part(this_step, peer, note_place, note_place, note.size());
}

PEERBUS_INLINE void control_messages::post_verdict(const step& this_step,
                                                   const refusal& own_refusal,
                                                   std::uint64_t brings) {
  const std::size_t offset = refusal_at(this_step, window_->group().rank());
  const std::size_t bytes =
      write_verdict({this_step.epoch, own_refusal, brings}, board_.at(offset));
  require(this_step, board_.post(offset, bytes));
}

PEERBUS_INLINE void control_messages::announce(const step& this_step) {
  require(this_step,
          board_.announce(signal_of(this_step, window_->group().rank()), this_step.epoch));
}

PEERBUS_INLINE bool control_messages::all_came(const step& this_step) const noexcept {
  for (const rank_id peer : window_->group().peers())
    if (announced(this_step, peer) < this_step.epoch) return false;
  return true;
}

PEERBUS_INLINE void control_messages::await_all(const step& this_step, deadline until,
                                                std::string_view text_end,
                                                std::span<std::int64_t> waited) {
  auto& seen = window_->group().members()->own_activity();
  const auto wait = seen.begin({this_step.operation, this_step.which, this_step.number});
  if (is_attended_) return await_attended(this_step, wait, until, text_end, waited);
  const errc code = wait_for_all(this_step, until, waited);
  if (code != errc::ok) fail_waiting(this_step, code, wait, text_end);
  seen.end(wait);
}

PEERBUS_INLINE void control_messages::await_attended(
    const step& this_step, const peerbus::detail::activity_line::begun& wait, deadline until,
    std::string_view text_end, std::span<std::int64_t> waited) {
  const membership& members = *window_->group().members();
  // Signals that have all come are no event, and need no clock.
  if (waited.empty() && all_came(this_step)) return members.own_activity().end(wait);
  const auto begun = members.listeners().any() ? members.listeners().tell_begin(wait) : wait;
  wait_end end{.epoch = this_step.epoch};
  end.fault = watch_ == nullptr ? noted_wait(this_step, until, waited, end.last)
                                : watched_wait(this_step, until, waited, end.last);
  if (end.fault != errc::ok) {
    members.fail_wait(begun, end.fault, end.last);
    fail_waiting(this_step, end.fault, wait, text_end);
  }
  members.end_wait(begun, end);
}

PEERBUS_INLINE errc control_messages::wait_for_all(const step& this_step, deadline until,
                                                   std::span<std::int64_t> waited) {
  const auto peers = window_->group().peers();
  if (!waited.empty())
    arrivals_.measure(
        board_, peers, [&](rank_id peer) { return signal_of(this_step, peer); }, this_step.epoch,
        until, waited);
  for (const rank_id peer : peers) {
    const errc code = board_.wait(signal_of(this_step, peer), this_step.epoch, until, peer);
    if (code != errc::ok) return code;
  }
  return errc::ok;
}

PEERBUS_INLINE errc control_messages::noted_wait(const step& this_step, deadline until,
                                                 std::span<std::int64_t> waited,
                                                 std::optional<rank_id>& last) {
  // A measurement waits for all ranks, and knows which came last.
  if (!waited.empty())
    if (const auto found = arrivals_.measure(
            board_, window_->group().peers(),
            [&](rank_id peer) { return signal_of(this_step, peer); }, this_step.epoch, until,
            waited))
      last = found;
  // All ranks that come before the last one which is missing at its turn have come before it.
  for (const rank_id peer : window_->group().peers()) {
    if (announced(this_step, peer) < this_step.epoch) last = peer;
    const errc code = board_.wait(signal_of(this_step, peer), this_step.epoch, until, peer);
    if (code != errc::ok) return code;
  }
  return errc::ok;
}

PEERBUS_INLINE errc control_messages::watched_wait(const step& this_step, deadline until,
                                                   std::span<std::int64_t> waited,
                                                   std::optional<rank_id>& last) {
  using std::chrono::milliseconds;
  constexpr milliseconds longest_pause{64};
  for (milliseconds pause{1};; pause = std::min(2 * pause, longest_pause)) {
    const deadline next_poll = deadline::after(pause);
    const bool is_last = next_poll.when() >= until.when();
    const errc code = noted_wait(this_step, is_last ? until : next_poll, waited, last);
    if (code != errc::timed_out || is_last) return code;
    watch_->look(until);
  }
}

PEERBUS_INLINE count_table control_messages::own_counts(const step& this_step,
                                                        const expert_placement& blocks) noexcept {
  const rank_group& group = window_->group();
  for (const rank_id source : group.ranks())
    if (verdict_of(this_step, source).epoch != this_step.epoch)
      std::memset(message(this_step, source) + map_.counts_at, 0,
                  blocks.count(group.rank()) * map_.count_bytes);
  return shown_counts(this_step, blocks);
}

PEERBUS_INLINE std::optional<refusal_of> control_messages::refused(
    const step& this_step) const noexcept {
  const rank_id rank = window_->group().rank();
  std::optional<refusal_of> other_bound;
  for (const rank_id peer : window_->group().ranks()) {
    if (peer == rank) continue;
    const verdict record = verdict_of(this_step, peer);
    if (record.epoch != this_step.epoch) continue;
    if (record.why) return refusal_of{peer, record.why};
    if (this_step.which != phase::counts || other_bound) continue;
    const std::int64_t own_bound = verdict_of(this_step, rank).why.expected;
    if (record.why.expected != own_bound)
      other_bound = {peer,
                     {.reason = refusal_reason::bound_differs,
                      .given = record.why.expected,
                      .expected = own_bound}};
  }
  return other_bound;
}

PEERBUS_INLINE void control_messages::forget(rank_id rank) noexcept {
  const rank_group& group = window_->group();
  // On a board that ranks share, one of them writes.
  const bool writes_board = board_.at(0) == local(0) || group.view().members()[0] == group.rank();
  for (std::size_t generation = 0; generation < 2 * map_.in_flight; ++generation) {
    const std::size_t offset =
        map_.counts + (generation * group.size() + rank.index()) * map_.message_bytes;
    std::memset(local(offset), 0, map_.message_bytes);
    if (writes_board) std::memset(board_.at(offset), 0, map_.message_bytes);
  }
}

PEERBUS_INLINE std::string control_messages::title(const step& this_step) {
  return peerbus::detail::concat({name_of(this_step.operation), " ", this_step.number});
}

PEERBUS_INLINE std::size_t control_messages::write_verdict(const verdict& record,
                                                           std::byte* target) noexcept {
  static_assert(sizeof record == memory_map::verdict_bytes);
  std::memcpy(target, &record, sizeof record);
  return sizeof record;
}

PEERBUS_INLINE verdict control_messages::verdict_of(const step& this_step,
                                                    rank_id source) const noexcept {
  verdict record;
  std::memcpy(&record,
              this_step.which == phase::outputs ? board_.at(refusal_at(this_step, source))
                                                : message(this_step, source),
              sizeof record);
  return record;
}

PEERBUS_INLINE std::size_t control_messages::write_counts(std::span<const std::uint32_t> counts,
                                                          std::byte* message) const noexcept {
  std::byte* const first = message + map_.counts_at;
  with_count_type(map_.count_bytes, [&]<class Count>(std::type_identity<Count>) noexcept {
    std::transform(counts.begin(), counts.end(), peerbus::detail::placed<Count>(first),
                   [](std::uint32_t wide_count) { return static_cast<Count>(wide_count); });
  });
  return map_.counts_at + counts.size() * map_.count_bytes;
}

PEERBUS_INLINE void control_messages::send_part(const step& this_step, rank_id peer,
                                                std::size_t target, std::size_t source,
                                                std::size_t bytes) {
  require(this_step, window_->put(peer, target, std::span{local(source), bytes}));
}

[[noreturn]] PEERBUS_ERROR_PATH void control_messages::fail(const step& this_step, errc code) {
  std::string text = title(this_step) + " failed in the middle";
  if (const auto gone = window_->group().missing(); !gone.empty()) text += "; " + gone;
  window_->group().fail(code, text);
}

[[noreturn]] PEERBUS_ERROR_PATH void control_messages::fail_waiting(
    const step& this_step, errc code, const peerbus::detail::activity_line::begun& wait,
    std::string_view text_end) {
  rank_group& group = window_->group();
  std::vector<rank_id> awaited(group.peers().begin(), group.peers().end());
  std::sort(awaited.begin(), awaited.end());
  std::erase_if(awaited,
                [&](rank_id peer) { return announced(this_step, peer) >= this_step.epoch; });
  group.fail_waiting(
      code,
      peerbus::detail::concat({title(this_step), ": waited ",
                               peerbus::detail::describe_elapsed(wait), " for ",
                               name_of(this_step.which), awaited.empty() ? "" : " of "}),
      awaited,
      [&](rank_id peer) {
        return peerbus::detail::concat(
            {"epoch ", announced(this_step, peer), ", expected ", this_step.epoch});
      },
      text_end);
}

}  // namespace peerbus::moe::detail

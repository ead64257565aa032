// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <thread>
#include <utility>

#include <peerbus/core/text.hpp>
#include <peerbus/transport/fault/plan.hpp>

namespace peerbus::detail {

PEERBUS_INLINE fault_plan::fault_plan(fault_schedule schedule, rank_id rank, std::size_t group_size)
    : schedule_{std::move(schedule)}, rank_{rank}, links_(group_size) {
  for (const fault_rule* const rule : {&schedule_.delay, &schedule_.reorder, &schedule_.stall,
                                       &schedule_.fail, &schedule_.drop, &schedule_.corrupt})
    if (!(rule->chance >= 0 && rule->chance <= 1))
      throw error{errc::invalid_argument,
                  concat("fault: a chance is ", rule->chance, ", expected 0 to 1")};
  if (schedule_.longest_delay == 0)
    throw error{errc::invalid_argument, "fault: longest_delay is 0, expected at least 1"};
  if (schedule_.held_calls < 2)
    throw error{errc::invalid_argument,
                concat("fault: held_calls is ", schedule_.held_calls, ", expected at least 2")};
  if (schedule_.fail_with == errc::ok)
    throw error{errc::invalid_argument, "fault: fail_with is ok, expected a failure"};
}

PEERBUS_INLINE errc fault_plan::begin(rank_id peer) noexcept {
  ++counts_.requests;
  if (const errc found = state_of(peer); found != errc::ok) return found;
  if (meets(schedule_.stall, draw::stall, counts_.stalled)) {
    ++counts_.stalled;
    if (schedule_.on_stall)
      schedule_.on_stall();
    else
      std::this_thread::sleep_for(schedule_.stall_time);
  }
  if (meets(schedule_.drop, draw::drop, counts_.dropped)) {
    ++counts_.dropped;
    lost_at_ = counts_.requests;
    if (schedule_.on_drop) schedule_.on_drop();
    return errc::peer_dead;
  }
  if (meets(schedule_.fail, draw::fail, counts_.failed)) {
    ++counts_.failed;
    const errc later = schedule_.fail_with == errc::peer_dead ? errc::peer_dead : errc::unreachable;
    links_[peer.index()] = {later, schedule_.fail_with, counts_.requests};
    return schedule_.fail_with;
  }
  return errc::ok;
}

PEERBUS_INLINE fault_plan::delivery fault_plan::draw_delivery(bool can_be_reordered) noexcept {
  delivery drawn;
  const bool is_delayed = meets(schedule_.delay, draw::delay, counts_.delayed);
  if (is_delayed) ++counts_.delayed;
  if (can_be_reordered && meets(schedule_.reorder, draw::reorder, counts_.reordered))
    drawn.place = random(draw::place);
  // A call that would be done at once finds no calls of its time to be reordered with.
  if (is_delayed || drawn.place)
    drawn.delay = 1 + random(draw::delay_length) % schedule_.longest_delay;
  return drawn;
}

PEERBUS_INLINE void fault_plan::corrupt(std::size_t& offset, std::span<const std::byte>& source,
                                        std::size_t bytes) noexcept {
  constexpr std::size_t most = 8;
  if (source.empty() || !meets(schedule_.corrupt, draw::corrupt, counts_.corrupted)) return;
  ++counts_.corrupted;
  const std::size_t behind = bytes - offset - source.size();
  const bool moves = random(draw::corrupt_form) % 2 == 0 && (offset > 0 || behind > 0);
  const std::size_t room = !moves ? source.size() : behind > 0 ? behind : offset;
  const std::size_t by = 1 + random(draw::corrupt_bytes) % std::min(most, room);
  if (!moves)
    source = source.first(source.size() - by);
  else
    offset = behind > 0 ? offset + by : offset - by;
}

PEERBUS_INLINE void fault_plan::break_link(rank_id peer, errc code) noexcept {
  link& broken = links_[peer.index()];
  if (broken.later == errc::ok) broken.later = code;
}

PEERBUS_INLINE errc fault_plan::state_of(rank_id peer) const noexcept {
  if (is_dropped()) return errc::peer_dead;
  return peer.index() < links_.size() ? links_[peer.index()].later : errc::ok;
}

PEERBUS_INLINE errc fault_plan::health(std::optional<rank_id> awaited) const noexcept {
  if (awaited) return state_of(*awaited);
  for (const rank_id peer : all_ranks{links_.size()})
    if (const errc found = state_of(peer); found != errc::ok) return found;
  return errc::ok;
}

PEERBUS_ERROR_PATH std::string fault_plan::describe() const {
  std::string text;
  const auto by = concat(" by the fault schedule with seed ", schedule_.seed);
  if (is_dropped()) text = concat(rank_, " was dropped at its request ", lost_at_, by);
  for (const rank_id peer : all_ranks{links_.size()})
    if (const link& broken = links_[peer.index()]; broken.given != errc::ok)
      text += concat(text.empty() ? "" : "; ", "request ", broken.request, " of ", rank_, ", to ",
                     peer, ", failed", by, ": ", to_string(broken.given));
  return text;
}

PEERBUS_INLINE std::uint64_t fault_plan::random(draw what) const noexcept {
  const std::uint64_t of_rank = mix_bits(mix_bits(schedule_.seed) ^ rank_.index());
  return mix_bits(mix_bits(of_rank ^ counts_.requests) ^ static_cast<std::uint64_t>(what));
}

PEERBUS_INLINE bool fault_plan::meets(const fault_rule& rule, draw what,
                                      std::uint64_t given) const noexcept {
  if (given >= rule.limit || counts_.requests < rule.first) return false;
  // 53 bits, which a double holds.
  return static_cast<double>(random(what) >> 11U) * 0x1p-53 < rule.chance;
}

}  // namespace peerbus::detail

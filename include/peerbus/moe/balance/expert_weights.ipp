// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/balance/expert_weights.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/engine/expert_tables.hpp>
#include <peerbus/moe/plan/check_experts.hpp>

namespace peerbus::moe {

/// The last bytes of a place.
struct expert_weights::canary {
  static constexpr std::uint64_t song = 0x7065'6572'6275'7321;

  std::uint64_t mark = 0;
  std::uint64_t expert = 0;
};

PEERBUS_INLINE expert_weights::expert_weights(rank_group& group, const expert_map& placement,
                                              expert_tensors shape, window_source make_window,
                                              deadline until)
    : group_{&group}, shape_{std::move(shape)}, experts_{placement}, free_(group.size()) {
  using peerbus::detail::concat;
  std::vector<declared> values;
  detail::expert_tables tables;
  const auto objection = objection_of("the weights of experts", [&] {
    require_possible();
    std::string sizes;
    for (const std::size_t bytes : shape_.bytes) {
      sizes += concat(sizes.empty() ? "" : ", ", bytes);
      tensor_at_.push_back(place_bytes_);
      place_bytes_ = align_up(place_bytes_ + bytes, cache_line_bytes);
    }
    place_bytes_ += cache_line_bytes;  // of the canary
    values = {
        {"the bytes of the tensors", sizes}, {"spare", shape_.spare}, {"the slice", shape_.slice}};
    number_places();
    std::vector<std::uint32_t> held;
    for (const rank_id rank : group.ranks())
      held.insert(held.end(), experts_.held_by(rank).begin(), experts_.held_by(rank).end());
    tables = {config_of(held), group.size()};
    tables.declare(values);
  });
  detail::agree_with_tables(group, "expert_weights", values, tables, until, objection);
  const std::size_t most = std::ranges::max(experts_of_rank_);
  memory_ = group.collective_on_all_ranks("the weights of experts", until, [&] {
    return make_window({.bytes = (most + shape_.spare) * place_bytes_,
                        .signals = group.size(),
                        .traffic = traffic_class::bulk},
                       until);
  });
  control_ = group.collective_on_all_ranks("the signals of experts that move", until, [&] {
    return make_window({.bytes = 0, .signals = 2 * group.size()}, until);
  });
  const rank_id own = group.rank();
  for (std::size_t e = 0; e < experts_.count(own); ++e) {
    const auto physical = static_cast<std::uint32_t>(experts_.first(own) + e);
    label(offset_of(physical), experts_.logical(physical));
  }
}

PEERBUS_INLINE void expert_weights::require_possible() const {
  using peerbus::detail::concat;
  if (experts_.ranks() != group_->size())
    throw error{errc::invalid_argument,
                concat("expert_weights: a placement of ", experts_.ranks(),
                       " ranks given, expected the group's ", group_->size())};
  if (shape_.bytes.empty() || shape_.spare == 0 || shape_.slice == 0)
    throw error{errc::invalid_argument,
                concat("expert_weights: ", shape_.bytes.size(), " tensors, spare ", shape_.spare,
                       " and slice ", shape_.slice, " given, expected at least 1 of each")};
  if (shape_.spare > max_experts)
    throw error{errc::invalid_argument, concat("expert_weights: spare ", shape_.spare,
                                               " given, expected at most ", max_experts)};
  // So much less than an address can say that sums of them cannot wrap.
  constexpr std::size_t most_bytes = std::size_t{1} << 44U;
  std::size_t left = most_bytes;
  for (const std::size_t bytes : shape_.bytes) {
    if (bytes > left - std::min(left, 2 * cache_line_bytes))
      throw error{errc::invalid_argument,
                  concat("expert_weights: a tensor of ", bytes, " bytes given, expected at most ",
                         most_bytes, " bytes of all tensors of an expert")};
    left -= bytes + cache_line_bytes;
  }
  std::size_t places = shape_.spare;
  for (const rank_id rank : group_->ranks())
    places = std::max(places, experts_.count(rank) + shape_.spare);
  if (places > most_bytes / (most_bytes - left + cache_line_bytes))
    throw error{errc::invalid_argument,
                concat("expert_weights: ", places, " experts of ", most_bytes - left,
                       " bytes at a rank, expected at most ", most_bytes, " bytes in all")};
}

PEERBUS_INLINE void expert_weights::number_places() {
  for (const rank_id rank : group_->ranks()) {
    const auto count = static_cast<std::uint32_t>(experts_.count(rank));
    experts_of_rank_.push_back(count);
    places_.resize(places_.size() + count);
    std::iota(places_.end() - count, places_.end(), 0U);
    free_[rank.index()].resize(shape_.spare);
    std::iota(free_[rank.index()].begin(), free_[rank.index()].end(), count);
  }
}

PEERBUS_INLINE expert_weights::~expert_weights() = default;

PEERBUS_INLINE std::span<std::byte> expert_weights::tensor(std::size_t e, std::size_t i) noexcept {
  const auto physical = static_cast<std::uint32_t>(experts_.first(group_->rank()) + e);
  return {memory_->local() + offset_of(physical) + tensor_at_[i], shape_.bytes[i]};
}

PEERBUS_INLINE void expert_weights::label(std::size_t place_offset, std::uint32_t expert) noexcept {
  const canary written{canary::song, expert};
  std::memcpy(memory_->local() + place_offset + place_bytes_ - sizeof written, &written,
              sizeof written);
}

PEERBUS_INLINE exchange_config
expert_weights::config_of(std::span<const std::uint32_t> table) const noexcept {
  exchange_config config{.experts = experts_.experts()};
  config.physical_to_logical = table;
  config.experts_of_rank = experts_of_rank_;
  return config;
}

PEERBUS_INLINE void expert_weights::require_planned_here(
    std::span<const std::uint32_t> planned_for) const {
  for (std::size_t p = 0; p < std::min(planned_for.size(), experts_.physical_experts()); ++p)
    if (planned_for[p] != experts_.logical(p))
      throw error{errc::invalid_argument,
                  peerbus::detail::concat("expert_weights: a plan for a map that has ",
                                          detail::describe_expert(planned_for[p]), " at place ", p,
                                          ", expected one for the map here, which has ",
                                          detail::describe_expert(experts_.logical(p)), " there")};
}

PEERBUS_INLINE std::size_t expert_weights::begin_from(std::span<const std::uint32_t> planned_for,
                                                      std::span<const std::uint32_t> wanted,
                                                      std::optional<deadline> until) {
  const deadline limit = until.value_or(group_->default_deadline());
  std::vector<move_round> planned;
  detail::expert_tables tables;
  std::vector<declared> values;
  const auto objection = objection_of("the plan of moves", [&] {
    if (is_moving())
      throw error{errc::invalid_argument,
                  "expert_weights: moves are under way, expected them to have ended"};
    if (auto problem =
            detail::objection_to_new_places("expert_weights", config_of(wanted), experts_))
      throw error{*problem};
    require_planned_here(planned_for);
    note_the_gone();
    planned = plan_moves(experts_, wanted, shape_.spare);
    tables = {config_of(wanted), group_->size()};
    tables.declare(values);
  });
  detail::agree_with_tables(*group_, "expert_weights: begin", values, tables, limit, objection);
  group_->end_together("expert_weights: begin", limit);
  rounds_ = std::move(planned);
  if (is_moving()) set_up_round();
  return rounds_.size();
}

PEERBUS_INLINE void expert_weights::note_the_gone() {
  if (std::ranges::count(group_->view().gone(), true) != 0) experts_.lose(group_->view().gone());
}

PEERBUS_INLINE void expert_weights::forget_round() noexcept {
  leaving_.clear();
  arriving_.clear();
  sent_ = sent_bytes_ = 0;
}

PEERBUS_INLINE void expert_weights::set_up_round() {
  forget_round();
  const rank_id own = group_->rank();
  std::vector<std::size_t> taken(group_->size());  // of the free places of each rank
  for (const expert_move& move : rounds_.front().moves) {
    const rank_id from{experts_.holder(move.from)};
    const rank_id to{experts_.holder(move.to)};
    const std::size_t target = free_[to.index()][taken[to.index()]++] * place_bytes_;
    ++moves_;
    if (from == own) leaving_.push_back({to, offset_of(move.from), target, moves_});
    if (to == own) arriving_.push_back({from, target, move.expert, moves_});
  }
}

PEERBUS_INLINE bool expert_weights::advance(std::size_t bytes) {
  const auto own = static_cast<signal_id>(group_->rank().index());
  while (bytes != 0 && sent_ != leaving_.size()) {
    const outgoing& move = leaving_[sent_];
    const std::size_t slice = std::min({bytes, shape_.slice, place_bytes_ - sent_bytes_});
    const std::span<const std::byte> source{memory_->local() + move.source + sent_bytes_, slice};
    const std::size_t target = move.target + sent_bytes_;
    bytes -= slice;
    sent_bytes_ += slice;
    const bool is_last = sent_bytes_ == place_bytes_;
    const errc code = is_last ? memory_->put_signal(move.peer, target, source, own, move.number)
                              : memory_->put(move.peer, target, source);
    if (code != errc::ok)
      group_->fail(code,
                   peerbus::detail::concat("expert_weights: the expert that was on its way to ",
                                           move.peer, " cannot be put there; ", group_->missing()));
    if (!is_last) continue;
    ++sent_;
    sent_bytes_ = 0;
  }
  return sent_ == leaving_.size();
}

PEERBUS_INLINE expert_weights::state expert_weights::arrivals(deadline until) noexcept {
  // A look, which lets the transport progress.
  for (const incoming& move : arriving_)
    if (memory_->wait_at(group_->rank(), static_cast<signal_id>(move.peer.index()), move.number,
                         until, move.peer) != errc::ok)
      return state::waits;
  for (const incoming& move : arriving_) {
    canary written;
    std::memcpy(&written, memory_->local() + move.target + place_bytes_ - sizeof written,
                sizeof written);
    if (written.mark != canary::song || written.expert != move.expert) return state::has_wrong;
  }
  return state::has_all;
}

PEERBUS_INLINE bool expert_weights::have_all_arrived(deadline until) {
  using peerbus::detail::concat;
  group_->require_healthy("expert_weights: commit", group_->view().number());
  const state mine = arrivals(deadline::after(std::chrono::nanoseconds{0}));
  // A peer may be one commit ahead, so that the states of two lie apart.
  ++commits_;
  const std::size_t first = commits_ % 2 * group_->size();
  const auto id = [&](rank_id rank) { return static_cast<signal_id>(first + rank.index()); };
  errc code = control_->signal_each(group_->peers(), id(group_->rank()),
                                    4 * commits_ + static_cast<std::uint64_t>(mine));
  bool all = mine == state::has_all;
  std::optional<rank_id> wrong;
  if (mine == state::has_wrong) wrong = group_->rank();
  for (const rank_id peer : group_->peers()) {
    if (code == errc::ok)
      code = control_->wait_at(group_->rank(), id(peer), 4 * commits_, until, peer);
    if (code != errc::ok)
      group_->fail(code, concat("expert_weights: commit ", commits_, " waited for ", peer, "; ",
                                group_->missing()));
    const auto theirs = static_cast<state>(control_->value_at(group_->rank(), id(peer)) % 4);
    all = all && theirs == state::has_all;
    if (theirs == state::has_wrong && (!wrong || peer < *wrong)) wrong = peer;
  }
  if (wrong)
    throw error{errc::mismatch, concat("expert_weights: an expert that came to ", *wrong,
                                       " names another in its canary, or is damaged: expected ",
                                       "that of the plan. The old map stands: abandon the moves")};
  return all;
}

PEERBUS_INLINE bool expert_weights::finish_round() {
  for (const expert_move& move : rounds_.front().moves) {
    auto& free = free_[experts_.holder(move.to)];
    std::rotate(free.begin(), free.begin() + 1, free.end());
    std::swap(free.back(), places_[move.to]);
  }
  const std::vector<bool> gone = experts_.gone();
  experts_.install(expert_map{config_of(rounds_.front().physical_to_logical), group_->size()});
  if (!gone.empty()) experts_.lose(gone);
  rounds_.erase(rounds_.begin());
  if (is_moving()) set_up_round();
  return !is_moving();
}

PEERBUS_INLINE void expert_weights::abandon(std::optional<deadline> until) {
  // Nobody puts into the free places any more once all have come here.
  rounds_.clear();
  forget_round();
  static_cast<void>(memory_->settle());
  bootstrap::contribution own;
  peerbus::detail::append_bytes(own.bytes, &commits_, sizeof commits_);
  note_the_gone();
  const auto all = group_->gather("expert_weights: abandon", std::move(own),
                                  until.value_or(group_->default_deadline()));
  // A rank may have met the failure in a commit that another did not reach.
  for (const auto& each : all) {
    std::uint64_t theirs = 0;
    if (each.bytes.size() == sizeof theirs) std::memcpy(&theirs, each.bytes.data(), sizeof theirs);
    commits_ = std::max(commits_, theirs);
  }
}

}  // namespace peerbus::moe

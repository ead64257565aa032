// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include <peerbus/core/placed.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/engine/check_options.hpp>
#include <peerbus/moe/engine/relay_engine.hpp>
#include <peerbus/moe/plan/check_input.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE bool relay_engine::awaits_combine(ticket rows) noexcept {
  const batch_state& found = states_.of(rows.number);
  return found.number == rows.number && found.reached == progress::received &&
         near_.core().awaits_combine(rows);
}

PEERBUS_INLINE relay_engine::relay_engine(const void* exchange, rank_group& whole,
                                          const exchange_config& config, const near_groups& groups,
                                          relay_ranks& members, const level& far_level,
                                          const level& near_level)
    : exchange_{exchange},
      whole_{&whole},
      config_{config},
      column_{groups.largest_column()},
      handed_note_bytes_{handed_note_bytes(config)},
      notes_(column_ * handed_note_bytes_),
      rank_places_(whole.size()),
      ranks_{&members},
      far_{far_level},
      near_{near_level},
      states_{std::vector<batch_state>(config.in_flight)} {
  config_.physical_to_logical = {};  // The caller may free their memory after construction.
  config_.replicas = {};
  for (std::size_t number = 0; number < groups.columns(); ++number) {
    const auto column = groups.column(number);
    for (std::size_t i = 0; i < column.size(); ++i) {
      rank_places_[column[i].index()].hands_on = rank_id{number};
      rank_places_[column[i].index()].in_column = i;
    }
  }
  const auto own_column = far_.group->ranks_of_whole();
  for (const auto& group : groups.groups) {
    // The first rank of a group in the column represents it.
    const auto first = std::ranges::find_first_of(own_column, group);
    for (std::size_t place = 0; place < group.size(); ++place) {
      rank_place& found = rank_places_[group[place].index()];
      found.group_sums = rank_id{static_cast<std::size_t>(first - own_column.begin())};
      found.in_group = place;
    }
  }
}

PEERBUS_INLINE std::optional<refusal_of> relay_engine::dispatch_send(
    const batch_input& input, const routing& route, const dispatch_options& options,
    deadline until) {
  serial("dispatch", options.as, until, [&] { refused_ = begin(input, route, options, until); });
  if (refused_) return answer(refused_);
  far_.core().advance(nullptr, options.as, until);
  return std::nullopt;
}

PEERBUS_INLINE refusal relay_engine::begin(const batch_input& input, const routing& route,
                                           const dispatch_options& options, deadline until) {
  require("dispatch", options.waited);
  const std::uint64_t number = next_dispatch();
  near_.parts->batches.require_free(number);
  skip_refused();
  batch_state& state = states_.of(number);
  // The ranks of the group may not have seen the refusal of the batch before. They call that batch
  // before this one, so that no rank waits in a circle.
  if (state.reached == progress::refused) near_.core().await_called(state.number, until);
  const level_waits waits{far_, options.waited};
  dispatch_options far_options = options;
  far_options.waited = waits.own();
  const refusal kept = near_.parts->batches.objection_to_reuse(number);
  const refusal found = own(far_.core().begin_dispatch(input, route, far_options, kept, until));
  state = {number, progress::sent, options.bound};
  if (!found) return {};
  // Ranks of the group learn of it when they come to this batch. Waiting for them here might be
  // forever, as they may first wait for this rank to combine an earlier batch.
  state.reached = progress::refused;
  near_.core().refuse_ahead(number, found);
  return found;
}

PEERBUS_INLINE void relay_engine::skip_refused() noexcept {
  batch_ring& near_batches = near_.parts->batches;
  for (;;) {
    const std::uint64_t next = near_batches.latest() + 1;
    const batch_state& state = states_.of(next);
    if (state.number != next || state.reached != progress::refused) return;
    near_batches.skip();
  }
}

PEERBUS_INLINE relay_engine::batch_state& relay_engine::next_to_receive(ticket named) {
  const std::uint64_t number = named.number;
  batch_state& state = states_.of(number);
  const auto misuse = [&](const auto&... parts) {
    throw error{errc::invalid_argument,
                peerbus::detail::concat("dispatch_recv was given ticket ", number, ", ", parts...)};
  };
  if (named.exchange != exchange_ || number == 0 || state.number != number ||
      state.reached != progress::sent)
    misuse("expected one that dispatch_send gave and that is not received yet");
  skip_refused();
  if (const std::uint64_t next = near_.parts->batches.latest() + 1; next != number)
    misuse("but dispatch ", next,
           " is not received yet; with two levels batches are received in the order in which "
           "they were sent");
  return state;
}

PEERBUS_INLINE std::optional<refusal_of> relay_engine::dispatch_recv(
    ticket named, const receive_options& options, deadline until,
    peerbus::detail::function_ref<void(const batch&)> arrived) {
  const lane caller = options.as;
  serial("dispatch_recv", caller, until, [&] {
    require("dispatch_recv", options.waited);
    next_to_receive(named);
  });
  batch_state& state = states_.of(named.number);
  const auto receive = [&](level& from, auto&& then) {
    const level_waits waits{from, of_lane_0(options.waited, caller)};
    return from.core().dispatch_recv(named, {.as = caller, .waited = waits.own()}, until, then);
  };
  // All lanes find the same rows or the same refusal.
  const auto crossed = receive(far_, [](const batch&) noexcept {});
  serial(caller, until, [&] { pass_on(state, crossed, until); });
  refusal why = state.why;
  if (!why) why = relayed(near_, receive(near_, arrived));
  serial(caller, until, [&] {
    state.reached = why ? progress::none : progress::received;
    // Ranks of other groups may have received the batch, and learn of it when they combine it.
    if (!crossed && is_of_peer(why.reason)) far_.core().refuse_combine(named, why);
  });
  return answer(why);
}

PEERBUS_INLINE void relay_engine::pass_on(batch_state& state,
                                          const std::optional<refusal_of>& crossed,
                                          deadline until) {
  state.reached = progress::none;
  state.why = relayed(far_, crossed);
  if (state.why) {
    const routing nothing{std::span<const std::int32_t>{}, std::span<const float>{}};
    static_cast<void>(near_.core().begin_dispatch({}, nothing, {}, state.why, until));
    return;
  }
  const set_view set = set_of(far_, state.number);
  const batch& crossed_batch = far_.parts->batches.at(state.number);
  const std::size_t count = crossed_batch.arriving.rows();
  dispatch_options options;
  for (std::size_t a = 0; a < max_attachments; ++a)
    options.attachments[a] = {set.attachment(a, 0), count * config_.attachments[a]};
  options.note = notes_of(state);
  options.bound = column_ * state.bound;
  const std::size_t slots = count * config_.top_k;
  const routing route{std::span{crossed_batch.experts(set), slots},
                      std::span{peerbus::detail::placed<const float>(set.weights(0)), slots}};
  token_values counted;  // The tokens are only counted.
  counted.data = set.row(0);
  counted.size = count * config_.hidden;
  const refusal found =
      near_.core().begin_dispatch({counted,
                                   options.attachments,
                                   {set, crossed_batch.origins(set), far_.group->ranks_of_whole()}},
                                  route, options, {}, until);
  if (found)
    whole_->fail(errc::system, peerbus::detail::concat(
                                   "dispatch ", state.number,
                                   ": rows that arrived cannot be handed on: ", describe(found)));
}

PEERBUS_INLINE std::span<const std::byte> relay_engine::notes_of(const batch_state& state) {
  if (config_.note_bytes == 0) return {};
  bool any = false;
  std::ranges::fill(notes_, std::byte{0});
  for (const rank_id source : far_.group->ranks()) {
    const auto note = far_.core().note(named(state), source);
    if (note.empty()) continue;
    any = true;
    const std::uint64_t bytes = note.size();
    std::byte* const place = notes_.data() + source.index() * handed_note_bytes_;
    std::memcpy(place, &bytes, sizeof bytes);
    std::memcpy(place + sizeof bytes, note.data(), note.size());
  }
  return any ? std::span<const std::byte>{notes_} : std::span<const std::byte>{};
}

PEERBUS_INLINE relay_engine::batch_state& relay_engine::received_state(std::string_view doing,
                                                                       ticket named) {
  batch_state& state = states_.of(named.number);
  if (named.exchange != exchange_ || named.number == 0 || state.number != named.number ||
      state.reached != progress::received)
    throw error{errc::invalid_argument,
                peerbus::detail::concat(doing, " was given ticket ", named.number,
                                        ", expected that of one of the latest ", states_.size(),
                                        " dispatches, which must be received")};
  return state;
}

PEERBUS_INLINE row_keepers& relay_engine::keepers(ticket rows) {
  static_cast<void>(far_.core().batch_of("keep", rows));
  // Ranks of the group give up the slots of a batch as soon as a rank of another group refuses the
  // dispatch that would use them.
  if (near_.parts->batches.at(rows.number).leaving.geometry().has_slots())
    throw error{errc::unsupported,
                "keep: slots and relay, expected a layout with counts first, or one level"};
  return near_.core().keepers(rows);
}

PEERBUS_INLINE set_view relay_engine::columns(ticket named) {
  static_cast<void>(far_.core().batch_of("columns", named));
  return set_of(near_, named.number);
}

PEERBUS_INLINE std::span<const std::byte> relay_engine::note(ticket named, rank_id source) {
  static_cast<void>(received_state("note", named));
  const rank_place& place = rank_places_[source.index()];
  const auto notes = near_.core().note(named, place.hands_on);
  if (notes.empty()) return {};
  const auto own = notes.subspan(place.in_column * handed_note_bytes_, handed_note_bytes_);
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, own.data(), sizeof bytes);
  if (bytes > config_.note_bytes)
    throw error{errc::mismatch,
                peerbus::detail::concat("note: ", near_.group->in_whole(place.hands_on),
                                        " handed on a note of ", bytes, " bytes of ", source,
                                        ", expected at most note_bytes, ", config_.note_bytes)};
  return own.subspan(sizeof bytes, bytes);
}

PEERBUS_INLINE row_traffic relay_engine::traffic(ticket named) {
  static_cast<void>(received_state("traffic", named));
  row_traffic found = far_.core().traffic(named);
  return found += near_.core().traffic(named);
}

PEERBUS_INLINE std::span<const std::uint32_t> relay_engine::rows_of_blocks(ticket /*named*/) {
  throw error{errc::unsupported,
              "rows_of_blocks: relay is used, expected an exchange in one level, as ranks do not "
              "learn the counts of other groups"};
}

PEERBUS_INLINE void relay_engine::require(std::string_view doing,
                                          std::span<const std::int64_t> waited) const {
  whole_->require_healthy(doing);
  require_all_ranks(waited, whole_->size());
}

PEERBUS_INLINE refusal relay_engine::relayed(const level& by,
                                             const std::optional<refusal_of>& refused) noexcept {
  if (!refused) return {};
  refusal why = refused->why;
  if (why.relayed_for == 0 && is_of_peer(why.reason)) {
    const auto in_whole = [&](auto& rank) {
      if (static_cast<std::size_t>(rank) < by.group->size())
        rank = static_cast<std::remove_reference_t<decltype(rank)>>(
            by.group->in_whole(rank_id{static_cast<std::uint32_t>(rank)}).index());
    };
    in_whole(why.slot);
    if (why.reason == refusal_reason::rows_for_rank ||
        why.reason == refusal_reason::rows_for_experts_of_rank)
      in_whole(why.token);
    if (why.reason == refusal_reason::origin_rank) {
      in_whole(why.given);
      in_whole(why.expected);
    }
    if (why.reason == refusal_reason::vacant_place && why.token < by.experts.size())
      why.token = by.experts[why.token];
  }
  if (why.relayed_for == 0)
    why.relayed_for = static_cast<std::uint32_t>(1 + by.group->in_whole(refused->rank).index());
  return why;
}

PEERBUS_INLINE relay_engine::level_waits::level_waits(level& measured,
                                                      std::span<std::int64_t> all_ranks) noexcept
    : level_{&measured}, all_{all_ranks} {
  if (!all_.empty()) std::ranges::fill(level_->waited, 0);
}

PEERBUS_INLINE relay_engine::level_waits::~level_waits() {
  if (all_.empty()) return;
  const auto ranks = level_->group->ranks_of_whole();
  for (std::size_t i = 0; i < ranks.size(); ++i) all_[ranks[i].index()] += level_->waited[i];
}

}  // namespace peerbus::moe::detail

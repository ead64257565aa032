// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <new>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/detail/check_options.hpp>
#include <peerbus/moe/detail/two_levels.hpp>
#include <peerbus/moe/road/batch_input.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe::detail {

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
moe::ticket two_levels<Transport, Codec, Layout>::dispatch_send(std::span<const token> tokens,
                                                                const routing& route,
                                                                const dispatch_options& options,
                                                                deadline until) {
  serial("dispatch", options.as, until, [&] { begin(tokens, route, options, until); });
  const moe::ticket ticket{next_dispatch() - 1, &far_->rows};
  guarded(*far_, [&] { hand_on::advance(far_->rows, options.as, until); });
  return ticket;
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::begin(std::span<const token> tokens,
                                                 const routing& route,
                                                 const dispatch_options& options, deadline until) {
  require("dispatch", options.waited);
  const std::uint64_t number = next_dispatch();
  hand_on::require_free(near_->rows, number);
  skip_refused();
  batch_state& state = states_.of(number);
  // The ranks of the group may not have seen the refusal of the batch before. They call that batch
  // before this one, so that no rank waits in a circle.
  if (state.reached == progress::refused)
    guarded(*near_, [&] { hand_on::await_called(near_->rows, state.number, until); });
  const refusal found = guarded(*far_, [&] {
    return measured(*far_, options.waited, [&](std::span<std::int64_t> waited) {
      dispatch_options far_options = options;
      far_options.waited = waited;
      return hand_on::begin(far_->rows, {tokens, options.attachments}, route, far_options, {},
                            until);
    });
  });
  state = {number, progress::sent};
  if (!found) return;
  // Ranks of the group learn of it when they come to this batch. Waiting for them here might be
  // forever, as they may first wait for this rank to combine an earlier batch.
  state.reached = progress::refused;
  guarded(*near_, [&] { hand_on::refuse_ahead(near_->rows, number, own(found)); });
  refuse("dispatch", number, own(found));
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::skip_refused() noexcept {
  for (;;) {
    const std::uint64_t next = near_->rows.next_dispatch();
    const batch_state& state = states_.of(next);
    if (state.number != next || state.reached != progress::refused) return;
    hand_on::skip(near_->rows);
  }
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
auto two_levels<Transport, Codec, Layout>::next_to_receive(moe::ticket ticket) -> batch_state& {
  const std::uint64_t number = ticket.number;
  batch_state& state = states_.of(number);
  const auto misuse = [&](const auto&... parts) {
    throw error{errc::invalid_argument,
                peerbus::detail::concat("dispatch_recv was given ticket ", number, ", ", parts...)};
  };
  if (ticket.exchange != &far_->rows || number == 0 || state.number != number ||
      state.reached != progress::sent)
    misuse("expected one that dispatch_send gave and that is not received yet");
  skip_refused();
  if (near_->rows.next_dispatch() != number)
    misuse("but dispatch ", near_->rows.next_dispatch(),
           " is not received yet; with two levels batches are received in the order in which "
           "they were sent");
  return state;
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
auto two_levels<Transport, Codec, Layout>::dispatch_recv(moe::ticket ticket,
                                                         const receive_options& options,
                                                         deadline until) -> received_type {
  const lane as = options.as;
  const std::uint64_t number = ticket.number;
  serial("dispatch_recv", as, until, [&] {
    require("dispatch_recv", options.waited);
    next_to_receive(ticket).rows.reset();
  });
  batch_state& state = states_.of(number);
  const auto all_waited = of_lane_0(options.waited, as);
  // Every lane receives on the first level, and finds the same rows or the same refusal.
  std::optional<refusal_of> refused;
  auto arrived = guarded(*far_, [&] {
    return measured(*far_, all_waited, [&](std::span<std::int64_t> waited) {
      return hand_on::receive(far_->rows, number, {.as = as, .waited = waited}, until, refused);
    });
  });
  serial(as, until, [&] {
    if (arrived) state.rows.emplace(*arrived);
    pass_on(state, refused, until);
  });
  std::optional<received_type> rows;
  if (!state.why) {
    guarded(*near_, [&] { hand_on::advance(near_->rows, as, until); });
    rows = guarded(*near_, [&] {
      return measured(*near_, all_waited, [&](std::span<std::int64_t> waited) {
        return hand_on::receive(near_->rows, number, {.as = as, .waited = waited}, until, refused);
      });
    });
  }
  serial(as, until, [&] { state.reached = rows ? progress::received : progress::none; });
  if (!rows) refuse("dispatch", number, state.why ? state.why : named(*near_, refused));
  return *rows;
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::pass_on(batch_state& state,
                                                   const std::optional<refusal_of>& refused,
                                                   deadline until) {
  state.reached = progress::none;
  if (!state.rows) {
    state.why = named(*far_, refused);
    const routing nothing{std::span<const std::int32_t>{}, std::span<const float>{}};
    guarded(*near_, [&] {
      static_cast<void>(hand_on::begin(near_->rows, {}, nothing, {}, state.why, until));
    });
    return;
  }
  const set_view set = hand_on::set(far_->rows, state.number);
  const std::size_t count = state.rows->count();
  const auto columns = state.rows->columns();
  dispatch_options options;
  for (std::size_t a = 0; a < max_attachments; ++a)
    options.attachments[a] = columns.attachment(a).first(count * attachments_[a]);
  options.note = notes_of(state);
  const routing route{std::span<const std::int32_t>{columns.experts().first(count * top_k_)},
                      std::span<const float>{columns.weights().first(count * top_k_)}};
  // The tokens are only counted.
  const std::span<const token> counted{peerbus::detail::placed<token>(set.row(0)), count * hidden_};
  const refusal found = guarded(*near_, [&] {
    return hand_on::begin(near_->rows,
                          {counted, options.attachments, {set, far_->boot.ranks_of_whole()}}, route,
                          options, {}, until);
  });
  if (found)
    comm_->fail(errc::system, peerbus::detail::concat(
                                  "dispatch ", state.number,
                                  ": rows that arrived cannot be handed on: ", describe(found)));
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::require(std::string_view doing,
                                                   std::span<const std::int64_t> waited) const {
  comm_->require_healthy(doing);
  require_all_ranks(waited, comm_->size());
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::refuse(std::string_view operation, std::uint64_t number,
                                                  const refusal& why) const {
  throw_refusal(operation, number, comm_->rank(), {rank_id{std::size_t{why.relayed_for} - 1}, why});
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
template <class Level, class Call>
decltype(auto) two_levels<Transport, Codec, Layout>::guarded(const Level& level, Call&& call) {
  try {
    return call();
  } catch (const error& problem) {
    if (problem.code() == errc::invalid_argument || problem.code() == errc::refused) throw;
    std::string text{problem.text()};
    text += peerbus::detail::concat("; among ", level.name, ", numbered from 0:");
    for (const rank_id rank : level.boot.ranks_of_whole())
      text += peerbus::detail::concat(" ", rank.index());
    comm_->fail(problem.code(), text);
  }
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
template <class Level, class Call>
decltype(auto) two_levels<Transport, Codec, Layout>::measured(Level& level,
                                                              std::span<std::int64_t> waited,
                                                              Call&& call) {
  std::span<std::int64_t> own{};
  if (!waited.empty()) {
    std::ranges::fill(level.waited, 0);
    own = level.waited;
  }
  struct adding {
    Level* level;
    std::span<std::int64_t> waited;
    adding(Level& of, std::span<std::int64_t> to) noexcept : level{&of}, waited{to} {}
    adding(const adding&) = delete;
    adding& operator=(const adding&) = delete;
    ~adding() {
      const auto ranks = level->boot.ranks_of_whole();
      if (!waited.empty())
        for (std::size_t i = 0; i < ranks.size(); ++i) waited[ranks[i].index()] += level->waited[i];
    }
  };
  const adding at_the_end{level, waited};
  return call(own);
}

}  // namespace peerbus::moe::detail

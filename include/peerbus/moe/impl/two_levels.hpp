// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/detail/check_options.hpp>
#include <peerbus/moe/detail/group_grid.hpp>
#include <peerbus/moe/detail/hand_on.hpp>
#include <peerbus/moe/detail/two_levels.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/road/batch_input.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe::detail {

/// Returns `make()` on all ranks, or throws on all of them. The levels are made by groups of ranks
/// that learn of failures only among themselves.
template <class Make>
auto make_level(rank_group& all, std::string_view name, deadline until, Make&& make) {
  decltype(make()) made;
  std::optional<error> objection;
  try {
    made = make();
  } catch (const agreed_error& problem) {
    objection = problem;
  } catch (const error& problem) {  // A rank is gone or late: no rank can agree any more.
    all.fail(problem.code(), problem.text());
  } catch (const std::bad_alloc&) {
    objection = error{errc::out_of_memory, peerbus::detail::concat("no memory for ", name)};
  }
  all.agree(name, {}, until, objection);
  return made;
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
two_levels<Transport, Codec, Layout>::two_levels(communicator<Transport>& comm,
                                                 const exchange_config& config,
                                                 const expert_map& experts, const group_grid& grid,
                                                 Codec codec, Layout layout, deadline until)
    : comm_{&comm},
      hidden_{config.hidden},
      top_k_{config.top_k},
      attachments_{config.attachments},
      states_{std::vector<batch_state>(config.in_flight)} {
  // On the first level each rank of the column stands for its group. It holds the experts of all
  // ranks of the group, and places without expert up to those of the largest group.
  std::vector<std::vector<std::uint32_t>> held;
  std::size_t most = 0;
  for (const auto& group : grid.groups) {
    held.push_back(experts_of(experts, group));
    most = std::max(most, held.back().size());
  }
  std::vector<std::uint32_t> places;
  auto without_expert = static_cast<std::uint32_t>(config.experts);
  for (auto& of_group : held) {
    places.insert(places.end(), of_group.begin(), of_group.end());
    for (std::size_t i = of_group.size(); i < most; ++i) places.push_back(without_expert++);
  }
  exchange_config far_config = config;
  far_config.experts = places.size();
  far_config.physical_to_logical = places;
  far_config.outputs = outputs_at::expert;
  far_config.protocol = dispatch_protocol::automatic;
  far_ = make_level(comm, "two_level_exchange: the level between groups", until, [&] {
    return std::make_unique<far_level>("the ranks of equal place in their groups", comm,
                                       grid.column(), far_config, codec, rank_major{}, until);
  });
  hand_on::experts(far_->rows).limit(config.experts);

  // On the second level experts are numbered within the group, as the first level numbers them
  // beside each row. A rank may get all tokens of its column.
  const auto& own_experts = held[grid.own_group];
  exchange_config near_config = config;
  near_config.experts = own_experts.size();
  near_config.physical_to_logical = {};
  near_config.max_tokens = grid.groups.size() * config.max_tokens;
  near_config.outputs = outputs_at::expert;
  near_ = make_level(comm, "two_level_exchange: the level within groups", until, [&] {
    return std::make_unique<near_level>("the ranks of a group", comm, grid.near(), near_config,
                                        codec, layout, until);
  });
  hand_on::experts(near_->rows).rename(own_experts);
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
moe::ticket two_levels<Transport, Codec, Layout>::dispatch_send(std::span<const token> tokens,
                                                                const routing& route,
                                                                const dispatch_options& options,
                                                                deadline until) {
  require("dispatch", options.as, options.waited);
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
      return hand_on::send(far_->rows, {tokens, options.attachments}, route, far_options, {},
                           until);
    });
  });
  state = {number, progress::sent};
  if (!found) return {number, &far_->rows};
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
void two_levels<Transport, Codec, Layout>::pass_on(std::uint64_t number, deadline until,
                                                   std::span<std::int64_t> waited) {
  batch_state& state = states_.of(number);
  hand_on::answer refused;
  state.rows.reset();
  guarded(*far_, [&] {
    measured(*far_, waited, [&](std::span<std::int64_t> far_waited) {
      auto rows =
          hand_on::receive(far_->rows, number, {.until = until, .waited = far_waited}, refused);
      if (rows) state.rows.emplace(*rows);
    });
  });
  state.reached = progress::none;
  if (!state.rows) {
    state.why = named(*far_, refused);
    const routing nothing{std::span<const std::int32_t>{}, std::span<const float>{}};
    guarded(*near_, [&] {
      static_cast<void>(hand_on::send(near_->rows, {}, nothing, {}, state.why, until));
    });
    return;
  }
  const set_view set = hand_on::set(far_->rows, number);
  const std::size_t count = state.rows->count();
  const auto columns = state.rows->columns();
  dispatch_options options;
  for (std::size_t a = 0; a < max_attachments; ++a)
    options.attachments[a] = columns.attachment(a).first(count * attachments_[a]);
  const routing route{std::span<const std::int32_t>{columns.experts().first(count * top_k_)},
                      std::span<const float>{columns.weights().first(count * top_k_)}};
  // The tokens are only counted.
  const std::span<const token> counted{reinterpret_cast<const token*>(set.row(0)), count * hidden_};
  const refusal found = guarded(*near_, [&] {
    return hand_on::send(near_->rows,
                         {counted, options.attachments, {set, far_->boot.ranks_of_whole()}}, route,
                         options, {}, until);
  });
  if (found)
    comm_->fail(errc::system, peerbus::detail::concat(
                                  "dispatch ", number,
                                  ": rows that arrived cannot be handed on: ", describe(found)));
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
auto two_levels<Transport, Codec, Layout>::dispatch_recv(moe::ticket ticket,
                                                         const receive_options& options,
                                                         deadline until) -> received_type {
  require("dispatch_recv", options.as, options.waited);
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
  pass_on(number, until, options.waited);
  hand_on::answer refused{state.why};
  std::optional<received_type> rows;
  if (!state.why)
    guarded(*near_, [&] {
      measured(*near_, options.waited, [&](std::span<std::int64_t> waited) {
        const auto got =
            hand_on::receive(near_->rows, number, {.until = until, .waited = waited}, refused);
        if (got) rows.emplace(*got);
      });
    });
  state.reached = rows ? progress::received : progress::none;
  if (!rows) refuse("dispatch", number, named(*near_, refused));
  return *rows;
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::require(std::string_view doing, lane as,
                                                   std::span<const std::int64_t> waited) const {
  comm_->require_healthy(doing);
  require_all_ranks(waited, comm_->size());
  if (as.count != 1 || as.index != 0)
    throw error{errc::unsupported,
                peerbus::detail::concat(doing, " was given lane ", as.index, " of ", as.count,
                                        ", expected one lane, as relay is used")};
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::refuse(std::string_view operation, std::uint64_t number,
                                                  const refusal& why) const {
  const std::string title = peerbus::detail::concat(operation, " ", number);
  const rank_id rank{std::size_t{why.relayed_for} - 1};
  if (rank == comm_->rank()) throw bad_input(title, why);
  throw refused(title, rank, why);
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

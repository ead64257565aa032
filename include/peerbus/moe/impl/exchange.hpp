// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/detail/batch_ring.hpp>
#include <peerbus/moe/detail/check_input.hpp>
#include <peerbus/moe/detail/check_options.hpp>
#include <peerbus/moe/detail/check_sum.hpp>
#include <peerbus/moe/detail/lane_team.hpp>
#include <peerbus/moe/detail/post_office.hpp>
#include <peerbus/moe/detail/set_up.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/road/batch_input.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe {

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::exchange(communicator<Transport>& comm,
                                             const exchange_config& config, Codec codec,
                                             Layout layout, std::optional<deadline> until)
    : exchange{comm, config, codec, layout, until.value_or(comm.default_deadline()), agreed{}} {}

template <transport Transport, token_codec Codec, row_layout Layout>
typename exchange<Transport, Codec, Layout>::received_type
exchange<Transport, Codec, Layout>::dispatch(std::span<const token> tokens, const routing& route,
                                             const dispatch_options& with) {
  dispatch_options first = with;
  first.until = deadline_of(with);
  const moe::ticket begun = dispatch_send(tokens, route, first);
  return dispatch_recv(begun, {.until = first.until, .as = with.as, .waited = with.waited});
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine(const received_type& rows, std::span<bf16> out,
                                                 const combine_options& with) {
  const deadline until = deadline_of(with);
  detail::require_all_ranks(with.waited, comm_.size());
  begin_combine("combine", rows, with, until, [&](const batch& one) {
    if (const refusal found = detail::objection_of_caller(with.refuse)) return found;
    return detail::check_sum(one.leaving, config_.hidden, {out, with.terms});
  });
  finish_combine(rows, {out, with.terms}, with.as, until, with.waited);
}

template <transport Transport, token_codec Codec, row_layout Layout>
moe::ticket exchange<Transport, Codec, Layout>::dispatch_send(std::span<const token> tokens,
                                                              const routing& route,
                                                              const dispatch_options& with) {
  const deadline until = deadline_of(with);
  serial(with.as, until, [&] { begin_dispatch({tokens, with.attachments}, route, with, until); });
  const moe::ticket begun{batches_.latest(), this};
  advance(nullptr, with.as, until);
  return begun;
}

template <transport Transport, token_codec Codec, row_layout Layout>
typename exchange<Transport, Codec, Layout>::received_type
exchange<Transport, Codec, Layout>::dispatch_recv(moe::ticket begun, const receive_options& with) {
  const deadline until = deadline_of(with);
  serial(with.as, until, [&] {
    comm_.require_healthy("dispatch_recv");
    detail::require_all_ranks(with.waited, comm_.size());
    wanted_ = &batches_.awaiting_rows(this, begun);
  });
  batch* const one = wanted_;
  advance(one, with.as, until, with.waited);
  serial(with.as, until, [&] { end_dispatch(*one, until, with.waited); });
  return *arrived_;
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine_send(const received_type& rows,
                                                      const publish_options& with) {
  const deadline until = deadline_of(with);
  begin_combine("combine_send", rows, with, until,
                [&](const batch&) { return detail::objection_of_caller(with.refuse); });
  advance(nullptr, with.as, until);
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine_recv(const received_type& rows,
                                                      std::span<bf16> out,
                                                      const sum_options& with) {
  const deadline until = deadline_of(with);
  serial(with.as, until, [&] {
    comm_.require_healthy("combine_recv");
    detail::require_all_ranks(with.waited, comm_.size());
    batch& one = batches_.behind("combine_recv", this, rows, detail::stage::returning);
    if (const refusal wrong = detail::check_sum(one.leaving, config_.hidden, {out, with.terms}))
      throw bad_input(step_of(one, outputs), wrong);
  });
  finish_combine(rows, {out, with.terms}, with.as, until, with.waited);
}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::exchange(communicator<Transport>& comm,
                                             const exchange_config& config, Codec codec,
                                             Layout layout, deadline until, agreed)
    : comm_{comm},
      config_{detail::agreed_config<Codec>(comm, config, layout, until)},
      codec_{codec},
      map_{map_for(config, comm.size(), layout)},
      memory_{comm.make_window(map_.total, post_office::signals(map_, comm.size()), until)},
      batches_{
          detail::made_batches<batches>(comm, config, layout.geometry(config, comm.size()), until)},
      post_{comm_, memory_, map_},
      road_{comm_, memory_, map_, codec} {
  config_.physical_to_logical = {};
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::begin_dispatch(const batch_input<token>& input,
                                                        const routing& route,
                                                        const dispatch_options& with,
                                                        deadline until) {
  comm_.require_healthy("dispatch");
  detail::require_all_ranks(with.waited, comm_.size());
  batch& one = batches_.next();
  const std::uint64_t number = batches_.latest();
  refusal mine = detail::objection_of_caller(with.refuse);
  if (!mine) mine = one.leaving.count(input.tokens, route);
  if (!mine)
    mine = detail::check_attachments(config_, input.tokens.size() / config_.hidden, input.attached);
  if (!mine) mine = detail::check_note(config_, with.note);
  const step now{"dispatch", number, batches_.set_of(one), counts, number};
  post_.post_counts(now, one.leaving.counts(), with.note, mine);
  if (mine) {
    // Not before all ranks are here, or this one could run ahead and overwrite its refusal.
    post_.await_all(now, until, "; its own input was bad: " + describe(mine), with.waited);
    throw bad_input(now, mine);
  }
  one.begin(number, input);
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::advance(const batch* wanted, lane as, deadline until,
                                                 std::span<std::int64_t> waited) {
  for (;;) {
    serial(as, until, [&] { ready_ = next_ready(wanted, until, waited); });
    batch* const one = ready_;
    if (one == nullptr) return;
    note(road_.send(one->on_road(batches_.set_of(*one)), as, meeting(as, until)));
    serial(as, until, [&] {
      const step now = step_of(*one, rows_in);
      post_.require(now, failure_.load(std::memory_order_relaxed));
      post_.announce(now);
      one->arriving.place(post_.counts(step_of(*one, counts)));  // While rows are on their way.
      one->at = detail::stage::sent;
    });
  }
}

template <transport Transport, token_codec Codec, row_layout Layout>
typename exchange<Transport, Codec, Layout>::batch* exchange<Transport, Codec, Layout>::next_ready(
    const batch* wanted, deadline until, std::span<std::int64_t> waited) {
  for (std::uint64_t number = batches_.oldest(); number <= batches_.latest(); ++number) {
    batch& one = batches_.at(number);
    if (one.number != number || one.at != detail::stage::counted || one.refused) continue;
    const step now = step_of(one, counts);
    if (wanted != nullptr && number <= wanted->number)
      post_.await_all(now, until, {}, waited);
    else if (!post_.all_came(now))
      return nullptr;
    if (const auto no = post_.refused(now)) {
      one.refused = no->why;
      one.refused_by = no->rank;
      continue;
    }
    one.leaving.place(post_.counts(now));
    return &one;
  }
  return nullptr;
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::end_dispatch(batch& one, deadline until,
                                                      std::span<std::int64_t> waited) {
  if (one.refused) {
    const refusal why = one.refused;
    const step now = step_of(one, counts);
    one.undo();
    throw refused(now, one.refused_by, why);
  }
  post_.await_all(step_of(one, rows_in), until, {}, waited);
  one.at = detail::stage::received;
  arrived_.emplace(one.views(this, codec_, {local_set(one), road_.sets(batches_.set_of(one))}));
}

template <transport Transport, token_codec Codec, row_layout Layout>
template <class Options, class Check>
void exchange<Transport, Codec, Layout>::begin_combine(std::string_view doing,
                                                       const received_type& rows,
                                                       const Options& with, deadline until,
                                                       Check&& check) {
  const lane as = with.as;
  serial(as, until, [&] {
    comm_.require_healthy(doing);
    detail::require_output_attachment(with.attached, config_);
    batch& one = batches_.behind(doing, this, rows, detail::stage::received);
    one.refused = check(one);
    one.attached = with.attached;
  });
  batch& one = batches_.at(rows.ticket().number);
  if (!one.refused) note(road_.publish(one.on_road(batches_.set_of(one)), as, meeting(as, until)));
  serial(as, until, [&] { announce_outputs(one); });
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::announce_outputs(batch& one) {
  ++one.combines;
  const step now = step_of(one, outputs);
  post_.require(now, failure_.load(std::memory_order_relaxed));
  const std::size_t bytes = one.attached ? map_.output_attachment_bytes : 0;
  if (one.refused || one.attached) post_.post_verdict(now, one.refused, bytes);
  post_.announce(now);
  one.at = detail::stage::returning;
  one.refused_by = comm_.rank();
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::finish_combine(const received_type& rows,
                                                        const combine_sum& wanted, lane as,
                                                        deadline until,
                                                        std::span<std::int64_t> waited) {
  advance(nullptr, as, until);
  batch& one = batches_.at(rows.ticket().number);
  serial(as, until, [&] {
    const step now = step_of(one, outputs);
    post_.await_all(now, until, {}, waited);
    const bool mine{one.refused};
    const auto theirs = post_.refused(now);
    if (!mine && !theirs) return;
    post_.require(now, road_.settle());
    one.at = detail::stage::received;
    if (mine) throw bad_input(now, one.refused);
    throw refused(now, theirs->rank, theirs->why);
  });
  note(road_.sum(one.on_road(batches_.set_of(one)), wanted, as));
  serial(as, until, [&] {
    post_.require(step_of(one, outputs), failure_.load(std::memory_order_relaxed));
    one.at = detail::stage::returned;
  });
}

template <transport Transport, token_codec Codec, row_layout Layout>
error exchange<Transport, Codec, Layout>::bad_input(const step& now, const refusal& why) {
  return error{errc::invalid_argument, post_office::title(now) + " was given " + describe(why)};
}

template <transport Transport, token_codec Codec, row_layout Layout>
error exchange<Transport, Codec, Layout>::refused(const step& now, rank_id by, const refusal& why) {
  return error{errc::refused, peerbus::detail::concat(post_office::title(now), " did not happen: ",
                                                      by, " was given ", describe(why))};
}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::~exchange() = default;

}  // namespace peerbus::moe

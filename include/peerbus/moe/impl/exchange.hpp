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
#include <peerbus/core/lane_team.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/detail/batch_ring.hpp>
#include <peerbus/moe/detail/check_input.hpp>
#include <peerbus/moe/detail/check_options.hpp>
#include <peerbus/moe/detail/check_sum.hpp>
#include <peerbus/moe/detail/handshake.hpp>
#include <peerbus/moe/detail/post_office.hpp>
#include <peerbus/moe/detail/set_up.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/protocol.hpp>
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
                                             const dispatch_options& options) {
  dispatch_options send_options = options;
  send_options.until = deadline_of(options);
  const moe::ticket ticket = dispatch_send(tokens, route, send_options);
  return dispatch_recv(ticket,
                       {.until = send_options.until, .as = options.as, .waited = options.waited});
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine(const received_type& rows, std::span<bf16> out,
                                                 const combine_options& options) {
  const deadline until = deadline_of(options);
  detail::require_all_ranks(options.waited, comm_.size());
  begin_combine("combine", rows, options, until, [&](const batch_type& batch) {
    if (const refusal found = detail::objection_of_caller(options.refuse)) return found;
    return detail::check_sum(batch.leaving, config_.hidden, {out, options.terms});
  });
  finish_combine(rows, {out, options.terms}, options.as, until, options.waited);
}

template <transport Transport, token_codec Codec, row_layout Layout>
moe::ticket exchange<Transport, Codec, Layout>::dispatch_send(std::span<const token> tokens,
                                                              const routing& route,
                                                              const dispatch_options& options) {
  const deadline until = deadline_of(options);
  serial(options.as, until, [&] {
    if (const refusal found =
            begin_dispatch({tokens, options.attachments}, route, options, {}, until))
      throw detail::bad_input(peerbus::detail::concat("dispatch ", batches_.latest()), found);
  });
  const moe::ticket ticket{batches_.latest(), this};
  advance(nullptr, options.as, until);
  return ticket;
}

template <transport Transport, token_codec Codec, row_layout Layout>
typename exchange<Transport, Codec, Layout>::received_type
exchange<Transport, Codec, Layout>::dispatch_recv(moe::ticket ticket,
                                                  const receive_options& options) {
  const deadline until = deadline_of(options);
  serial(options.as, until, [&] {
    comm_.require_healthy("dispatch_recv");
    detail::require_all_ranks(options.waited, comm_.size());
    wanted_ = &batches_.awaiting_rows(this, ticket);
  });
  batch_type* const batch = wanted_;
  advance(batch, options.as, until, options.waited);
  serial(options.as, until, [&] { end_dispatch(*batch, until, options.waited); });
  return *arrived_;
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine_send(const received_type& rows,
                                                      const publish_options& options) {
  const deadline until = deadline_of(options);
  begin_combine("combine_send", rows, options, until,
                [&](const batch_type&) { return detail::objection_of_caller(options.refuse); });
  advance(nullptr, options.as, until);
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine_recv(const received_type& rows,
                                                      std::span<bf16> out,
                                                      const sum_options& options) {
  const deadline until = deadline_of(options);
  serial(options.as, until, [&] {
    comm_.require_healthy("combine_recv");
    detail::require_all_ranks(options.waited, comm_.size());
    batch_type& batch = batches_.behind("combine_recv", this, rows, detail::stage::returning);
    if (const refusal found =
            detail::check_sum(batch.leaving, config_.hidden, {out, options.terms}))
      throw detail::bad_input(post_.title(step_of(batch, outputs)), found);
  });
  finish_combine(rows, {out, options.terms}, options.as, until, options.waited);
}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::exchange(communicator<Transport>& comm,
                                             const exchange_config& config, Codec codec,
                                             Layout layout, deadline until, agreed)
    : comm_{comm},
      config_{detail::agreed_config<Codec>(comm, config, layout, road_name<Transport>, until)},
      codec_{codec},
      map_{map_for(config_, comm.size(), layout)},
      memory_{comm.make_window(map_.total, post_office::signals(map_, comm.size()), until)},
      batches_{detail::made_batches<batches>(comm, config_, layout.geometry(config_, comm.size()),
                                             until)},
      post_{comm_, memory_, map_},
      road_{comm_, memory_, map_, codec} {
  config_.physical_to_logical = {};
}

template <transport Transport, token_codec Codec, row_layout Layout>
refusal exchange<Transport, Codec, Layout>::begin_dispatch(const batch_input<token>& input,
                                                           const routing& route,
                                                           const dispatch_options& options,
                                                           const refusal& known, deadline until) {
  comm_.require_healthy("dispatch");
  detail::require_all_ranks(options.waited, comm_.size());
  batch_type& batch = batches_.next();
  const std::uint64_t number = batches_.latest();
  const step this_step{"dispatch", number, batches_.set_of(batch), handshake::decides(batch),
                       number};
  handshake::take_memory(post_, batch, this_step, until);
  refusal found = known ? known : detail::objection_of_caller(options.refuse);
  if (!found) found = batch.leaving.count(input.tokens, route);
  if (!found)
    found =
        detail::check_attachments(config_, input.tokens.size() / config_.hidden, input.attached);
  if (!found) found = detail::check_note(config_, options.note);
  handshake::post(post_, batch, this_step, options.note, found);
  if (found) {
    // Waits for all ranks, because this rank might otherwise run ahead and overwrite its refusal.
    post_.await_all(this_step, until, "; its own input was bad: " + describe(found),
                    options.waited);
    return found;
  }
  batch.begin(number, input);
  return {};
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::advance(const batch_type* wanted, lane as, deadline until,
                                                 std::span<std::int64_t> waited) {
  for (;;) {
    serial(as, until, [&] { ready_ = next_ready(wanted, until, waited); });
    batch_type* const batch = ready_;
    if (batch == nullptr) return;
    note(road_.send(batch->on_road(batches_.set_of(*batch)), as, meeting(as, until)));
    serial(as, until, [&] {
      const step this_step = step_of(*batch, phase::rows);
      // order: relaxed; `serial` has made the stores of all lanes in `note` visible.
      post_.require(this_step, failure_.load(std::memory_order_relaxed));
      post_.announce(this_step);
      handshake::after_send(post_, *batch, step_of(*batch, handshake::decides(*batch)));
      batch->reached = detail::stage::sent;
    });
  }
}

template <transport Transport, token_codec Codec, row_layout Layout>
auto exchange<Transport, Codec, Layout>::next_ready(const batch_type* wanted, deadline until,
                                                    std::span<std::int64_t> waited) -> batch_type* {
  for (std::uint64_t number = batches_.oldest(); number <= batches_.latest(); ++number) {
    batch_type& batch = batches_.at(number);
    if (batch.number != number || batch.reached != detail::stage::counted || batch.refused)
      continue;
    const bool wait = wanted != nullptr && number <= wanted->number;
    const auto state = handshake::place(post_, batch, step_of(batch, handshake::decides(batch)),
                                        wait, until, waited);
    if (state == detail::departure::placed) return &batch;
    if (state == detail::departure::later) return nullptr;
  }
  return nullptr;
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::end_dispatch(batch_type& batch, deadline until,
                                                      std::span<std::int64_t> waited) {
  const step this_step = step_of(batch, phase::rows);
  if (!batch.refused) handshake::receive(post_, batch, this_step, until, waited);
  if (batch.refused) {
    post_.require(this_step, handshake::abandon(batch, road_));
    throw detail::refused(post_.title(this_step), batch.refused_by, batch.refused);
  }
  batch.reached = detail::stage::received;
  arrived_.emplace(
      batch.views(this, codec_, {local_set(batch), road_.sets(batches_.set_of(batch))}));
}

template <transport Transport, token_codec Codec, row_layout Layout>
template <class Options, class Check>
void exchange<Transport, Codec, Layout>::begin_combine(std::string_view doing,
                                                       const received_type& rows,
                                                       const Options& options, deadline until,
                                                       Check&& check) {
  const lane as = options.as;
  serial(as, until, [&] {
    comm_.require_healthy(doing);
    detail::require_output_attachment(options.attached, config_);
    batch_type& batch = batches_.behind(doing, this, rows, detail::stage::received);
    batch.refused = check(batch);
    batch.attached = options.attached;
  });
  batch_type& batch = batches_.at(rows.ticket().number);
  if (!batch.refused)
    note(road_.publish(batch.on_road(batches_.set_of(batch)), as, meeting(as, until)));
  serial(as, until, [&] { announce_outputs(batch); });
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::announce_outputs(batch_type& batch) {
  ++batch.combines;
  const step this_step = step_of(batch, outputs);
  // order: relaxed; `serial` has made the stores of all lanes in `note` visible.
  post_.require(this_step, failure_.load(std::memory_order_relaxed));
  const std::size_t bytes = batch.attached ? map_.output_attachment_bytes : 0;
  if (batch.refused || batch.attached) post_.post_verdict(this_step, batch.refused, bytes);
  post_.announce(this_step);
  batch.reached = detail::stage::returning;
  batch.refused_by = comm_.rank();
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::finish_combine(const received_type& rows,
                                                        const combine_sum& wanted, lane as,
                                                        deadline until,
                                                        std::span<std::int64_t> waited) {
  advance(nullptr, as, until);
  batch_type& batch = batches_.at(rows.ticket().number);
  serial(as, until, [&] {
    const step this_step = step_of(batch, outputs);
    post_.await_all(this_step, until, {}, waited);
    const bool refused_here{batch.refused};
    const auto peer_refusal = post_.refused(this_step);
    if (!refused_here && !peer_refusal) return;
    post_.require(this_step, road_.settle());
    batch.reached = detail::stage::received;
    if (refused_here) throw detail::bad_input(post_.title(this_step), batch.refused);
    throw detail::refused(post_.title(this_step), peer_refusal->rank, peer_refusal->why);
  });
  note(road_.sum(batch.on_road(batches_.set_of(batch)), wanted, as));
  serial(as, until, [&] {
    // order: relaxed; `serial` has made the stores of all lanes in `note` visible.
    post_.require(step_of(batch, outputs), failure_.load(std::memory_order_relaxed));
    batch.reached = detail::stage::returned;
  });
}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::~exchange() = default;

}  // namespace peerbus::moe

#include <peerbus/moe/impl/exchange_queries.hpp>  // IWYU pragma: keep

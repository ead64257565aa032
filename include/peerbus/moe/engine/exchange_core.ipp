// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include <peerbus/core/read_once.hpp>
#include <peerbus/moe/control/control_protocol.hpp>
#include <peerbus/moe/engine/check_options.hpp>
#include <peerbus/moe/engine/exchange_core.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>
#include <peerbus/moe/plan/check_input.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE std::optional<refusal_of> exchange_core::dispatch_send(
    const batch_input& input, const routing& route, const dispatch_options& options,
    deadline until) {
  serial("dispatch", options.as, until,
         [&] { refused_ = own(begin_dispatch(input, route, options, {}, until)); });
  if (refused_) return refused_;
  advance(nullptr, options.as, until);
  return std::nullopt;
}

PEERBUS_INLINE std::optional<refusal_of> exchange_core::dispatch_recv(
    ticket named, const receive_options& options, deadline until,
    peerbus::detail::function_ref<void(const batch&)> arrived) {
  serial("dispatch_recv", options.as, until, [&] {
    require_healthy("dispatch_recv");
    require_all_ranks(options.waited, group().size());
    wanted_ = &parts_.batches.awaiting_rows(exchange_, named);
  });
  batch* const received = wanted_;
  advance(received, options.as, until, options.waited);
  serial(options.as, until, [&] {
    refused_ = end_dispatch(*received, until, options.waited);
    if (refused_) return;
    if (times(*received, options.as))  // As if this rank received as many rows as it sends.
      timed(*received, options.as,
            static_cast<double>(parts_.map.copies) * part_of(received->arriving.rows()),
            [&] { read_rows(*received, options.as.count); });
    arrived(*received);
  });
  return refused_;
}

PEERBUS_INLINE std::span<const std::byte> exchange_core::note(ticket named, rank_id source) {
  const batch& this_batch = batch_of("note", named, stage::received);
  return messages_.note(step_of(this_batch, protocol_->decides()), source);
}

PEERBUS_INLINE row_traffic exchange_core::traffic(ticket named) {
  const batch& this_batch = batch_of("traffic", named, stage::received);
  return traffic_of(this_batch.leaving, parts_.map,
                    parts_.path.sets(parts_.batches.set_of(this_batch)), group().rank());
}

PEERBUS_INLINE bool exchange_core::attached_by(ticket named, rank_id rank) {
  return brought_by(named, rank) != 0;
}

PEERBUS_INLINE std::uint64_t exchange_core::brought_by(ticket named, rank_id rank) {
  const batch& this_batch = batch_of("attached_by", named, stage::returned);
  return messages_.brought(step_of(this_batch, phase::outputs), rank);
}

PEERBUS_INLINE refusal exchange_core::begin_dispatch(const batch_input& input, const routing& route,
                                                     const dispatch_options& options,
                                                     const refusal& known, deadline until) {
  require_healthy("dispatch");
  require_all_ranks(options.waited, group().size());
  batch& this_batch = parts_.batches.next();
  const std::uint64_t number = parts_.batches.latest();
  const step this_step = dispatch_step(number);
  const refusal kept = parts_.batches.objection_to_reuse(number);
  if (const auto refused = protocol_->take_memory(messages_, this_batch, this_step, kept, until)) {
    if (refused->rank == group().rank()) return refused->why;
    this_batch.begin(number, input, {});
    static_cast<void>(this_batch.refuse(refused));
    return {};
  }
  const std::size_t most = parts_.config.max_tokens;
  const std::size_t bound = options.bound == 0 ? most : options.bound;
  refusal found = known ? known : kept;
  if (!found) found = objection_of_caller(options.refuse);
  if (!found && bound > most) found = refuse(refusal_reason::bound_size, bound, most);
  this_batch.bound(std::min(bound, most));
  if (!found) found = this_batch.leaving.count(input.tokens, route);
  if (!found)
    found =
        check_attachments(parts_.config, input.tokens.size / parts_.config.hidden, input.attached);
  if (!found) found = check_note(parts_.config, options.note);
  refusal report = found;
  if (!found) report.expected = static_cast<std::int64_t>(bound);
  protocol_->post(messages_, this_batch, this_step, options.note, report);
  if (found) {
    // Waits for all ranks, because this rank might otherwise run ahead and overwrite its refusal.
    messages_.await_all(this_step, until, "; its own input was bad: " + describe(found),
                        options.waited);
    return found;
  }
  this_batch.begin(
      number, input,
      stores_.begin(number - skipped_, row_bytes_of(input.tokens.size / parts_.config.hidden)));
  return {};
}

PEERBUS_INLINE void exchange_core::read_rows(const batch& this_batch,
                                             std::size_t lanes) const noexcept {
  const set_view rows = local_set(this_batch);
  for (std::size_t block = 0; block < this_batch.arriving.blocks(); ++block)
    for (std::size_t source = 0; source < group().size(); ++source) {
      const auto arrived = this_batch.arriving.from(block, rank_id{source});
      const std::byte* const begin = rows.row(arrived[0]);
      const auto bytes = static_cast<std::size_t>(rows.row(arrived[1]) - begin);
      peerbus::read_once({begin, bytes / lanes});
    }
}

PEERBUS_INLINE exchange_core::step exchange_core::dispatch_step(std::uint64_t number) noexcept {
  const batch& this_batch = parts_.batches.at(number);
  return {group_operation::dispatch, number, parts_.batches.set_of(this_batch),
          protocol_->decides(), number};
}

PEERBUS_INLINE void exchange_core::refuse_ahead(std::uint64_t number, const refusal& why) {
  batch& this_batch = parts_.batches.at(number);
  const step this_step = dispatch_step(number);
  protocol_->give_up(messages_, this_batch, this_step, {});
  protocol_->post(messages_, this_batch, this_step, {}, why);
}

PEERBUS_INLINE void exchange_core::await_called(std::uint64_t number, deadline until) {
  messages_.await_all(dispatch_step(number), until);
}

PEERBUS_INLINE void exchange_core::advance(const batch* wanted, lane caller, deadline until,
                                           std::span<std::int64_t> waited) {
  for (;;) {
    serial(caller, until, [&] { ready_ = next_ready(wanted, until, waited); });
    batch* const ready = ready_;
    if (ready == nullptr) return;
    timed(*ready, caller, part_of(ready->leaving.tokens()), [&] {
      record(parts_.path.send(on_path(*ready), caller,
                              [&](lane_step work) { serial(caller, until, work); }));
    });
    serial(caller, until, [&] {
      const step this_step = step_of(*ready, phase::rows);
      require_success(this_step);
      messages_.announce(this_step);
      protocol_->after_send(messages_, *ready, step_of(*ready, protocol_->decides()));
      ready->reached = stage::sent;
    });
  }
}

PEERBUS_INLINE batch* exchange_core::next_ready(const batch* wanted, deadline until,
                                                std::span<std::int64_t> waited) {
  batch_ring& batches = parts_.batches;
  for (std::uint64_t number = batches.oldest(); number <= batches.latest(); ++number) {
    batch& this_batch = batches.at(number);
    if (this_batch.number != number || this_batch.reached != stage::counted || this_batch.refused)
      continue;
    const bool wait = wanted != nullptr && number <= wanted->number;
    const auto state = protocol_->place(
        messages_, this_batch, step_of(this_batch, protocol_->decides()), wait, until, waited);
    if (state == departure::placed) return &this_batch;
    if (state == departure::later) return nullptr;
  }
  return nullptr;
}

PEERBUS_INLINE std::optional<refusal_of> exchange_core::end_dispatch(
    batch& this_batch, deadline until, std::span<std::int64_t> waited) {
  const step this_step = step_of(this_batch, phase::rows);
  if (!this_batch.refused) protocol_->receive(messages_, this_batch, this_step, until, waited);
  if (this_batch.refused) {
    if (is_of_peer(this_batch.refused.reason)) {
      // Other ranks may have found nothing wrong, and shall not wait for this rank. They learn of
      // it when they combine the batch. If it sends no rows, it raises their signal further than to
      // this dispatch, so that no rank reads any.
      refuse_combine(this_batch, this_batch.refused);
      step without_rows = this_step;
      without_rows.epoch += parts_.config.in_flight;
      if (this_batch.reached == stage::counted) messages_.announce(without_rows);
    }
    messages_.require(this_step, protocol_->abandon(this_batch, parts_.path));
    return refusal_of{this_batch.refused_by, this_batch.refused};
  }
  this_batch.reached = stage::received;
  this_batch.received_as = ++position_.completed.received;
  this_batch.dispatched_as = this_batch.number - skipped_;
  position_.received_last = std::max(position_.received_last, this_batch.dispatched_as);
  return std::nullopt;
}

}  // namespace peerbus::moe::detail

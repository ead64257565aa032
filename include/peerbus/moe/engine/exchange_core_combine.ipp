// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/read_once.hpp>
#include <peerbus/moe/engine/check_options.hpp>
#include <peerbus/moe/engine/check_sum.hpp>
#include <peerbus/moe/engine/exchange_core.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>

// The combine of a batch, after its dispatch.
namespace peerbus::moe::detail {

PEERBUS_INLINE std::optional<refusal_of> exchange_core::combine(ticket rows,
                                                                const combine_sum& wanted,
                                                                const combine_options& options,
                                                                deadline until) {
  begin_combine("combine", rows, {.as = options.as, .attached = options.attached}, until,
                [&](const batch& this_batch) {
                  require_all_ranks(options.waited, group().size());
                  if (const refusal found = objection_of_caller(options.refuse)) return found;
                  return objection_to_sum(this_batch, wanted);
                });
  return finish_combine(rows, wanted, options.as, until, options.waited);
}

PEERBUS_INLINE void exchange_core::combine_send(ticket rows, const publish_options& options,
                                                deadline until) {
  begin_combine("combine_send", rows, options, until,
                [&](const batch&) { return objection_of_caller(options.refuse); });
  advance(nullptr, options.as, until);
}

PEERBUS_INLINE std::optional<refusal_of> exchange_core::combine_recv(ticket rows,
                                                                     const combine_sum& wanted,
                                                                     const sum_options& options,
                                                                     deadline until) {
  serial("combine_recv", options.as, until, [&] {
    require_healthy("combine_recv");
    require_all_ranks(options.waited, group().size());
    const batch& this_batch =
        parts_.batches.behind("combine_recv", exchange_, rows, stage::returning);
    refused_ = own(objection_to_sum(this_batch, wanted));
  });
  if (refused_) return refused_;
  return finish_combine(rows, wanted, options.as, until, options.waited);
}

PEERBUS_INLINE void exchange_core::reopen(ticket rows, const receive_options& options,
                                          deadline until) {
  advance(nullptr, options.as, until);
  serial(options.as, until, [&] {
    require_healthy("reopen");
    require_all_ranks(options.waited, group().size());
    batch& this_batch = parts_.batches.behind("reopen", exchange_, rows, stage::returned);
    // An attempt that brings nothing: whoever announces it has ended the one before.
    ++this_batch.combines;
    const step this_step = step_of(this_batch, phase::outputs);
    messages_.announce(this_step);
    messages_.await_all(this_step, until, {}, options.waited);
    this_batch.reached = stage::received;
    this_batch.combined_as = 0;
    this_batch.reopened_as = ++position_.reopened;
  });
}

PEERBUS_INLINE refusal exchange_core::objection_to_sum(const batch& this_batch,
                                                       const combine_sum& wanted) const noexcept {
  return check_sum(this_batch.leaving, parts_.config.hidden, wanted,
                   {.by_rank = this_batch.leaving.geometry().by_rank, .own_rank = group().rank()});
}

PEERBUS_INLINE void exchange_core::begin_combine(
    const char* doing, ticket rows, const publish_options& options, deadline until,
    peerbus::detail::function_ref<refusal(const batch&)> objection,
    std::optional<std::uint64_t> brings) {
  const lane caller = options.as;
  serial(doing, caller, until, [&] {
    require_healthy(doing);
    require_output_attachment(options.attached, parts_.config);
    batch& this_batch = parts_.batches.behind(doing, exchange_, rows, stage::received);
    this_batch.refused = objection(this_batch);
    if (!this_batch.refused) this_batch.refused = this_batch.lost;
    if (!this_batch.refused && this_batch.leaving.geometry().has_slots())
      this_batch.refused = parts_.batches.objection_to_reuse(rows.number);
    this_batch.attached = options.attached;
    this_batch.brings = options.attached ? brings.value_or(parts_.map.output_attachment_bytes) : 0;
  });
  batch& this_batch = parts_.batches.at(rows.number);
  if (!this_batch.refused)
    record(parts_.path.publish(on_path(this_batch), caller,
                               [&](lane_step work) { serial(caller, until, work); }));
  serial(caller, until, [&] { announce_outputs(this_batch); });
}

PEERBUS_INLINE void exchange_core::refuse_combine(batch& this_batch, const refusal& why) {
  if (parts_.config.weights_at_combine) messages_.announce(weights_step(this_batch));
  ++this_batch.combines;
  const step this_step = step_of(this_batch, phase::outputs);
  messages_.post_verdict(this_step, why, 0);
  messages_.announce(this_step);
}

PEERBUS_INLINE void exchange_core::announce_outputs(batch& this_batch) {
  ++this_batch.combines;
  const step this_step = step_of(this_batch, phase::outputs);
  require_success(this_step);
  if (this_batch.refused || this_batch.attached)
    messages_.post_verdict(this_step, this_batch.refused, this_batch.brings);
  messages_.announce(this_step);
  this_batch.reached = stage::returning;
  this_batch.refused_by = group().rank();
}

PEERBUS_INLINE std::optional<refusal_of> exchange_core::finish_combine(
    ticket rows, const combine_sum& wanted, lane caller, deadline until,
    std::span<std::int64_t> waited) {
  advance(nullptr, caller, until);
  batch& this_batch = parts_.batches.at(rows.number);
  serial(caller, until, [&] {
    const step this_step = step_of(this_batch, phase::outputs);
    messages_.await_all(this_step, until, {}, waited);
    refused_ = own(this_batch.refused);
    if (!refused_) refused_ = messages_.refused(this_step);
    if (!refused_) return;
    messages_.require(this_step, parts_.path.settle());
    this_batch.reached = stage::received;
  });
  if (refused_) return refused_;
  const auto is_coded = [&](rank_id rank) noexcept {
    return messages_.brought(step_of(this_batch, phase::outputs), rank) != 0;
  };
  combine_sum sum = wanted;
  if (parts_.map.logfmt_outputs) sum.is_coded = is_coded;
  const std::size_t tokens = this_batch.leaving.tokens();
  timed(this_batch, caller, part_of(tokens),
        [&] { record(parts_.path.sum(on_path(this_batch), sum, caller)); });
  if (times(this_batch, caller))
    timed(this_batch, caller, part_of(tokens), [&] {
      const lane::range own = caller.share(tokens);
      const std::size_t hidden = parts_.config.hidden;
      peerbus::read_once(
          std::as_bytes(sum.out.subspan(own.begin * hidden, (own.end - own.begin) * hidden)));
    });
  serial(caller, until, [&] {
    require_success(step_of(this_batch, phase::outputs));
    if (this_batch.stores.timed) stores_.add(this_batch.stores);
    this_batch.stores.timed = false;
    this_batch.reached = stage::returned;
    this_batch.combined_as = ++position_.completed.combined;
  });
  return std::nullopt;
}

}  // namespace peerbus::moe::detail

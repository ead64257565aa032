// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include <peerbus/bootstrap/detail/reported.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/moe/engine/reporting_engine.hpp>

namespace peerbus::moe::detail {

template <class Work>
auto reporting_engine::report(group_operation what, const char* name, std::uint64_t number,
                              lane caller, end_at end, Work&& work) {
  const bool ends_with_part = end == end_at::the_last_part && caller.count == 1;
  const auto note_end = [ends_with_part](operation_event& event) {
    const std::int64_t latest = operation_event::latest();
    if (ends_with_part && latest != event.begun) event.ended = latest;
  };
  return peerbus::detail::reported(
      group_->members()->listeners(),
      {.kind = event_kind::operation,
       .what = {.operation = what, .number = number},
       .name = name,
       .lane = caller.index},
      [&](operation_event& event) {
        if constexpr (std::is_void_v<decltype(work())>) {
          work();
          note_end(event);
        } else {
          auto found = work();
          if (found) {
            event.peer = found->rank;
            const errc of_own =
                is_of_peer(found->why.reason) ? errc::mismatch : errc::invalid_argument;
            event.fault = found->rank == group_->rank() ? of_own : errc::refused;
          } else {
            note_end(event);
          }
          return found;
        }
      });
}

PEERBUS_INLINE std::optional<refusal_of> reporting_engine::dispatch_send(
    const batch_input& input, const routing& route, const dispatch_options& options,
    deadline until) {
  return report(group_operation::dispatch, "dispatch_send", engine_->next_dispatch(), options.as,
                end_at::the_last_part,
                [&] { return engine_->dispatch_send(input, route, options, until); });
}

PEERBUS_INLINE std::optional<refusal_of> reporting_engine::dispatch_recv(
    ticket named, const receive_options& options, deadline until,
    peerbus::detail::function_ref<void(const batch&)> arrived) {
  return report(group_operation::dispatch, "dispatch_recv", named.number, options.as,
                end_at::the_call,
                [&] { return engine_->dispatch_recv(named, options, until, arrived); });
}

PEERBUS_INLINE std::optional<refusal_of> reporting_engine::combine(ticket rows,
                                                                   const combine_sum& wanted,
                                                                   const combine_options& options,
                                                                   deadline until) {
  return report(group_operation::combine, "combine", rows.number, options.as, end_at::the_last_part,
                [&] { return engine_->combine(rows, wanted, options, until); });
}

PEERBUS_INLINE void reporting_engine::combine_send(ticket rows, const publish_options& options,
                                                   deadline until) {
  report(group_operation::combine, "combine_send", rows.number, options.as, end_at::the_last_part,
         [&] { engine_->combine_send(rows, options, until); });
}

PEERBUS_INLINE std::optional<refusal_of> reporting_engine::combine_recv(ticket rows,
                                                                        const combine_sum& wanted,
                                                                        const sum_options& options,
                                                                        deadline until) {
  return report(group_operation::combine, "combine_recv", rows.number, options.as,
                end_at::the_last_part,
                [&] { return engine_->combine_recv(rows, wanted, options, until); });
}

PEERBUS_INLINE void reporting_engine::reopen(ticket rows, const receive_options& options,
                                             deadline until) {
  report(group_operation::combine, "reopen", rows.number, options.as, end_at::the_call,
         [&] { engine_->reopen(rows, options, until); });
}

}  // namespace peerbus::moe::detail

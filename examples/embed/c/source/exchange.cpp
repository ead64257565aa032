// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance/incremental.hpp>

#include "erased_exchange.hpp"
#include "exchange_input.hpp"
#include "relay.hpp"

namespace peerbus::c_library {

namespace {

exchange_request request_of(group& members, const peerbus_exchange_config& given, deadline until) {
  exchange_request request{
      members.comm,         {},    given.layout, std::max<std::size_t>(given.alignment, 1),
      given.zero_gaps != 0, until, members.log()};
  moe::exchange_config& config = request.config;
  config.hidden = given.hidden;
  config.top_k = given.top_k;
  config.max_tokens = given.max_tokens;
  config.in_flight = std::max<std::size_t>(given.in_flight, 1);
  if (given.outputs_at_home != 0) config.outputs = moe::outputs_at::home;
  std::copy(std::begin(given.attachments), std::end(given.attachments), config.attachments.begin());
  config.output_attachment = given.output_attachment;
  config.note_bytes = given.note_bytes;
  config.weights_at_combine = given.weights_at_combine != 0;
  config.same_bits = given.same_bits != 0;
  config.distrust_peers = given.distrust_peers != 0;
  if (given.stream_from != PEERBUS_STREAM_DEFAULT) config.stream_from = given.stream_from;
  config.between = given.between;
  return request;
}

/// A table that all ranks refuse, in place of one that this rank cannot read.
constexpr std::array<std::uint32_t, 1> refused_table{moe::vacant};

make_exchange_function function_of(std::int32_t codec) {
  // In the order of PEERBUS_BF16 and so on.
  const std::array all{make_bf16,      make_int8_per_token, make_fp8_f32, make_fp8_rounded,
                       make_fp8_ue8m0, make_fp8_as_given,   make_nothing};
  static_assert(PEERBUS_NO_ROWS + 1 == std::tuple_size_v<decltype(all)>);
  if (codec < 0 || static_cast<std::size_t>(codec) >= all.size())
    throw error{errc::invalid_argument,
                concat("codec is ", codec, ", expected 0 to ", all.size() - 1)};
  return all[static_cast<std::size_t>(codec)];
}

erased_exchange& calls_of(peerbus_exchange* exchange) {
  return *usable(exchange, "exchange").calls;
}
/// Returns the calls for queries, which several threads may make at a time.
erased_exchange& queries_of(peerbus_exchange* exchange) {
  return *shared(exchange, "exchange").calls;
}

/// Calls `call` with the arguments that `given` points to, after `check()`. If one of the two
/// cannot be had, the arguments make all ranks refuse, so that no rank waits for this one.
template <class Args, class Check, class Call>
void with_args(const Args* given, Check&& check, Call&& call) {
  Args args{};
  call_or_refuse(
      [&] {
        args = read_struct(given, "args");
        check();
      },
      [&] {
        args = {};
        args.refuse = 1;
      },
      [&] { call(args); });
}

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_exchange_create(peerbus_comm* comm, const peerbus_exchange_config* config,
                                     int64_t timeout_ns, peerbus_exchange** exchange) {
  return guarded([&] {
    require_result(exchange, "exchange");
    const auto& members = usable(comm, "communicator").members;
    const auto given = read_struct(config, "config", offsetof(peerbus_exchange_config, same_bits));
    const auto make = function_of(given.codec);
    auto request = request_of(*members, given, deadline_of(members->comm, timeout_ns));
    auto calls = call_or_refuse(
        [&] {
          read_experts(given, members->comm.size(), request.config);
          request.config.relay = relay_of(given.relay);
          request.config.relay_sums = relay_sums_of(given.relay_sums);
        },
        [&] {
          request.config.experts_of_rank = {};
          request.config.physical_to_logical = refused_table;
        },
        [&] { return make(request); });
    *exchange = std::make_unique<peerbus_exchange>(members, std::move(calls)).release();
  });
}

void peerbus_exchange_destroy(peerbus_exchange** exchange) { destroy(exchange); }

uint64_t peerbus_exchange_bytes(const peerbus_exchange* exchange) {
  return exchange == nullptr ? 0 : exchange->calls->bytes();
}

peerbus_code peerbus_dispatch(peerbus_exchange* exchange, const peerbus_dispatch_args* args,
                              peerbus_received* received) {
  return guarded([&] {
    erased_exchange& calls = calls_of(exchange);
    with_args(
        args, [&] { require_struct(received, "received"); },
        [&](const auto& given) { write_struct(received, calls.dispatch(given)); });
  });
}

peerbus_code peerbus_dispatch_send(peerbus_exchange* exchange, const peerbus_dispatch_args* args,
                                   uint64_t* ticket) {
  return guarded([&] {
    erased_exchange& calls = calls_of(exchange);
    with_args(
        args, [&] { require(ticket != nullptr, "ticket is NULL"); },
        [&](const auto& given) { *ticket = calls.dispatch_send(given); });
  });
}

peerbus_code peerbus_dispatch_recv(peerbus_exchange* exchange, uint64_t ticket, int64_t* waited_ns,
                                   int64_t timeout_ns, peerbus_received* received) {
  return guarded([&] {
    erased_exchange& calls = calls_of(exchange);
    require_struct(received, "received");
    write_struct(received, calls.dispatch_recv(ticket, waited_ns, deadline_of(timeout_ns)));
  });
}

peerbus_code peerbus_combine(peerbus_exchange* exchange, uint64_t ticket,
                             const peerbus_combine_args* args) {
  return guarded([&] {
    erased_exchange& calls = calls_of(exchange);
    with_args(args, [] {}, [&](const auto& given) { calls.combine(ticket, given); });
  });
}

peerbus_code peerbus_combine_send(peerbus_exchange* exchange, uint64_t ticket,
                                  const peerbus_combine_args* args) {
  return guarded([&] {
    erased_exchange& calls = calls_of(exchange);
    calls.combine_send(ticket, read_options(args, "args"));
  });
}

peerbus_code peerbus_combine_recv(peerbus_exchange* exchange, uint64_t ticket,
                                  const peerbus_combine_args* args) {
  return guarded([&] {
    erased_exchange& calls = calls_of(exchange);
    calls.combine_recv(ticket, read_struct(args, "args"));
  });
}

peerbus_code peerbus_exchange_resume(peerbus_exchange* exchange, int32_t lost, int64_t timeout_ns,
                                     peerbus_completed* completed) {
  return guarded([&] {
    erased_exchange& calls = calls_of(exchange);
    require(lost >= PEERBUS_LOST_DROPPED && lost <= PEERBUS_LOST_REFUSED,
            "lost is none of PEERBUS_LOST_DROPPED, _RENORMALISED and _REFUSED");
    const auto found = calls.resume(
        {.until = deadline_of(timeout_ns), .lost = static_cast<peerbus::moe::lost_experts>(lost)});
    if (completed != nullptr) *completed = {found.received, found.combined};
  });
}

peerbus_code peerbus_exchange_install_experts(peerbus_exchange* exchange,
                                              const uint32_t* physical_to_logical,
                                              uint64_t physical_experts,
                                              const peerbus_replica_choice* replicas,
                                              int64_t timeout_ns) {
  return guarded([&] {
    calls_of(exchange).install_experts(
        {physical_to_logical, physical_to_logical == nullptr ? 0 : physical_experts}, replicas,
        deadline_of(timeout_ns));
  });
}

peerbus_code peerbus_exchange_plan_experts(peerbus_exchange* exchange, const double* loads,
                                           double least_gain, uint64_t most_moves,
                                           uint64_t fixed_slots, uint32_t* physical_to_logical,
                                           uint64_t physical_experts, uint64_t* moves) {
  return guarded([&] {
    const peerbus::moe::expert_map& experts = queries_of(exchange).experts();
    require(loads != nullptr, "loads is NULL");
    require(physical_to_logical != nullptr, "physical_to_logical is NULL");
    require_places(experts, physical_experts);
    const auto found =
        peerbus::moe::plan_incremental(std::span{loads, experts.experts()}, experts,
                                       limits_of(least_gain, most_moves, fixed_slots));
    std::ranges::copy(found.plan.physical_to_logical(), physical_to_logical);
    if (moves != nullptr) *moves = found.moves;
  });
}

peerbus_code peerbus_exchange_count_rows(peerbus_exchange* exchange, uint64_t ticket,
                                         uint32_t* rows, uint64_t physical_experts,
                                         int32_t* of_all_ranks) {
  return guarded([&] {
    erased_exchange& calls = queries_of(exchange);
    require(rows != nullptr, "rows is NULL");
    const bool of_all = calls.count_rows(ticket, {rows, physical_experts});
    if (of_all_ranks != nullptr) *of_all_ranks = of_all ? 1 : 0;
  });
}

int32_t peerbus_awaits_combine(peerbus_exchange* exchange, uint64_t ticket) {
  int32_t awaits = 0;
  static_cast<void>(guarded([&] { awaits = queries_of(exchange).awaits_combine(ticket) ? 1 : 0; }));
  return awaits;
}

peerbus_code peerbus_output(peerbus_exchange* exchange, uint64_t ticket, uint64_t row,
                            void** output) {
  return guarded([&] {
    erased_exchange& calls = queries_of(exchange);
    require(output != nullptr, "output is NULL");
    *output = calls.output(ticket, row);
  });
}

peerbus_code peerbus_output_attachment(peerbus_exchange* exchange, uint64_t ticket, uint64_t row,
                                       void** attachment) {
  return guarded([&] {
    erased_exchange& calls = queries_of(exchange);
    require(attachment != nullptr, "attachment is NULL");
    *attachment = calls.output_attachment(ticket, row);
  });
}

peerbus_code peerbus_decode(peerbus_exchange* exchange, uint64_t ticket, uint64_t row,
                            float* values) {
  return guarded([&] { queries_of(exchange).decode(ticket, row, values); });
}

peerbus_code peerbus_note(peerbus_exchange* exchange, uint64_t ticket, uint64_t source,
                          const void** note, uint64_t* bytes) {
  return guarded([&] {
    erased_exchange& calls = queries_of(exchange);
    require(note != nullptr && bytes != nullptr, "note or bytes is NULL");
    require(source < exchange->members->comm.size(), "there is no rank `source`");
    const auto found = calls.note(ticket, peerbus::rank_id{source});
    *note = found.data();
    *bytes = found.size();
  });
}

peerbus_code peerbus_returned_attachment(peerbus_exchange* exchange, uint64_t ticket,
                                         uint64_t token, uint64_t copy, uint64_t rank,
                                         const void** attachment) {
  return guarded([&] {
    erased_exchange& calls = queries_of(exchange);
    require(attachment != nullptr, "attachment is NULL");
    require(rank < exchange->members->comm.size(), "there is no rank `rank`");
    *attachment = calls.returned_attachment(ticket, token, copy, peerbus::rank_id{rank});
  });
}

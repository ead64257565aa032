// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/cann.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/ascend.hpp>
#include <peerbus/compat/deep_ep/detail/ascend_channel.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_channel.hpp>
#include <peerbus/compat/deep_ep/detail/refused_combine.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The channel of calls in CANN's layout. It calls the operators, as DeepEP-Ascend does.
template <transport Transport, cann::operator_codec Codec>
class ascend_exchange final : public ascend_channel {
 public:
  /// Makes the operators and the arrays. Collective.
  /// Throws: as the operators' constructor.
  ascend_exchange(communicator<Transport>& comm, call_agreement& agreement,
                  const low_latency_key& shape, std::size_t in_flight, moe::relay relay,
                  deadline until)
      : ascend_channel{shape},
        comm_{comm},
        agreement_{agreement},
        operators_{comm,
                   {.hidden = shape.hidden,
                    .top_k = shape.top_k,
                    .max_tokens = shape.max_tokens,
                    .in_flight = in_flight,
                    .moe_expert_num = static_cast<std::int64_t>(shape.experts),
                    .relay = relay},
                   {},
                   until},
        ids_(shape.max_tokens * shape.top_k),
        active_{std::make_unique<bool[]>(ids_.size())},
        combined_{
            std::make_unique_for_overwrite<bf16[]>(in_flight * shape.max_tokens * shape.hidden)},
        batches_{std::vector<batch>(in_flight)} {
    // Instead of the agreement of the operators, as this one checks what is given to them.
    operators_.exchange().watch_waits(&agreement_);
  }

  ascend_dispatch_result dispatch(const ascend_dispatch_args& args) override {
    const std::size_t tokens = args.x.size(0);
    // The operators refuse bad tokens and ids, on all ranks.
    const std::size_t slots = read_ids(args.topk_idx, tokens);
    const std::uint64_t number = operators_.exchange().next_dispatch();
    const std::uint64_t call = agreement_.started({.channel = id(),
                                                   .number = number,
                                                   .bound = shape().max_tokens,
                                                   .what = started_operation::kind::dispatch});
    const auto dispatched = with_reason(call, args.until, [&] {
      return operators_.dispatch({.x = args.x.values<bf16>(),
                                  .expert_ids = std::span{ids_}.first(slots),
                                  .x_active_mask = {active_.get(), slots},
                                  .until = args.until});
    });
    batch& this_batch = batches_.of(number);
    this_batch.number = number;
    this_batch.plan = call;
    this_batch.tokens = tokens;
    this_batch.result.emplace(dispatched);
    return publish(*this_batch.result, number);
  }

  ascend_combine_result combine(const ascend_combine_args& args) override {
    batch& this_batch = agreement_.or_refuse(args.until, [&]() -> batch& { return checked(args); });
    const std::uint64_t number = this_batch.number;
    const std::size_t hidden = shape().hidden;
    const std::size_t slots = read_ids(args.topk_idx, this_batch.tokens);
    bf16* const out = combined_.get() + batches_.index_of(number) * shape().max_tokens * hidden;
    const std::uint64_t call = agreement_.started({.channel = id(),
                                                   .number = number,
                                                   .bound = shape().max_tokens,
                                                   .what = started_operation::kind::combine,
                                                   .plan = this_batch.plan});
    with_reason(call, args.until, [&] {
      operators_.reopen(*this_batch.result, args.until);
      operators_.combine(
          {.dispatched = *this_batch.result,
           .expand_x = args.x.values<bf16>().first(this_batch.result->rows.rows() * hidden),
           .expert_ids = std::span{ids_}.first(slots),
           .expert_scales = args.topk_weights.values<float>(),
           .x_active_mask = {active_.get(), slots},
           .out = {out, this_batch.tokens * hidden},
           .until = args.until});
    });
    return {{out, dtype::bfloat16, {this_batch.tokens, hidden}}};
  }

  [[nodiscard]] bool is_received(std::uint64_t number) const noexcept override {
    const batch& found = batches_.of(number);
    return number != 0 && found.number == number && found.result.has_value();
  }
  void refuse(const started_operation& begun, deadline until) override {
    const bool is_dispatch = begun.what == started_operation::kind::dispatch;
    if (is_dispatch ? operators_.exchange().next_dispatch() != begun.number
                    : !is_received(begun.number))
      comm_.fail(errc::mismatch,
                 concat(is_dispatch ? "low_latency_dispatch " : "low_latency_combine ",
                        begun.number, " was begun on other ranks, but is not the next call here"));
    if (is_dispatch) return operators_.refuse_dispatch(until);
    const result_type& dispatched = *batches_.of(begun.number).result;
    operators_.reopen(dispatched, until);
    operators_.exchange().combine_send(dispatched.rows, {.until = until, .refuse = true});
  }
  void finish_refusal(const started_operation& begun, deadline until) override {
    if (begun.what == started_operation::kind::dispatch) return;
    const batch& this_batch = batches_.of(begun.number);
    finish_refused_combine(operators_.exchange(), this_batch.result->rows, this_batch.tokens,
                           until);
  }

 private:
  using result_type = typename cann::moe_distribute<Transport, Codec>::result;
  struct batch {
    std::uint64_t number = 0;
    std::uint64_t plan = 0;  ///< number of the call that made the handle
    std::size_t tokens = 0;
    std::optional<result_type> result;
  };

  /// Checks the arguments of a combine. Returns its batch.
  /// Throws: `error` invalid_argument.
  [[nodiscard]] batch& checked(const ascend_combine_args& args) {
    constexpr std::string_view call = "low_latency_combine";
    const std::uint64_t number = args.handle.batch.number();
    batch& this_batch = batches_.of(number);
    const argument handle{call, "handle"};
    handle.require(is_received(number), "is of dispatch ", number, ", which ", this_batch.number,
                   " has replaced; expected one that is not replaced");
    const std::size_t rows = this_batch.result->rows.rows();
    require_form({call, "x"}, args.x, {{dtype::bfloat16}, {any, shape().hidden}});
    const argument x{call, "x"};
    x.require(args.x.size(0) >= rows, "has ", args.x.size(0), " rows, expected at least the ", rows,
              " that came");
    require_form({call, "topk_idx"}, args.topk_idx,
                 {{dtype::int64, dtype::int32}, {this_batch.tokens, shape().top_k}});
    require_form({call, "topk_weights"}, args.topk_weights,
                 {{dtype::float32}, {this_batch.tokens, shape().top_k}});
    return this_batch;
  }
  /// Calls `carry_out()` and returns its result.
  /// Throws: as `carry_out()`, or the reason if the ranks have refused the call that this rank had
  /// begun.
  template <class CarryOut>
  decltype(auto) with_reason(std::uint64_t call, const std::optional<deadline>& until,
                             CarryOut&& carry_out) {
    try {
      return carry_out();
    } catch (const error& problem) {
      if (problem.code() == errc::refused)
        if (const auto refused = agreement_.take_refusal(call, until)) throw error{*refused};
      throw;
    }
  }

  /// Reads the ids into `ids_` and `active_`, because the operators take a mask of active slots
  /// instead of ids of -1. Returns the number of slots.
  [[nodiscard]] std::size_t read_ids(const const_tensor& topk_idx, std::size_t tokens) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    const std::size_t slots = std::min(tokens * shape().top_k, ids_.size());
    for_each_id(topk_idx, slots, [&](std::size_t i, std::int64_t id) {
      active_[i] = id != -1;
      ids_[i] = static_cast<std::int32_t>(std::clamp<std::int64_t>(id, -most, most));
    });
    return slots;
  }

  [[nodiscard]] ascend_dispatch_result publish(const result_type& dispatched,
                                               std::uint64_t number) {
    using element = typename Codec::element;
    const std::size_t local = dispatched.expert_token_nums.size();
    const std::size_t most = comm_.size() * shape().max_tokens * std::min(shape().top_k, local);
    const moe::batch_columns<Codec> columns = dispatched.rows.columns();
    // The operators own these arrays and return read-only views. Callers of DeepEP may write
    // results.
    const auto writable = []<class T>(std::span<const T> values) {
      return const_cast<T*>(values.data());
    };
    ascend_dispatch_result made;
    made.recv_x = {columns.rows().data(), dtype_of<element>, {most, shape().hidden}};
    if (Codec::scale_bytes(shape().hidden) != 0)
      made.recv_x_scales = {columns.scales().data(), dtype::float32, {most}};
    made.recv_count = {writable(dispatched.expert_token_nums), dtype::int64, {local}};
    made.handle = {
        {writable(dispatched.expand_idx), dtype::int32, {dispatched.expand_idx.size() / 3, 3}},
        {writable(dispatched.ep_recv_counts), dtype::int32, {dispatched.ep_recv_counts.size()}},
        {this, number}};
    return made;
  }

  communicator<Transport>& comm_;
  call_agreement& agreement_;
  cann::moe_distribute<Transport, Codec> operators_;
  std::vector<std::int32_t> ids_;
  std::unique_ptr<bool[]> active_;
  std::unique_ptr<bf16[]> combined_;
  moe::per_batch<batch> batches_;
};

}  // namespace peerbus::deep_ep::detail

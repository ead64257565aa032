// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/batch_slots.hpp>
#include <peerbus/compat/deep_ep/detail/column_major.hpp>
#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_channel.hpp>
#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/make_together.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// Low-latency calls over an exchange of the padded layout.
template <transport Transport, token_codec Codec>
class low_latency_exchange final : public low_latency_channel {
 public:
  /// Collective, as the exchange's constructor.
  low_latency_exchange(communicator<Transport>& comm, const low_latency_key& shape,
                       std::size_t in_flight, bool zero_copy, deadline until)
      : low_latency_channel{shape},
        comm_{comm},
        zero_copy_{zero_copy},
        scale_words_{Codec::scale_bytes(shape.hidden) / sizeof(std::uint32_t)},
        moe_{comm,
             exchange_for({.num_max_dispatch_tokens_per_rank = shape.max_tokens,
                           .hidden = shape.hidden,
                           .num_ranks = comm.size(),
                           .num_experts = shape.experts,
                           .num_topk = shape.top_k,
                           .in_flight = in_flight,
                           .zero_copy = zero_copy}),
             {},
             {},
             until},
        local_experts_{moe_.placement().count(comm.rank())},
        no_weights_(shape.max_tokens * shape.top_k),
        slots_{make_together(comm, "the arrays of low-latency calls", until, [&] {
          std::vector<batch> made;
          made.reserve(in_flight);
          for (std::size_t i = 0; i < in_flight; ++i)
            made.emplace_back(low_latency_arrays{shape, comm.size(), local_experts_,
                                                 Codec::scale_bytes(shape.hidden)});
          return batch_slots<batch>{"low_latency_", std::move(made)};
        })} {}

  low_latency_dispatch_result dispatch(const low_latency_dispatch_args& args,
                                       rank_mask masked) override {
    batch& one = slots_.next();
    const std::size_t tokens = args.x.size(0);
    const auto routed = read_routing(args.topk_idx, tokens, masked, one.arrays);
    const auto weights = std::span{no_weights_}.first(std::min(routed.size(), no_weights_.size()));
    slots_.begin(one, tokens, args.until);
    one.received = args.cumulative_local_expert_recv_stats;
    one.waited = args.dispatch_wait_recv_cost_stats;
    one.ticket = moe_.dispatch_send(args.x.values<bf16>(), {routed, weights},
                                    options_of<moe::dispatch_options>(one));
    one.at = stage::sent;
    if (!args.return_recv_hook && !args.async_finish) receive_rows(one);
    return result(one, args);
  }

  low_latency_combine_result combine(const low_latency_combine_args& args) override {
    constexpr std::string_view call = "low_latency_combine";
    batch& one = slots_.received({call, "handle"}, args.handle.batch.number());
    require_same_routing({call, "topk_idx"}, one, args.topk_idx);
    const std::size_t tokens = one.tokens;
    require_form({call, "topk_weights"}, args.topk_weights,
                 {{dtype::float32}, {tokens, shape().top_k}});
    require_form_if_given({call, "out"}, args.out, {{dtype::bfloat16}, {tokens, shape().hidden}});
    one.out = args.out
                  ? args.out
                  : tensor{one.arrays.combined.get(), dtype::bfloat16, {tokens, shape().hidden}};
    one.until = args.until;
    one.weights = args.topk_weights;
    one.waited = args.combine_wait_recv_cost_stats;
    place_outputs(one, args);
    one.at = stage::returning;
    moe_.combine_send(*one.rows, options_of<moe::publish_options>(one));
    const pending_operation rest{this, 2 * one.number + 1};
    if (args.return_recv_hook) return {one.out, {}, recv_hook{rest}};
    if (args.async_finish) return {one.out, event_overlap{rest}, {}};
    receive_outputs(one);
    return {one.out, {}, {}};
  }

  [[nodiscard]] tensor combine_buffer(const argument& handle, std::uint64_t number) override {
    const batch& one = slots_.received(handle, number);
    handle.require(zero_copy_,
                   "is of a buffer whose outputs lie at their home ranks, expected one made with "
                   "buffer_options{.zero_copy = true}");
    return {one.rows->columns().outputs().data(),
            dtype::bfloat16,
            {local_experts_, rows_per_expert(), shape().hidden}};
  }

  // --- hooks and events --------------------------------------------------------------------------

  void receive(std::uint64_t operation) override {
    batch& one = slots_.pending(operation);
    operation % 2 == 0 ? receive_rows(one) : receive_outputs(one);
  }
  [[nodiscard]] bool is_pending(std::uint64_t operation) const noexcept override {
    return slots_.is_pending(operation);
  }
  [[nodiscard]] bool anything_pending() const noexcept override {
    return slots_.anything_pending();
  }

 private:
  struct batch : batch_state {
    explicit batch(low_latency_arrays&& memory) : arrays{std::move(memory)} {}

    low_latency_arrays arrays;
    moe::ticket ticket;
    std::optional<moe::received<Codec>> rows;
    tensor received;  ///< statistics
    const_tensor weights;
    tensor out;
  };

  [[nodiscard]] std::size_t rows_per_expert() const noexcept {
    return comm_.size() * shape().max_tokens;
  }

  // --- dispatch ----------------------------------------------------------------------------------

  /// Keeps the routing, without the experts of masked ranks.
  [[nodiscard]] std::span<const std::int64_t> read_routing(const const_tensor& topk_idx,
                                                           std::size_t tokens, rank_mask masked,
                                                           low_latency_arrays& arrays) {
    // More tokens than there is room for are for the exchange to refuse, with all ranks.
    const std::size_t kept = std::min(tokens * shape().top_k, arrays.topk_idx.size());
    for_each_id(topk_idx, kept, [&](std::size_t i, std::int64_t id) { arrays.topk_idx[i] = id; });
    if (tokens * shape().top_k > kept) return {arrays.topk_idx};
    const auto is_masked = [&](std::int64_t id) {
      return id >= 0 && id < static_cast<std::int64_t>(shape().experts) &&
             masked[moe_.placement().owner(static_cast<std::size_t>(id)).index()] != 0;
    };
    std::transform(
        arrays.topk_idx.begin(), arrays.topk_idx.begin() + static_cast<std::ptrdiff_t>(kept),
        arrays.routed.begin(),
        [&](std::int64_t id) { return !masked.empty() && is_masked(id) ? std::int64_t{-1} : id; });
    return std::span{arrays.routed}.first(kept);
  }

  void receive_rows(batch& one) {
    one.at = stage::idle;  // Should it fail.
    one.rows.emplace(moe_.dispatch_recv(one.ticket, options_of<moe::receive_options>(one)));
    low_latency_arrays& arrays = one.arrays;
    const std::size_t ranks = comm_.size();
    for (std::size_t e = 0; e < local_experts_; ++e) {
      const auto& rows = one.rows->experts()[e];
      const std::size_t count = rows.count();
      arrays.recv_count[e] = static_cast<std::int32_t>(count);
      std::int64_t begin = 0;
      for (const rank_id source : comm_.ranks()) {
        const auto from = static_cast<std::int64_t>(rows.count_from(source));
        arrays.layout_range[e * ranks + source.index()] = begin << 32 | from;
        begin += from;
      }
      std::int32_t* const src_info = arrays.src_info.get() + e * rows_per_expert();
      for (std::size_t i = 0; i < count; ++i)
        src_info[i] = static_cast<std::int32_t>(rows.origin(i).token);
      const std::size_t scale_bytes = scale_words_ * sizeof(std::uint32_t);
      to_column_major(rows.template scales<std::byte>().data(), count, scale_words_,
                      arrays.scales.data() + e * scale_bytes * rows_per_expert(),
                      rows_per_expert());
      if (one.received) one.received.template as<std::int32_t>()[e] += arrays.recv_count[e];
    }
    one.at = stage::received;
  }

  [[nodiscard]] low_latency_dispatch_result result(batch& one,
                                                   const low_latency_dispatch_args& args) {
    const std::size_t rows = rows_per_expert();
    low_latency_arrays& arrays = one.arrays;
    low_latency_dispatch_result made;
    made.recv_x = {moe_.columns(one.ticket).rows().data(),
                   dtype_of<typename Codec::element>,
                   {local_experts_, rows, shape().hidden}};
    if (scale_words_ != 0)
      made.recv_x_scales = {
          arrays.scales.data(),
          shape().format == wire_format::fp8_ue8m0 ? dtype::int32 : dtype::float32,
          {local_experts_, rows, scale_words_},
          {rows * scale_words_, 1, rows}};
    made.recv_count = view(arrays.recv_count, {local_experts_});
    made.handle = {{arrays.src_info.get(), dtype::int32, {local_experts_, rows}},
                   view(arrays.layout_range, {local_experts_, comm_.size()}),
                   shape().max_tokens,
                   shape().hidden,
                   shape().experts,
                   {this, one.number}};
    const pending_operation rest{this, 2 * one.number};
    if (args.return_recv_hook) made.hook = recv_hook{rest};
    if (args.async_finish) made.event = event_overlap{rest};
    return made;
  }

  // --- combine -----------------------------------------------------------------------------------

  void require_same_routing(const argument& what, const batch& one, const const_tensor& topk_idx) {
    require_form(what, topk_idx, {{dtype::int64, dtype::int32}, {one.tokens, shape().top_k}});
    for_each_id(topk_idx, one.tokens * shape().top_k, [&](std::size_t i, std::int64_t id) {
      if (id != one.arrays.topk_idx[i])
        what.refuse(errc::invalid_argument, "has ", id, " for token ", i / shape().top_k, ", slot ",
                    i % shape().top_k, ", expected ", one.arrays.topk_idx[i],
                    " as low_latency_dispatch was given");
    });
  }

  /// Each row goes from where the caller has it to where its home rank reads it.
  void place_outputs(batch& one, const low_latency_combine_args& args) {
    constexpr std::string_view call = "low_latency_combine";
    if (args.zero_copy) {
      const argument x{call, "x"};
      x.require(args.x.data() == combine_buffer({call, "zero_copy"}, one.number).data() &&
                    args.x.contiguous(),
                "is elsewhere than the buffer that get_next_low_latency_combine_buffer gave for "
                "this handle, expected that with zero_copy");
      return;
    }
    const auto* const from = args.x.template as<bf16>();
    for (std::size_t e = 0; e < local_experts_; ++e) {
      const auto& rows = one.rows->experts()[e];
      for (std::size_t i = 0; i < rows.count(); ++i)
        std::memcpy(rows.output(i).data(), from + e * args.x.stride(0) + i * args.x.stride(1),
                    shape().hidden * sizeof(bf16));
    }
  }

  void receive_outputs(batch& one) {
    auto with = options_of<moe::sum_options>(one);
    with.terms.weights = one.weights.template values<float>();
    one.at = stage::idle;  // Whatever comes of it.
    moe_.combine_recv(*one.rows, one.out.template values<bf16>(), with);
  }

  communicator<Transport>& comm_;
  bool zero_copy_;
  std::size_t scale_words_;
  moe::exchange<Transport, Codec, moe::padded> moe_;
  std::size_t local_experts_;
  std::vector<float> no_weights_;
  batch_slots<batch> slots_;
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/channel.hpp>
#include <peerbus/compat/deep_ep/detail/column_major.hpp>
#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_channel.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_rows.hpp>
#include <peerbus/compat/deep_ep/low_latency.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The channel of low-latency calls: an exchange of the padded layout.
template <transport Transport, token_codec Codec>
class low_latency_exchange final : public channel<low_latency_mode, Transport, Codec> {
  using base = channel<low_latency_mode, Transport, Codec>;
  using base::agreement_;
  using base::comm_;
  using base::moe_;
  using typename base::batch;

 public:
  using base::shape;

  /// Makes the exchange and the arrays. Collective.
  /// Throws: as the exchange's constructor; `error` unsupported if relay groups differ in size.
  low_latency_exchange(communicator<Transport>& comm, call_agreement& agreement,
                       const low_latency_key& key, const buffer_options& options, deadline until)
      : base{comm,
             agreement,
             key,
             config_for(key, comm.size(), options),
             {},
             options.log,
             until,
             [&](const auto& moe) {
               return low_latency_arrays{key, comm.size(), moe.placement().count(comm.rank()),
                                         Codec::scale_bytes(key.hidden)};
             }},
        zero_copy_{options.zero_copy},
        scale_words_{Codec::scale_bytes(key.hidden) / sizeof(std::uint32_t)},
        local_experts_{moe_.placement().count(comm.rank())},
        no_weights_(key.max_tokens * key.top_k) {
    // The shape of results promises blocks of ranks x B rows.
    if (moe_.relay().relays && moe_.relay().ranks_per_group == 0)
      throw error{errc::unsupported,
                  "low_latency_dispatch: relay is used among groups of different sizes, expected "
                  "equal ones, or buffer_options{.relay = relay::never}"};
  }

  low_latency_dispatch_result dispatch(const low_latency_dispatch_args& args,
                                       rank_mask masked) override {
    batch& this_batch = this->next_batch_or_refuse(args.until);
    const std::size_t tokens = args.x.size(0);
    const auto routed = read_routing(args.topk_idx, tokens, masked, this_batch.arrays);
    const auto weights = std::span{no_weights_}.first(std::min(routed.size(), no_weights_.size()));
    this_batch.arrays.received = args.cumulative_local_expert_recv_stats;
    this_batch.arrays.bound = args.num_max_dispatch_tokens_per_rank;
    auto options = this->begin(this_batch, tokens, args.until, args.dispatch_wait_recv_cost_stats,
                               this_batch.arrays.bound);
    if (shape().weighted) options.attachments[0] = std::as_bytes(args.topk_weights.values<float>());
    this->send_rows(this_batch, args.x.values<bf16>(), {routed, weights}, options);
    auto made = result(this_batch);
    this->deliver(made, 2 * this_batch.number,
                  delivery_of(args.async_finish, args.return_recv_hook));
    return made;
  }

  low_latency_combine_result combine(const low_latency_combine_args& args) override {
    constexpr std::string_view call = "low_latency_combine";
    batch& this_batch = agreement_.or_refuse(args.until, [&]() -> batch& {
      return this->slots_.received({call, "handle"}, args.handle.batch.number());
    });
    this_batch.until = args.until;
    this_batch.waited = args.combine_wait_recv_cost_stats;
    // Before the other checks, because ranks may wait for this one in `combine_buffer`.
    this->begin_combine(this_batch, this_batch.arrays.bound);
    agreement_.or_refuse(args.until, [&] { require_fitting(this_batch, args); });
    const std::size_t tokens = this_batch.tokens;
    this_batch.out =
        args.out
            ? args.out
            : tensor{this_batch.arrays.combined.get(), dtype::bfloat16, {tokens, shape().hidden}};
    this_batch.factors = args.topk_weights;
    this_batch.attached = args.use_logfmt;
    if (!args.zero_copy) place_outputs(this_batch, args);
    return this->send_outputs(this_batch, low_latency_combine_result{this_batch.out, {}, {}},
                              delivery_of(args.async_finish, args.return_recv_hook));
  }

  [[nodiscard]] tensor combine_buffer(const argument& handle, std::uint64_t number) override {
    batch& this_batch = this->slots_.received(handle, number);
    const tensor outputs = outputs_of(handle, this_batch);
    this->open_early(this_batch, this_batch.arrays.bound);
    return outputs;
  }

  [[nodiscard]] std::size_t bound_of(std::uint64_t number) const noexcept override {
    const batch& this_batch = this->slots_.at(number);
    return this_batch.number == number && number != 0 ? this_batch.arrays.bound
                                                      : shape().max_tokens;
  }

 private:
  static moe::exchange_config config_for(const low_latency_key& key, std::size_t ranks,
                                         const buffer_options& options) noexcept {
    moe::exchange_config config = exchange_for({.num_max_dispatch_tokens_per_rank = key.max_tokens,
                                                .hidden = key.hidden,
                                                .num_ranks = ranks,
                                                .num_experts = key.experts,
                                                .num_topk = key.top_k,
                                                .in_flight = options.in_flight,
                                                .zero_copy = options.zero_copy});
    config.stream_from = options.stream_from;
    config.between = options.between;
    config.relay = options.relay;
    config.same_bits = options.same_bits;
    config.weights_at_combine = true;
    if (key.weighted) config.attachments[0] = key.top_k * sizeof(float);
    return config;
  }

  [[nodiscard]] std::size_t rows_per_expert(const batch& this_batch) const noexcept {
    return comm_.size() * this_batch.arrays.bound;
  }

  // --- dispatch ----------------------------------------------------------------------------------

  /// Copies the ids to `arrays.topk_idx`. Returns the ids with -1 for experts of masked ranks.
  [[nodiscard]] std::span<const std::int64_t> read_routing(const const_tensor& topk_idx,
                                                           std::size_t tokens, rank_mask masked,
                                                           low_latency_arrays& arrays) {
    // If there are more tokens than the arrays have room for, the exchange refuses them on all
    // ranks.
    const std::size_t kept = std::min(tokens * shape().top_k, arrays.topk_idx.size());
    for_each_id(topk_idx, kept, [&](std::size_t i, std::int64_t id) { arrays.topk_idx[i] = id; });
    if (tokens * shape().top_k > kept) return {arrays.topk_idx};
    const auto is_masked = [&](std::int64_t id) {
      return id >= 0 && id < static_cast<std::int64_t>(shape().experts) &&
             masked[moe_.placement().owner(static_cast<std::size_t>(id)).index()] != 0;
    };
    std::transform(arrays.topk_idx.begin(),
                   arrays.topk_idx.begin() + static_cast<std::ptrdiff_t>(kept),
                   arrays.routed.begin(), [&](std::int64_t id) {
                     return !masked.empty() && is_masked(id) ? std::int64_t{-1} : id_or_none(id);
                   });
    return std::span{arrays.routed}.first(kept);
  }

  void publish_arrays(batch& this_batch) override {
    low_latency_arrays& arrays = this_batch.arrays;
    const std::size_t ranks = comm_.size();
    const std::size_t capacity = rows_per_expert(this_batch);
    for (std::size_t e = 0; e < local_experts_; ++e) {
      const auto& rows = this_batch.rows->experts()[e];
      const std::size_t count = rows.count();
      arrays.recv_count[e] = static_cast<std::int32_t>(count);
      write_layout_range(rows, !moe_.relay().relays,
                         std::span{arrays.layout_range}.subspan(e * ranks, ranks));
      std::int32_t* const src_info = arrays.src_info.get() + e * capacity;
      for (std::size_t i = 0; i < count; ++i)
        src_info[i] = static_cast<std::int32_t>(rows.origin(i).token);
      if (shape().weighted)
        write_weights(rows, shape().top_k, arrays.weights.get() + e * capacity,
                      arrays.source_ranks.get() + e * capacity);
      const std::size_t scale_bytes = scale_words_ * sizeof(std::uint32_t);
      to_column_major(rows.template scales<std::byte>().data(), count, scale_words_,
                      arrays.scales.data() + e * scale_bytes * capacity, capacity);
      if (arrays.received) arrays.received.template as<std::int32_t>()[e] += arrays.recv_count[e];
    }
  }

  /// Returns views of the results, whose values arrive later.
  [[nodiscard]] low_latency_dispatch_result result(batch& this_batch) {
    const std::size_t rows = rows_per_expert(this_batch);
    low_latency_arrays& arrays = this_batch.arrays;
    low_latency_dispatch_result made;
    made.recv_x = {moe_.columns(this_batch.ticket).rows().data(),
                   dtype_of<typename Codec::element>,
                   {local_experts_, rows, shape().hidden}};
    if (scale_words_ != 0)
      made.recv_x_scales = {
          arrays.scales.data(),
          shape().format == wire_format::fp8_ue8m0 ? dtype::int32 : dtype::float32,
          {local_experts_, rows, scale_words_},
          {rows * scale_words_, 1, rows}};
    made.recv_count = view(arrays.recv_count, {local_experts_});
    if (shape().weighted) {
      made.recv_topk_weights = {arrays.weights.get(), dtype::float32, {local_experts_, rows}};
      made.recv_rank_info = {arrays.source_ranks.get(), dtype::int32, {local_experts_, rows}};
    }
    made.handle = {{arrays.src_info.get(), dtype::int32, {local_experts_, rows}},
                   view(arrays.layout_range, {local_experts_, comm_.size()}),
                   arrays.bound,
                   shape().hidden,
                   shape().experts,
                   {this, this_batch.number}};
    return made;
  }

  // --- combine -----------------------------------------------------------------------------------

  /// Returns whether slot `i` of a batch names an expert to which nothing was sent, or whose rank
  /// has gone since.
  [[nodiscard]] bool is_lost(const batch& this_batch, std::size_t i) const noexcept {
    const std::int64_t id = this_batch.arrays.topk_idx[i];
    return id >= 0 &&
           (this_batch.arrays.routed[i] == -1 ||
            !comm_.view().contains(moe_.placement().owner(static_cast<std::size_t>(id))));
  }
  /// Requires that `topk_idx` equals that of the dispatch. Slots of ranks that are masked or gone
  /// may be -1 instead.
  /// Throws: `error` invalid_argument.
  void require_same_routing(const argument& what, const batch& this_batch,
                            const const_tensor& topk_idx) const {
    require_form(what, topk_idx,
                 {{dtype::int64, dtype::int32}, {this_batch.tokens, shape().top_k}});
    for_each_id(topk_idx, this_batch.tokens * shape().top_k, [&](std::size_t i, std::int64_t id) {
      if (id != this_batch.arrays.topk_idx[i] && (id != -1 || !is_lost(this_batch, i)))
        what.refuse(errc::invalid_argument, "has ", id, " for token ", i / shape().top_k, ", slot ",
                    i % shape().top_k, ", expected ", this_batch.arrays.topk_idx[i],
                    " as low_latency_dispatch was given");
    });
  }

  /// Returns the tensor of all outputs.
  /// Throws: `error` invalid_argument without `zero_copy`.
  [[nodiscard]] tensor outputs_of(const argument& what, const batch& this_batch) const {
    what.require(zero_copy_,
                 "is of a buffer whose outputs lie at their home ranks, expected one made with "
                 "buffer_options{.zero_copy = true}");
    return {this_batch.rows->columns().outputs().data(),
            dtype::bfloat16,
            {local_experts_, rows_per_expert(this_batch), shape().hidden}};
  }
  /// Checks the arguments of a combine that depend on its batch.
  /// Throws: `error` invalid_argument.
  void require_fitting(const batch& this_batch, const low_latency_combine_args& args) const {
    constexpr std::string_view call = "low_latency_combine";
    require_same_routing({call, "topk_idx"}, this_batch, args.topk_idx);
    const std::size_t tokens = this_batch.tokens;
    require_form({call, "topk_weights"}, args.topk_weights,
                 {{dtype::float32}, {tokens, shape().top_k}});
    require_form_if_given({call, "out"}, args.out, {{dtype::bfloat16}, {tokens, shape().hidden}});
    if (!args.zero_copy) return;
    const argument x{call, "x"};
    x.require(
        args.x.data() == outputs_of({call, "zero_copy"}, this_batch).data() && args.x.contiguous(),
        "is elsewhere than the buffer that get_next_low_latency_combine_buffer gave for "
        "this handle, expected that with zero_copy");
  }

  /// Copies each row from the caller's tensor to the place where its home rank reads it.
  void place_outputs(batch& this_batch, const low_latency_combine_args& args) {
    const auto for_each_output = [&](auto&& take) {
      const auto* const outputs = args.x.template as<bf16>();
      for (std::size_t e = 0; e < local_experts_; ++e) {
        const auto& rows = this_batch.rows->experts()[e];
        for (std::size_t i = 0; i < rows.count(); ++i)
          take(rows, i, outputs + e * args.x.stride(0) + i * args.x.stride(1));
      }
    };
    if (args.use_logfmt)
      return for_each_output([&](const auto& rows, std::size_t i, const bf16* values) {
        rows.encode_output(i, {values, shape().hidden});
      });
    this->copy_outputs(this_batch, this_batch.rows->rows(),
                       delivery_of(args.async_finish, args.return_recv_hook), for_each_output);
  }

  bool zero_copy_;
  std::size_t scale_words_;
  std::size_t local_experts_;
  std::vector<float> no_weights_;
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/channel.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_channel.hpp>
#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/detail/token_scales.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The `Mode` of `channel` for expanded calls: a row per (token, expert), without unused room
/// between rows.
struct expanded_mode {
  using calls = expanded_channel;
  using layout = moe::compact;
  using arrays = expanded_arrays;
  static constexpr std::string_view prefix = "";
  static constexpr std::string_view kept = "the arrays of expanded calls";
  static constexpr bool weights_return = true;
};

/// The channel of expanded calls: an exchange of the compact layout. Each row brings the weights of
/// all slots of its token.
template <transport Transport, token_codec Codec>
class expanded_exchange final : public channel<expanded_mode, Transport, Codec> {
  using base = channel<expanded_mode, Transport, Codec>;
  using base::agreement_;
  using base::comm_;
  using base::moe_;
  using typename base::batch;
  using typename base::token;

 public:
  using base::shape;

  /// Makes the exchange and the arrays. Collective, as the exchange's constructor.
  expanded_exchange(communicator<Transport>& comm, call_agreement& agreement,
                    const expanded_shape& key, const elastic_options& options, deadline until)
      : base{comm,
             agreement,
             key,
             {.experts = key.experts,
              .hidden = key.hidden,
              .top_k = key.top_k,
              .max_tokens = options.num_max_tokens_per_rank,
              .in_flight = options.in_flight,
              .outputs = moe::outputs_at::home,
              .attachments = {key.scale_bytes, key.weighted ? key.top_k * sizeof(float) : 0},
              .output_attachment = key.weighted ? sizeof(float) : 0,
              .stream_from = options.stream_from},
             {.alignment = key.alignment, .zero_gaps = key.zero_padding},
             until,
             [&](const auto& moe) {
               return expanded_arrays{key, comm.size(), options.num_max_tokens_per_rank,
                                      moe.placement().count(comm.rank()), moe.map().row_capacity};
             }},
        local_experts_{moe_.placement().count(comm.rank())},
        ones_(options.num_max_tokens_per_rank * key.top_k, 1.0F) {}

  elastic_dispatch_result dispatch(const elastic_dispatch_args& args) override {
    batch& this_batch = this->next_batch_or_refuse(args.until);
    const std::size_t tokens = args.x.size(0);
    // If there are more tokens than the arrays have room for, the exchange refuses them on all
    // ranks.
    std::vector<std::int64_t>& ids = this_batch.arrays.ids;
    const std::size_t slots = std::min(tokens * shape().top_k, ids.size());
    for_each_id(args.topk_idx, slots,
                [&](std::size_t i, std::int64_t id) { ids[i] = id_or_none(id); });
    // Both halves of the dispatch share one deadline.
    auto options = this->begin(this_batch, tokens, args.until.value_or(comm_.default_deadline()));
    if (shape().scale_bytes != 0)
      options.attachments[0] =
          side_by_side(args.x_scales, this_batch.arrays.scales.get(), moe_.config().max_tokens);
    if (shape().weighted) options.attachments[1] = std::as_bytes(args.topk_weights.values<float>());
    // Combine adds rows up unweighted, so that each row has the weight 1.
    this->send_rows(this_batch, {static_cast<const token*>(args.x.data()), args.x.elements()},
                    {std::span<const std::int64_t>{ids}.first(slots),
                     std::span<const float>{ones_}.first(slots)},
                    options);
    this->receive_rows(this_batch);
    return result(this_batch, args);
  }

  elastic_combine_result combine(const elastic_combine_args& args) override {
    batch& this_batch = agreement_.or_refuse(args.until, [&]() -> batch& { return checked(args); });
    this_batch.until = args.until;
    this_batch.bias = args.bias;
    this_batch.attached = static_cast<bool>(args.topk_weights);
    this->begin_combine(this_batch);
    place_outputs(this_batch, args);
    this_batch.out = {
        this_batch.arrays.combined.get(), dtype::bfloat16, {this_batch.tokens, shape().hidden}};
    elastic_combine_result made;
    made.combined_x = this_batch.out;
    if (this_batch.attached)
      made.combined_topk_weights = {this_batch.arrays.combined_weights.get(),
                                    dtype::float32,
                                    {this_batch.tokens, shape().top_k}};
    return this->send_outputs(this_batch, std::move(made),
                              delivery_of(args.async_with_compute_stream));
  }

 private:
  /// Checks the arguments of a combine. Returns its batch.
  [[nodiscard]] batch& checked(const elastic_combine_args& args) {
    constexpr std::string_view call = "combine";
    batch& this_batch = this->slots_.received({call, "handle"}, args.handle.batch.number());
    const std::size_t rows = rows_and_gaps(this_batch);
    require_form({call, "x"}, args.x, {{dtype::bfloat16}, {rows, shape().hidden}, false});
    require_form_if_given({call, "topk_weights"}, args.topk_weights, {{dtype::float32}, {rows}});
    const argument weights{call, "topk_weights"};
    weights.require(!args.topk_weights || shape().weighted,
                    "was given, expected none, as dispatch had none");
    for (const const_tensor& bias : args.bias)
      require_form_if_given({call, "bias"}, bias,
                            {{dtype::bfloat16}, {this_batch.tokens, shape().hidden}});
    return this_batch;
  }
  /// Returns the number of received rows and of gaps between experts.
  [[nodiscard]] std::size_t rows_and_gaps(const batch& this_batch) const noexcept {
    return this_batch.rows->all_rows().size_bytes() / Codec::row_bytes(shape().hidden);
  }
  /// Calls `visit(row, rows, i)` for each received row: `row` is its index among all rows and gaps,
  /// `rows` the block of its expert, `i` its index in that block.
  template <class Visit>
  static void for_each_row(const batch& this_batch, Visit&& visit) {
    for (const auto& rows : this_batch.rows->experts())
      for (std::size_t i = 0; i < rows.count(); ++i) visit(rows.first_row() + i, rows, i);
  }

  [[nodiscard]] elastic_dispatch_result result(batch& this_batch,
                                               const elastic_dispatch_args& args) {
    const std::size_t all = rows_and_gaps(this_batch);
    expanded_arrays& arrays = this_batch.arrays;
    const moe::batch_columns<Codec> columns = this_batch.rows->columns();
    for (std::size_t e = 0; e < local_experts_; ++e) {
      const auto& rows = this_batch.rows->experts()[e];
      arrays.counts[e] = static_cast<std::int32_t>(rows.count());
      arrays.ends[e] = static_cast<std::int32_t>(rows.first_row() + rows.count());
      arrays.aligned[e] = static_cast<std::int32_t>(rows.padded_count());
      if (args.cumulative_local_expert_recv_stats)
        args.cumulative_local_expert_recv_stats.as<std::int32_t>()[e] += arrays.counts[e];
    }
    arrays.sources.fill([&](auto&& visit) {
      for_each_row(this_batch, [&](std::size_t row, const auto& rows, std::size_t i) {
        visit(row, rows.origin(i));
      });
    });
    elastic_dispatch_result made;
    made.recv_x = {columns.rows().data(), args.x.type(), {all, shape().hidden}};
    if (args.x_scales)
      made.recv_x_scales = scales_of(columns.attachment(0).data(), args.x_scales, all);
    if (shape().weighted) made.recv_topk_weights = weights_of_rows(this_batch, all);
    made.handle = {.num_experts = shape().experts,
                   .expert_alignment = shape().alignment,
                   .num_max_tokens_per_rank = moe_.config().max_tokens,
                   .num_recv_tokens = arrays.sources.count(),
                   .num_expanded_tokens = all,
                   .psum_num_recv_tokens_per_scaleup_rank = {arrays.sources.ends(), {comm_.size()}},
                   .psum_num_recv_tokens_per_expert = view(arrays.ends, {local_experts_}),
                   .num_unaligned_recv_tokens_per_expert = view(arrays.counts, {local_experts_}),
                   .num_recv_tokens_per_expert_list = arrays.aligned,
                   .recv_src_metadata = {arrays.sources.table(),
                                         dtype::int32,
                                         {arrays.sources.count(), arrays.sources.width()}},
                   .batch = {this, this_batch.number}};
    return made;
  }

  [[nodiscard]] tensor weights_of_rows(batch& this_batch, std::size_t all) {
    if (shape().zero_padding) std::fill_n(this_batch.arrays.weights.get(), all, 0.0F);
    for_each_row(this_batch, [&](std::size_t row, const auto& rows, std::size_t i) {
      const auto slots = rows.template attachment<float>(1);
      this_batch.arrays.weights[row] = slots[i * shape().top_k + rows.origin(i).slot];
    });
    return {this_batch.arrays.weights.get(), dtype::float32, {all}};
  }

  void place_outputs(batch& this_batch, const elastic_combine_args& args) {
    const auto* const x = args.x.template as<bf16>();
    const std::span<const float> weights =
        this_batch.attached ? args.topk_weights.template values<float>() : std::span<const float>{};
    this->copy_outputs(this_batch.rows->rows(), [&](auto&& copy) {
      for_each_row(this_batch, [&](std::size_t row, const auto& rows, std::size_t i) {
        copy(rows.output(i), x + row * args.x.stride(0));
        if (this_batch.attached) rows.template output_attachment<float>(i).front() = weights[row];
      });
    });
  }

  void publish_weights(batch& this_batch) override {
    const std::size_t top_k = shape().top_k;
    expanded_arrays& arrays = this_batch.arrays;
    for (std::size_t slot = 0; slot < this_batch.tokens * top_k; ++slot) {
      arrays.combined_weights[slot] = 0;
      if (arrays.ids[slot] >= 0)
        arrays.combined_weights[slot] =
            moe_.template returned_attachment<float>(this_batch.ticket, slot / top_k, slot % top_k)
                .front();
    }
  }

  std::size_t local_experts_;
  std::vector<float> ones_;
};

}  // namespace peerbus::deep_ep::detail

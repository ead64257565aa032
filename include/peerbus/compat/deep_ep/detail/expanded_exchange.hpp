// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/channel.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_channel.hpp>
#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The expanded mode as `channel` takes it: a row per (token, expert), without room to spare.
struct expanded_mode {
  using calls = expanded_channel;
  using layout = moe::compact;
  using arrays = expanded_arrays;
  static constexpr std::string_view prefix = "";
  static constexpr std::string_view kept = "the arrays of expanded calls";
  static constexpr bool weights_return = true;
};

/// Expanded calls over an exchange of the compact layout, whose rows bring the weights of all slots
/// of their token with them.
template <transport Transport, token_codec Codec>
class expanded_exchange final : public channel<expanded_mode, Transport, Codec> {
  using base = channel<expanded_mode, Transport, Codec>;
  using base::comm_;
  using base::moe_;
  using typename base::batch;
  using typename base::token;

 public:
  using base::shape;

  /// Collective, as the exchange's constructor.
  expanded_exchange(communicator<Transport>& comm, const expanded_shape& key,
                    const elastic_options& options, deadline until)
      : base{comm,
             key,
             {.experts = key.experts,
              .hidden = key.hidden,
              .top_k = key.top_k,
              .max_tokens = options.num_max_tokens_per_rank,
              .in_flight = options.in_flight,
              .outputs = moe::outputs_at::home,
              .attachments = {key.scale_bytes, key.weighted ? key.top_k * sizeof(float) : 0},
              .output_attachment = key.weighted ? sizeof(float) : 0},
             {.alignment = key.alignment, .zero_gaps = key.zero_padding},
             until,
             [&](const auto& moe) {
               return expanded_arrays{key, comm.size(), options.num_max_tokens_per_rank,
                                      moe.placement().count(comm.rank()), moe.map().row_capacity};
             }},
        local_experts_{moe_.placement().count(comm.rank())},
        ones_(options.num_max_tokens_per_rank * key.top_k, 1.0F) {}

  elastic_dispatch_result dispatch(const elastic_dispatch_args& args) override {
    batch& one = this->next_batch();
    const std::size_t tokens = args.x.size(0);
    // More tokens than there is room for are for the exchange to refuse, with all ranks.
    std::vector<std::int64_t>& ids = one.arrays.ids;
    const std::size_t slots = std::min(tokens * shape().top_k, ids.size());
    for_each_id(args.topk_idx, slots, [&](std::size_t i, std::int64_t id) { ids[i] = id; });
    // One deadline for both halves.
    auto with = this->begin(one, tokens, args.until.value_or(comm_.default_deadline()));
    if (args.x_scales)
      with.attachments[0] = {static_cast<const std::byte*>(args.x_scales.data()),
                             tokens * shape().scale_bytes};
    if (shape().weighted) with.attachments[1] = std::as_bytes(args.topk_weights.values<float>());
    // Combine adds rows up unweighted.
    this->send_rows(one, {static_cast<const token*>(args.x.data()), args.x.elements()},
                    {std::span<const std::int64_t>{ids}.first(slots),
                     std::span<const float>{ones_}.first(slots)},
                    with);
    this->receive_rows(one);
    return result(one, args);
  }

  elastic_combine_result combine(const elastic_combine_args& args) override {
    constexpr std::string_view call = "combine";
    batch& one = this->slots_.received({call, "handle"}, args.handle.batch.number());
    const std::size_t rows = rows_and_gaps(one);
    require_form({call, "x"}, args.x, {{dtype::bfloat16}, {rows, shape().hidden}, false});
    require_form_if_given({call, "topk_weights"}, args.topk_weights, {{dtype::float32}, {rows}});
    const argument weights{call, "topk_weights"};
    weights.require(!args.topk_weights || shape().weighted,
                    "was given, expected none, as dispatch had none");
    for (const const_tensor& bias : args.bias)
      require_form_if_given({call, "bias"}, bias,
                            {{dtype::bfloat16}, {one.tokens, shape().hidden}});
    one.until = args.until;
    one.bias = args.bias;
    one.weighted = static_cast<bool>(args.topk_weights);
    place_outputs(one, args);
    one.out = {one.arrays.combined.get(), dtype::bfloat16, {one.tokens, shape().hidden}};
    elastic_combine_result made;
    made.combined_x = one.out;
    if (one.weighted)
      made.combined_topk_weights = {
          one.arrays.combined_weights.get(), dtype::float32, {one.tokens, shape().top_k}};
    return this->send_outputs(one, std::move(made),
                              args.async_with_compute_stream ? delivery::event : delivery::now);
  }

 private:
  [[nodiscard]] std::size_t rows_and_gaps(const batch& one) const noexcept {
    return one.rows->all_rows().size_bytes() / Codec::row_bytes(shape().hidden);
  }
  /// Calls `visit(number among all rows, rows of its expert, number among those)`.
  template <class Visit>
  static void for_each_row(const batch& one, Visit&& visit) {
    for (const auto& rows : one.rows->experts())
      for (std::size_t i = 0; i < rows.count(); ++i) visit(rows.first_row() + i, rows, i);
  }

  [[nodiscard]] elastic_dispatch_result result(batch& one, const elastic_dispatch_args& args) {
    const std::size_t all = rows_and_gaps(one);
    expanded_arrays& arrays = one.arrays;
    const moe::batch_columns<Codec> columns = one.rows->columns();
    for (std::size_t e = 0; e < local_experts_; ++e) {
      const auto& rows = one.rows->experts()[e];
      arrays.counts[e] = static_cast<std::int32_t>(rows.count());
      arrays.ends[e] = static_cast<std::int32_t>(rows.first_row() + rows.count());
      arrays.aligned[e] = static_cast<std::int32_t>(rows.padded_count());
      if (args.cumulative_local_expert_recv_stats)
        args.cumulative_local_expert_recv_stats.as<std::int32_t>()[e] += arrays.counts[e];
    }
    arrays.sources.fill([&](auto&& visit) {
      for_each_row(one, [&](std::size_t row, const auto& rows, std::size_t i) {
        visit(row, rows.origin(i));
      });
    });
    elastic_dispatch_result made;
    made.recv_x = {columns.rows().data(), args.x.type(), {all, shape().hidden}};
    if (args.x_scales)
      made.recv_x_scales = {
          columns.attachment(0).data(), args.x_scales.type(), {all, args.x_scales.size(1)}};
    if (shape().weighted) made.recv_topk_weights = weights_of_rows(one, all);
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
                   .batch = {this, one.number}};
    return made;
  }

  [[nodiscard]] tensor weights_of_rows(batch& one, std::size_t all) {
    if (shape().zero_padding) std::fill_n(one.arrays.weights.get(), all, 0.0F);
    for_each_row(one, [&](std::size_t row, const auto& rows, std::size_t i) {
      const auto slots = rows.template attachment<float>(1);
      one.arrays.weights[row] = slots[i * shape().top_k + rows.origin(i).slot];
    });
    return {one.arrays.weights.get(), dtype::float32, {all}};
  }

  void place_outputs(batch& one, const elastic_combine_args& args) {
    const auto* const x = args.x.template as<bf16>();
    const std::span<const float> weights =
        one.weighted ? args.topk_weights.template values<float>() : std::span<const float>{};
    for_each_row(one, [&](std::size_t row, const auto& rows, std::size_t i) {
      std::memcpy(rows.output(i).data(), x + row * args.x.stride(0), shape().hidden * sizeof(bf16));
      if (one.weighted) rows.template output_attachment<float>(i).front() = weights[row];
    });
  }

  void publish_weights(batch& one) override {
    const std::size_t top_k = shape().top_k;
    expanded_arrays& arrays = one.arrays;
    for (std::size_t slot = 0; slot < one.tokens * top_k; ++slot) {
      arrays.combined_weights[slot] = 0;
      if (arrays.ids[slot] >= 0)
        arrays.combined_weights[slot] =
            moe_.template returned_attachment<float>(one.ticket, slot / top_k, slot % top_k)
                .front();
    }
  }

  std::size_t local_experts_;
  std::vector<float> ones_;
};

}  // namespace peerbus::deep_ep::detail

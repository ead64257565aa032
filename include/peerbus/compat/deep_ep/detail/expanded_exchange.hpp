// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/channel.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_channel.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_routing.hpp>
#include <peerbus/compat/deep_ep/detail/one_plan.hpp>
#include <peerbus/compat/deep_ep/detail/token_scales.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/call_options.hpp>
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
  using base::comm_;
  using base::moe_;
  using typename base::batch;
  using typename base::token;

 public:
  using base::shape;

  /// Makes the exchange and the arrays. Collective.
  /// Throws: as the exchange's constructor.
  expanded_exchange(communicator<Transport>& comm, call_agreement& agreement,
                    const expanded_shape& key, const elastic_options& options, deadline until)
      : base{comm,
             agreement,
             key,
             {.experts = key.experts,
              .hidden = key.hidden,
              .top_k = key.top_k,
              .max_tokens = key.max_tokens,
              .in_flight = options.in_flight,
              .outputs = moe::outputs_at::home,
              .attachments = {key.scale_bytes, key.weighted ? key.top_k * sizeof(float) : 0},
              .output_attachment = sizeof(float),
              .note_bytes = sizeof(std::uint64_t),
              .stream_from = options.stream_from,
              .between = options.between,
              .relay = options.relay},
             {.alignment = key.alignment, .zero_gaps = key.zero_padding},
             options.log,
             until,
             [&](const auto& moe) {
               return expanded_arrays{key, comm.size(), moe.placement().count(comm.rank()),
                                      moe.map().row_capacity};
             }},
        local_experts_{moe_.placement().count(comm.rank())},
        ones_(key.max_tokens * key.top_k, 1.0F) {}

  elastic_dispatch_result dispatch(const elastic_dispatch_args& args,
                                   const std::shared_ptr<expanded_routing>& routing,
                                   bool fresh) override {
    batch& this_batch = this->next_batch_or_refuse(args.until);
    auto options =
        this->begin(this_batch, args.x.size(0), until_or_default(args.until), {}, routing->bound);
    if (shape().scale_bytes != 0)
      options.attachments[0] = side_by_side(args.x_scales, this_batch.arrays.scales.get());
    if (shape().weighted) options.attachments[1] = std::as_bytes(args.topk_weights.values<float>());
    const std::span tokens{static_cast<const token*>(args.x.data()), args.x.elements()};
    exchange_rows(this_batch, tokens, routing, fresh ? 0 : routing->number, options);
    if (fresh) {
      routing->most_tokens = routing->bound == 0 ? shape().max_tokens : routing->bound;
      routing->rows =
          routing->knows_counts ? rows_and_gaps(this_batch) : most_rows(routing->most_tokens);
    }
    return result(this_batch, args, routing);
  }

  void prepare(const std::shared_ptr<expanded_routing>& routing,
               const std::optional<deadline>& until) override {
    batch& this_batch = this->next_batch_or_refuse(until);
    const auto options = this->begin(this_batch, routing->tokens, until_or_default(until));
    // The values of these tokens are not read. The span only states how many tokens there are.
    const std::span<const token> tokens{
        reinterpret_cast<const token*>(this_batch.arrays.combined.get()),
        routing->tokens * shape().hidden};
    exchange_rows(this_batch, tokens, routing, routing->number, options);
  }

  elastic_combine_result combine(const elastic_combine_args& args) override {
    batch& this_batch = this->slots_.at(args.handle.routing->latest.number());
    this_batch.until = args.until;
    this_batch.bias = args.bias;
    this_batch.attached = static_cast<bool>(args.topk_weights);
    this->begin_combine(this_batch);
    this_batch.out = {
        this_batch.arrays.combined.get(), dtype::bfloat16, {this_batch.tokens, shape().hidden}};
    const delivery when = delivery_of(args.async_with_compute_stream);
    place_outputs(this_batch, args, when);
    elastic_combine_result made;
    made.combined_x = this_batch.out;
    if (this_batch.attached)
      made.combined_topk_weights = {this_batch.arrays.combined_weights.get(),
                                    dtype::float32,
                                    {this_batch.tokens, shape().top_k}};
    return this->send_outputs(this_batch, std::move(made), when);
  }

 private:
  /// Returns the deadline that both halves of a dispatch share.
  [[nodiscard]] deadline until_or_default(const std::optional<deadline>& until) const noexcept {
    return until.value_or(comm_.default_deadline());
  }

  /// Sends and receives the rows of a dispatch. `plan` is the number of the routing that a handle
  /// gave, or 0.
  void exchange_rows(batch& this_batch, std::span<const token> tokens,
                     const std::shared_ptr<expanded_routing>& routing, std::uint64_t plan,
                     moe::dispatch_options options) {
    this_batch.arrays.routing = routing;
    options.note = std::as_bytes(std::span{&plan, 1});
    // Combine adds rows up unweighted, so that each row has the weight 1.
    this->send_rows(this_batch, tokens,
                    {std::span<const std::int64_t>{routing->ids},
                     std::span<const float>{ones_}.first(routing->ids.size())},
                    options);
    this->receive_rows(this_batch);
    require_one_plan(moe_, this_batch.ticket, comm_.ranks());
    this_batch.plan = routing->number;
    routing->latest = {this, this_batch.number};
  }
  /// Returns the number of received rows plus the number of rows in gaps between experts.
  [[nodiscard]] std::size_t rows_and_gaps(const batch& this_batch) const noexcept {
    const auto& experts = this_batch.rows->experts();
    return experts.empty() ? 0 : experts.back().first_row() + experts.back().padded_count();
  }
  /// Returns the largest number of rows and gaps that a dispatch of at most `most_tokens` tokens
  /// per rank may bring, by DeepEP's formula.
  [[nodiscard]] std::size_t most_rows(std::size_t most_tokens) const noexcept {
    const std::size_t rows = comm_.size() * most_tokens * std::min(shape().top_k, local_experts_);
    return align_up(rows + (shape().alignment - 1) * local_experts_, shape().alignment);
  }
  /// Calls `visit(row, rows, i)` for each received row: `row` is its index among all rows and gaps,
  /// `rows` the block of its expert, `i` its index in that block.
  template <class Visit>
  static void for_each_row(const batch& this_batch, Visit&& visit) {
    for (const auto& rows : this_batch.rows->experts())
      for (std::size_t i = 0; i < rows.count(); ++i) visit(rows.first_row() + i, rows, i);
  }

  [[nodiscard]] elastic_dispatch_result result(batch& this_batch, const elastic_dispatch_args& args,
                                               const std::shared_ptr<expanded_routing>& routing) {
    expanded_arrays& arrays = this_batch.arrays;
    count_rows(this_batch, args.cumulative_local_expert_recv_stats);
    arrays.sources.fill(routing->most_tokens, [&](auto&& visit) {
      for_each_row(this_batch, [&](std::size_t row, const auto& rows, std::size_t i) {
        visit(row, rows.origin(i));
      });
    });
    if (!routing->knows_counts) arrays.sources.clear_rest();
    const std::size_t rows = routing->rows;
    const std::size_t received =
        routing->knows_counts ? arrays.sources.count() : arrays.sources.capacity();
    const moe::batch_columns<Codec> columns = this_batch.rows->columns();
    elastic_dispatch_result made;
    made.recv_x = {columns.rows().data(), args.x.type(), {rows, shape().hidden}};
    if (args.x_scales)
      made.recv_x_scales = scales_of(columns.attachment(0).data(), args.x_scales, rows);
    if (shape().weighted) made.recv_topk_weights = weights_of_rows(this_batch, rows);
    made.handle = {.num_experts = shape().experts,
                   .expert_alignment = shape().alignment,
                   .num_max_tokens_per_rank = routing->most_tokens,
                   .num_recv_tokens = received,
                   .num_expanded_tokens = rows,
                   .psum_num_recv_tokens_per_scaleup_rank = {arrays.sources.ends(), {comm_.size()}},
                   .psum_num_recv_tokens_per_expert = view(arrays.ends, {local_experts_}),
                   .num_unaligned_recv_tokens_per_expert = view(arrays.counts, {local_experts_}),
                   .recv_src_metadata = {arrays.sources.table(),
                                         dtype::int32,
                                         {received, arrays.sources.width()}},
                   .topk_idx = view(std::as_const(routing->ids), {routing->tokens, routing->top_k}),
                   .routing = routing};
    if (routing->knows_counts) made.handle.num_recv_tokens_per_expert_list = arrays.aligned;
    return made;
  }
  /// Fills the counts of the rows of each expert, and adds them to `statistics`, if it is given.
  void count_rows(batch& this_batch, const tensor& statistics) {
    expanded_arrays& arrays = this_batch.arrays;
    for (std::size_t e = 0; e < local_experts_; ++e) {
      const auto& rows = this_batch.rows->experts()[e];
      arrays.counts[e] = static_cast<std::int32_t>(rows.count());
      arrays.ends[e] = static_cast<std::int32_t>(rows.first_row() + rows.count());
      arrays.aligned[e] = static_cast<std::int32_t>(rows.padded_count());
      if (statistics) statistics.as<std::int32_t>()[e] += arrays.counts[e];
    }
  }

  [[nodiscard]] tensor weights_of_rows(batch& this_batch, std::size_t all) {
    if (shape().zero_padding)
      std::fill_n(this_batch.arrays.weights.get(), rows_and_gaps(this_batch), 0.0F);
    for_each_row(this_batch, [&](std::size_t row, const auto& rows, std::size_t i) {
      const auto slots = rows.template attachment<float>(1);
      this_batch.arrays.weights[row] = slots[i * shape().top_k + rows.origin(i).slot];
    });
    return {this_batch.arrays.weights.get(), dtype::float32, {all}};
  }

  void place_outputs(batch& this_batch, const elastic_combine_args& args, delivery when) {
    const auto* const x = args.x.template as<bf16>();
    const std::span<const float> weights =
        this_batch.attached ? args.topk_weights.template values<float>() : std::span<const float>{};
    this->copy_outputs(this_batch, this_batch.rows->rows(), when, [&](auto&& copy) {
      for_each_row(this_batch, [&](std::size_t row, const auto& rows, std::size_t i) {
        copy(rows, i, x + row * args.x.stride(0));
        if (this_batch.attached) rows.template output_attachment<float>(i).front() = weights[row];
      });
    });
  }

  void publish_weights(batch& this_batch) override {
    const std::size_t top_k = shape().top_k;
    expanded_arrays& arrays = this_batch.arrays;
    for (std::size_t slot = 0; slot < this_batch.tokens * top_k; ++slot) {
      arrays.combined_weights[slot] = 0;
      if (arrays.routing->ids[slot] >= 0)
        arrays.combined_weights[slot] =
            moe_.template returned_attachment<float>(this_batch.ticket, slot / top_k, slot % top_k)
                .front();
    }
  }

  std::size_t local_experts_;
  std::vector<float> ones_;
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/batch_slots.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_channel.hpp>
#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/detail/source_metadata.hpp>
#include <peerbus/compat/deep_ep/detail/weights_home.hpp>
#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/make_together.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// Expanded calls over an exchange of the compact layout, whose rows bring the weights of all slots
/// of their token with them.
template <transport Transport, token_codec Codec>
class expanded_exchange final : public expanded_channel {
  using token = token_of<Codec>;

 public:
  /// Collective, as the exchange's constructor.
  expanded_exchange(communicator<Transport>& comm, const expanded_shape& shape,
                    const elastic_options& options, deadline until)
      : expanded_channel{shape},
        comm_{comm},
        max_tokens_{options.num_max_tokens_per_rank},
        moe_{comm,
             {.experts = shape.experts,
              .hidden = shape.hidden,
              .top_k = shape.top_k,
              .max_tokens = max_tokens_,
              .in_flight = options.in_flight,
              .outputs = moe::outputs_at::home,
              .attachments = {shape.scale_bytes, shape.weighted ? shape.top_k * sizeof(float) : 0},
              .output_attachment = shape.weighted ? sizeof(float) : 0},
             {},
             {.alignment = shape.alignment, .zero_gaps = shape.zero_padding},
             until},
        local_experts_{moe_.placement().count(comm.rank())},
        ones_(max_tokens_ * shape.top_k, 1.0F),
        slots_{make_together(comm, "the arrays of expanded calls", until, [&] {
          std::vector<batch> made;
          made.reserve(options.in_flight);
          for (std::size_t i = 0; i < options.in_flight; ++i) made.emplace_back(*this);
          return batch_slots<batch>{"", std::move(made)};
        })} {}

  elastic_dispatch_result dispatch(const elastic_dispatch_args& args) override {
    batch& one = slots_.next();
    const std::size_t tokens = args.x.size(0);
    // More tokens than there is room for are for the exchange to refuse, with all ranks.
    const std::size_t slots = std::min(tokens * shape().top_k, one.ids.size());
    for_each_id(args.topk_idx, slots, [&](std::size_t i, std::int64_t id) { one.ids[i] = id; });
    slots_.begin(one, tokens, args.until);
    auto with = options_of<moe::dispatch_options>(one);
    if (args.x_scales)
      with.attachments[0] = {static_cast<const std::byte*>(args.x_scales.data()),
                             tokens * shape().scale_bytes};
    if (shape().weighted) with.attachments[1] = std::as_bytes(args.topk_weights.values<float>());
    // Combine adds rows up unweighted.
    const std::span<const std::int64_t> ids{one.ids.data(), slots};
    one.rows.emplace(moe_.dispatch({static_cast<const token*>(args.x.data()), args.x.elements()},
                                   {ids, std::span{ones_}.first(slots)}, with));
    one.at = stage::received;
    return result(one, args);
  }

  elastic_combine_result combine(const elastic_combine_args& args) override {
    constexpr std::string_view call = "combine";
    batch& one = slots_.received({call, "handle"}, args.handle.batch.number());
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
    one.at = stage::returning;
    auto with = options_of<moe::publish_options>(one);
    with.attached = one.weighted;
    moe_.combine_send(*one.rows, with);
    elastic_combine_result made;
    made.combined_x = {one.combined.get(), dtype::bfloat16, {one.tokens, shape().hidden}};
    if (one.weighted)
      made.combined_topk_weights = {
          one.combined_weights.get(), dtype::float32, {one.tokens, shape().top_k}};
    if (args.async_with_compute_stream)
      made.event = event_overlap{{this, 2 * one.number + 1}};
    else
      receive_outputs(one);
    return made;
  }

  void receive(std::uint64_t operation) override { receive_outputs(slots_.pending(operation)); }
  [[nodiscard]] bool is_pending(std::uint64_t operation) const noexcept override {
    return slots_.is_pending(operation);
  }

 private:
  struct batch : batch_state {
    explicit batch(const expanded_exchange& of)
        : ids(of.max_tokens_ * of.shape().top_k),
          sources{of.comm_.size(), of.max_tokens_, of.shape().top_k},
          ends(of.local_experts_),
          counts(of.local_experts_),
          aligned(of.local_experts_),
          weights{std::make_unique_for_overwrite<float[]>(
              of.shape().weighted ? of.moe_.map().row_capacity : 0)},
          combined{std::make_unique_for_overwrite<bf16[]>(of.max_tokens_ * of.shape().hidden)},
          combined_weights{std::make_unique_for_overwrite<float[]>(ids.size())} {}

    std::optional<moe::received<Codec>> rows;
    std::vector<std::int64_t> ids;
    source_metadata sources;
    std::vector<std::int32_t> ends;
    std::vector<std::int32_t> counts;
    std::vector<std::int32_t> aligned;
    std::unique_ptr<float[]> weights;
    std::unique_ptr<bf16[]> combined;
    std::unique_ptr<float[]> combined_weights;
    std::array<const_tensor, 2> bias;
    bool weighted = false;
  };

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
    const std::size_t hidden = shape().hidden;
    const std::size_t all = rows_and_gaps(one);
    for (std::size_t e = 0; e < local_experts_; ++e) {
      const auto& rows = one.rows->experts()[e];
      one.counts[e] = static_cast<std::int32_t>(rows.count());
      one.ends[e] = static_cast<std::int32_t>(rows.first_row() + rows.count());
      one.aligned[e] = static_cast<std::int32_t>(rows.padded_count());
      if (args.cumulative_local_expert_recv_stats)
        args.cumulative_local_expert_recv_stats.as<std::int32_t>()[e] += one.counts[e];
    }
    one.sources.fill([&](auto&& visit) {
      for_each_row(one, [&](std::size_t row, const auto& rows, std::size_t i) {
        visit(row, rows.origin(i));
      });
    });
    elastic_dispatch_result made;
    made.recv_x = {one.rows->columns().rows().data(), args.x.type(), {all, hidden}};
    if (args.x_scales)
      made.recv_x_scales = {one.rows->columns().attachment(0).data(),
                            args.x_scales.type(),
                            {all, args.x_scales.size(1)}};
    if (shape().weighted) made.recv_topk_weights = weights_of_rows(one, all);
    made.handle = {.num_experts = shape().experts,
                   .expert_alignment = shape().alignment,
                   .num_max_tokens_per_rank = max_tokens_,
                   .num_recv_tokens = one.sources.count(),
                   .num_expanded_tokens = all,
                   .psum_num_recv_tokens_per_scaleup_rank = {one.sources.ends(), {comm_.size()}},
                   .psum_num_recv_tokens_per_expert = view(one.ends, {local_experts_}),
                   .num_unaligned_recv_tokens_per_expert = view(one.counts, {local_experts_}),
                   .num_recv_tokens_per_expert_list = one.aligned,
                   .recv_src_metadata = {one.sources.table(),
                                         dtype::int32,
                                         {one.sources.count(), one.sources.width()}},
                   .batch = {this, one.number}};
    return made;
  }

  [[nodiscard]] tensor weights_of_rows(batch& one, std::size_t all) {
    if (shape().zero_padding) std::fill_n(one.weights.get(), all, 0.0F);
    for_each_row(one, [&](std::size_t row, const auto& rows, std::size_t i) {
      const auto slots = rows.template attachment<float>(1);
      one.weights[row] = slots[i * shape().top_k + rows.origin(i).slot];
    });
    return {one.weights.get(), dtype::float32, {all}};
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

  void receive_outputs(batch& one) {
    auto with = options_of<moe::sum_options>(one);
    for (std::size_t b = 0; b < one.bias.size(); ++b)
      if (one.bias[b]) with.terms.bias[b] = one.bias[b].template values<bf16>();
    one.at = stage::idle;  // Whatever comes of it.
    moe_.combine_recv(*one.rows, {one.combined.get(), one.tokens * shape().hidden}, with);
    const moe::ticket combined = one.rows->ticket();
    require_weights_from_all_or_none(moe_, combined, comm_.ranks());
    if (!one.weighted) return;
    const std::size_t top_k = shape().top_k;
    for (std::size_t slot = 0; slot < one.tokens * top_k; ++slot)
      one.combined_weights[slot] = one.ids[slot] < 0 ? 0.0F
                                                     : moe_.template returned_attachment<float>(
                                                               combined, slot / top_k, slot % top_k)
                                                           .front();
  }

  communicator<Transport>& comm_;
  std::size_t max_tokens_;
  moe::exchange<Transport, Codec, moe::compact> moe_;
  std::size_t local_experts_;
  std::vector<float> ones_;
  batch_slots<batch> slots_;
};

}  // namespace peerbus::deep_ep::detail

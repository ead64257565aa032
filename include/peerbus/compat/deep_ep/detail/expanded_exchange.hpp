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
#include <peerbus/compat/deep_ep/detail/normal_routing.hpp>
#include <peerbus/compat/deep_ep/detail/source_metadata.hpp>
#include <peerbus/compat/deep_ep/detail/words_home.hpp>
#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// What expanded calls must have in common to share memory.
struct expanded_shape {
  bool bytes = false;  ///< rows of bytes, otherwise of bf16
  std::size_t hidden = 0;
  std::size_t experts = 0;
  std::size_t top_k = 0;
  std::size_t scale_bytes = 0;
  bool weighted = false;
  std::size_t alignment = 1;
  bool zero_padding = false;
  friend bool operator==(const expanded_shape&, const expanded_shape&) = default;
};

/// Expanded calls of one shape, whatever carries them.
class expanded_channel : public pending_operations {
 public:
  explicit expanded_channel(const expanded_shape& shape) : shape_{shape} {}
  [[nodiscard]] const expanded_shape& shape() const noexcept { return shape_; }
  virtual elastic_dispatch_result dispatch(const elastic_dispatch_args& args) = 0;
  virtual elastic_combine_result combine(const elastic_combine_args& args) = 0;

 private:
  expanded_shape shape_;
};

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
              .attachments = {shape.scale_bytes, shape.weighted ? shape.top_k * sizeof(float) : 0}},
             {},
             {.alignment = shape.alignment, .zero_gaps = shape.zero_padding},
             until},
        weights_home_{comm,
                      options.in_flight,
                      max_tokens_ * shape.top_k,
                      shape.weighted ? moe_.map().row_capacity : 0,
                      1,
                      until},
        local_experts_{moe_.placement().count(comm.rank())},
        ones_(max_tokens_ * shape.top_k, 1.0F) {
    for (std::size_t i = 0; i < options.in_flight; ++i)
      batches_.push_back(std::make_unique<batch>(*this));
  }

  elastic_dispatch_result dispatch(const elastic_dispatch_args& args) override {
    batch& one = at(sent_ + 1);
    if (one.at == stage::returning)
      throw error{errc::invalid_argument,
                  "dispatch: the event of an earlier combine was never waited for; expected it "
                  "before its memory is used again"};
    one.number = ++sent_;
    one.at = stage::idle;
    one.until = args.until;
    one.tokens = args.x.size(0);
    one.ids.resize(one.tokens * shape().top_k);
    copy_ids(args.topk_idx, one.ids);
    moe::call_options with = options(one);
    if (args.x_scales)
      with.attachments[0] = {static_cast<const std::byte*>(args.x_scales.data()),
                             one.tokens * shape().scale_bytes};
    if (shape().weighted) with.attachments[1] = std::as_bytes(args.topk_weights.values<float>());
    // Combine adds rows up unweighted.
    const std::span<const float> ones{ones_.data(), std::min(ones_.size(), one.ids.size())};
    const std::span tokens{static_cast<const token*>(args.x.data()), args.x.elements()};
    one.rows.emplace(moe_.dispatch(tokens, {std::span<const std::int64_t>{one.ids}, ones}, with));
    one.at = stage::received;
    return result(one, args);
  }

  elastic_combine_result combine(const elastic_combine_args& args) override {
    constexpr std::string_view call = "combine";
    batch& one = at(args.handle.number);
    const argument handle{call, "handle"};
    handle.require(one.number == args.handle.number && one.at == stage::received, "is of dispatch ",
                   args.handle.number, ", which is combined already or replaced by dispatch ",
                   one.number, "; expected one that is neither");
    const std::size_t rows = args.handle.num_expanded_tokens;
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
    send_outputs(one, args);
    one.at = stage::returning;
    moe_.combine_send(*one.rows, options(one));
    elastic_combine_result made;
    made.combined_x = {one.combined.get(), dtype::bfloat16, {one.tokens, shape().hidden}};
    if (one.weighted)
      made.combined_topk_weights = {
          one.combined_weights.get(), dtype::float32, {one.tokens, shape().top_k}};
    if (args.async_with_compute_stream)
      made.event = event_overlap{{this, one.number}};
    else
      receive_outputs(one);
    return made;
  }

  void receive(std::uint64_t number) override { receive_outputs(at(number)); }
  [[nodiscard]] bool is_pending(std::uint64_t number) const noexcept override {
    const batch& one = *batches_[number % batches_.size()];
    return one.number == number && one.at == stage::returning;
  }

 private:
  enum class stage { idle, received, returning };

  struct batch {
    explicit batch(const expanded_exchange& of)
        : sources{of.comm_.size(), of.max_tokens_, of.shape().top_k},
          ends(of.local_experts_),
          counts(of.local_experts_),
          aligned(of.local_experts_),
          weights{std::make_unique_for_overwrite<float[]>(
              of.shape().weighted ? of.moe_.map().row_capacity : 0)},
          combined{std::make_unique_for_overwrite<bf16[]>(of.max_tokens_ * of.shape().hidden)},
          combined_weights{
              std::make_unique_for_overwrite<float[]>(of.max_tokens_ * of.shape().top_k)} {}

    stage at = stage::idle;
    std::uint64_t number = 0;
    std::size_t tokens = 0;
    std::optional<deadline> until;
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

  [[nodiscard]] batch& at(std::uint64_t number) { return *batches_[number % batches_.size()]; }
  [[nodiscard]] std::size_t set_of(const batch& one) const noexcept {
    return one.number % batches_.size();
  }
  [[nodiscard]] std::byte* part(const batch& one, std::size_t offset) noexcept {
    return moe_.memory().local().data() + offset + set_of(one) * moe_.map().set_bytes;
  }
  [[nodiscard]] static moe::call_options options(const batch& one) {
    moe::call_options with;
    with.until = one.until;
    return with;
  }
  /// Calls `visit(number among all rows, rows of its expert, number among those)`.
  template <class Visit>
  static void for_each_row(const batch& one, Visit&& visit) {
    for (const auto& rows : one.rows->experts())
      for (std::size_t i = 0; i < rows.count(); ++i) visit(rows.first_row() + i, rows, i);
  }

  [[nodiscard]] elastic_dispatch_result result(batch& one, const elastic_dispatch_args& args) {
    const std::size_t hidden = shape().hidden;
    const std::size_t all = one.rows->all_rows().size_bytes() / Codec::row_bytes(hidden);
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
    made.recv_x = {part(one, moe_.map().rows), args.x.type(), {all, hidden}};
    if (args.x_scales)
      made.recv_x_scales = {
          part(one, moe_.map().attachments[0]), args.x_scales.type(), {all, args.x_scales.size(1)}};
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
                   .channel = this,
                   .number = one.number};
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

  void send_outputs(batch& one, const elastic_combine_args& args) {
    const auto* const x = args.x.template as<bf16>();
    const std::span<const float> weights =
        one.weighted ? args.topk_weights.template values<float>() : std::span<const float>{};
    for_each_row(one, [&](std::size_t row, const auto& rows, std::size_t i) {
      std::memcpy(rows.output(i).data(), x + row * args.x.stride(0), shape().hidden * sizeof(bf16));
      if (!one.weighted) return;
      const moe::row_origin from = rows.origin(i);
      const errc code =
          weights_home_.send(set_of(one), row, from.rank, from.token * shape().top_k + from.slot,
                             weights.subspan(row, 1));
      if (code != errc::ok) comm_.fail(code, "combine: a put of topk_weights failed");
    });
  }

  void receive_outputs(batch& one) {
    moe::call_options with = options(one);
    for (std::size_t b = 0; b < one.bias.size(); ++b)
      if (one.bias[b]) with.terms.bias[b] = one.bias[b].template values<bf16>();
    one.at = stage::idle;  // Whatever comes of it.
    moe_.combine_recv(*one.rows, {one.combined.get(), one.tokens * shape().hidden}, with);
    if (!one.weighted) return;
    for (std::size_t slot = 0; slot < one.ids.size(); ++slot)
      one.combined_weights[slot] =
          one.ids[slot] < 0 ? 0.0F : weights_home_.at(set_of(one), slot).front();
  }

  communicator<Transport>& comm_;
  std::size_t max_tokens_;
  moe::exchange<Transport, Codec, moe::compact> moe_;
  words_home<Transport> weights_home_;
  std::size_t local_experts_;
  std::vector<float> ones_;
  std::vector<std::unique_ptr<batch>> batches_;
  std::uint64_t sent_ = 0;
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/channel.hpp>
#include <peerbus/compat/deep_ep/detail/normal_channel.hpp>
#include <peerbus/compat/deep_ep/detail/one_plan.hpp>
#include <peerbus/compat/deep_ep/detail/token_scales.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/received_tokens.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The `Mode` of `channel` for normal calls: a row per (token, rank).
struct normal_mode {
  using calls = normal_channel;
  using layout = moe::rank_major;
  using arrays = normal_arrays;
  static constexpr std::string_view prefix = "";
  static constexpr std::string_view kept = "the arrays of normal calls";
  static constexpr bool weights_return = true;
};

/// The channel of normal calls: an exchange of the rank-major layout.
template <transport Transport, token_codec Codec>
class normal_exchange final : public channel<normal_mode, Transport, Codec> {
  using base = channel<normal_mode, Transport, Codec>;
  using base::comm_;
  using base::moe_;
  using typename base::batch;
  using typename base::token;

 public:
  using base::shape;

  /// Makes the exchange and the arrays. Collective.
  /// Throws: as the exchange's constructor.
  normal_exchange(communicator<Transport>& comm, call_agreement& agreement, const normal_shape& key,
                  const buffer_options& options, deadline until)
      : base{comm,
             agreement,
             key,
             {.experts = key.experts,
              .hidden = key.hidden,
              .top_k = key.top_k,
              .max_tokens = key.max_tokens,
              .in_flight = options.in_flight,
              .outputs = moe::outputs_at::home,
              .attachments = {key.scale_bytes},
              .output_attachment = key.top_k * sizeof(float),
              .note_bytes = note_bytes(key),
              .stream_from = options.stream_from,
              .between = options.between,
              .relay = options.relay,
              .same_bits = options.same_bits},
             {},
             options.log,
             until,
             [&](const auto&) {
               return normal_arrays{key, comm.size(),
                                    placement_of(key, comm.size()).count(comm.rank())};
             }} {}

  dispatch_result dispatch(const dispatch_args& args,
                           const std::shared_ptr<normal_routing>& routing, bool fresh) override {
    batch& this_batch = this->next_batch_or_refuse(args.until);
    auto options =
        this->begin(this_batch, args.x.size(0), until_or_default(args.until), {}, routing->bound);
    if (shape().scale_bytes != 0)
      options.attachments[0] = side_by_side(args.x_scales, this_batch.arrays.scales.get());
    if (shape().listed_experts != 0 && fresh)
      std::ranges::copy(
          std::as_bytes(args.num_tokens_per_expert.values<std::int32_t>()),
          std::as_writable_bytes(std::span{this_batch.arrays.note}.subspan(1)).begin());
    const std::span tokens{static_cast<const token*>(args.x.data()), args.x.elements()};
    exchange_rows(this_batch, tokens, *routing, fresh ? 0 : routing->number, options);
    if (routing->worst != 0) require_room(this_batch, *routing);
    return result(this_batch, args, routing, fresh);
  }

  void prepare(normal_routing& routing, const std::optional<deadline>& until) override {
    batch& this_batch = this->next_batch_or_refuse(until);
    const auto options = this->begin(this_batch, routing.tokens, until_or_default(until));
    // The values of these tokens are not read. The span only states how many tokens there are.
    const std::span<const token> tokens{
        reinterpret_cast<const token*>(this_batch.arrays.combined.get()),
        routing.tokens * shape().hidden};
    exchange_rows(this_batch, tokens, routing, routing.number, options);
  }

  combine_result combine(const combine_args& args, normal_routing& routing) override {
    batch& this_batch = this->slots_.at(routing.latest.number());
    this_batch.until = args.until;
    this->begin_combine(this_batch);
    const auto* const x = args.x.as<bf16>();
    this_batch.out = {
        this_batch.arrays.combined.get(), dtype::bfloat16, {routing.tokens, shape().hidden}};
    const delivery when = delivery_of(args.async_finish);
    this->copy_outputs(this_batch, this_batch.rows->count(), when, [&](auto&& copy) {
      for (std::size_t i = 0; i < this_batch.rows->count(); ++i)
        copy(*this_batch.rows, i, x + i * args.x.stride(0));
    });
    this_batch.bias = args.bias;
    this_batch.attached = static_cast<bool>(args.topk_weights);
    if (this_batch.attached) place_weights(this_batch, args.topk_weights.values<float>());
    combine_result made;
    made.combined_x = this_batch.out;
    if (this_batch.attached)
      made.combined_topk_weights = {this_batch.arrays.combined_weights.get(),
                                    dtype::float32,
                                    {routing.tokens, shape().top_k}};
    return this->send_outputs(this_batch, std::move(made), when);
  }

 private:
  [[nodiscard]] static moe::expert_placement placement_of(const normal_shape& key,
                                                          std::size_t ranks) noexcept {
    return {key.listed_experts == 0 ? key.experts : key.listed_experts, ranks};
  }

  /// Returns the size of a rank's note in bytes, see `normal_arrays::note`.
  [[nodiscard]] static std::size_t note_bytes(const normal_shape& key) noexcept {
    return sizeof(std::uint64_t) + key.listed_experts * sizeof(std::int32_t);
  }

  // --- dispatch ----------------------------------------------------------------------------------

  /// Returns the deadline that both halves of a dispatch share.
  [[nodiscard]] deadline until_or_default(const std::optional<deadline>& until) const noexcept {
    return until.value_or(comm_.default_deadline());
  }

  /// Sends and receives the rows of a dispatch. `plan` is the number of the routing that a handle
  /// gave, or 0.
  void exchange_rows(batch& this_batch, std::span<const token> tokens, normal_routing& routing,
                     std::uint64_t plan, moe::dispatch_options options) {
    this_batch.arrays.note.front() = plan;
    options.note = std::as_bytes(std::span{this_batch.arrays.note}).first(note_bytes(shape()));
    this->send_rows(this_batch, tokens,
                    {std::span<const std::int64_t>{routing.ids}, routing.weights}, options);
    this->receive_rows(this_batch);
    require_one_plan(moe_, this_batch.ticket, comm_.ranks());
    this_batch.plan = routing.number;
    for (std::size_t t = 0; t < routing.tokens; ++t)
      this_batch.arrays.copies[t] = static_cast<std::uint32_t>(routing.ranks_of(t, comm_.size()));
    routing.rows = this_batch.rows->count();
    routing.latest = {this, this_batch.number};
  }
  /// Requires that num_worst_tokens rows are enough for every rank. All ranks know how many rows
  /// each rank receives.
  /// Throws, on all ranks: `error` invalid_argument, or unsupported if the exchange relays.
  void require_room(const batch& this_batch, const normal_routing& routing) {
    const argument worst{"dispatch", "num_worst_tokens"};
    if (moe_.relay().relays)
      worst.refuse(errc::unsupported, "is ", routing.worst,
                   " where relay is used, expected 0, as ranks do not learn what others receive");
    const auto rows = moe_.rows_of_blocks(this_batch.ticket);
    const auto most = std::ranges::max_element(rows);
    worst.require(*most <= routing.worst, "is ", routing.worst, ", expected at least the ", *most,
                  " rows that rank ", most - rows.begin(), " receives");
  }
  [[nodiscard]] dispatch_result result(batch& this_batch, const dispatch_args& args,
                                       const std::shared_ptr<normal_routing>& routing, bool fresh) {
    const moe::batch_columns<Codec> columns = this_batch.rows->columns();
    const std::size_t shown = routing->worst == 0 ? this_batch.rows->count() : routing->worst;
    dispatch_result made;
    made.recv_x = {columns.rows().data(), args.x.type(), {shown, shape().hidden}};
    if (args.x_scales)
      made.recv_x_scales = scales_of(columns.attachment(0).data(), args.x_scales, shown);
    if (!fresh) return made;
    if (routing->by_experts) add_slots(made, this_batch, shown);
    if (routing->worst == 0) made.num_recv_tokens_per_expert_list = listed(this_batch, args);
    made.handle = handle_of(this_batch, routing, shown);
    return made;
  }

  /// Adds the experts and weights of the received tokens to the result.
  void add_slots(dispatch_result& made, batch& this_batch, std::size_t shown) {
    const moe::received_tokens<Codec>& rows = *this_batch.rows;
    const std::size_t top_k = shape().top_k;
    std::int64_t* const wide = this_batch.arrays.recv_topk_idx.get();
    for (std::size_t i = 0; i < rows.count(); ++i)
      std::copy_n(rows.experts(i).begin(), top_k, wide + i * top_k);
    std::fill(wide + rows.count() * top_k, wide + shown * top_k, std::int64_t{-1});
    made.recv_topk_idx = {wide, dtype::int64, {shown, top_k}};
    const auto weights = rows.columns().weights().first(shown * top_k);
    std::ranges::fill(weights.subspan(rows.count() * top_k), 0.0F);
    made.recv_topk_weights = {weights, {shown, top_k}};
  }

  /// Returns num_recv_tokens_per_expert_list.
  [[nodiscard]] std::span<const std::int32_t> listed(batch& this_batch, const dispatch_args& args) {
    std::vector<std::int32_t>& list = this_batch.arrays.per_expert;
    if (shape().listed_experts != 0) {
      add_up_counts(this_batch.ticket, list);
    } else {
      for (std::size_t e = 0; e < list.size(); ++e)
        list[e] = static_cast<std::int32_t>(this_batch.rows->uses_of(e).size());
    }
    for (std::int32_t& count : list)
      count = static_cast<std::int32_t>(
          align_up(static_cast<std::size_t>(count), args.expert_alignment));
    return list;
  }

  /// Adds up the tokens of all ranks for each of this rank's experts, because an exchange that
  /// routes by ranks does not count them.
  void add_up_counts(const moe::ticket& dispatched, std::span<std::int32_t> sums) {
    const std::size_t first = placement_of(shape(), comm_.size()).first(comm_.rank());
    std::ranges::fill(sums, 0);
    for (const rank_id source : comm_.ranks()) {
      const auto counts = moe_.template note<std::int32_t>(dispatched, source).subspan(2);
      for (std::size_t e = 0; e < sums.size(); ++e) sums[e] += counts[first + e];
    }
  }

  /// Fills the arrays of a handle and returns it.
  [[nodiscard]] dispatch_handle handle_of(batch& this_batch,
                                          const std::shared_ptr<normal_routing>& routing,
                                          std::size_t shown) {
    const moe::received_tokens<Codec>& rows = *this_batch.rows;
    normal_arrays& arrays = this_batch.arrays;
    std::ranges::fill(arrays.rank_prefix, 0);
    for (std::size_t i = 0; i < rows.count(); ++i) {
      const moe::row_origin origin = rows.origin(i);
      arrays.recv_src_idx[i] = static_cast<std::int32_t>(origin.token);
      ++arrays.rank_prefix[origin.rank.index()];
    }
    std::inclusive_scan(arrays.rank_prefix.begin(), arrays.rank_prefix.end(),
                        arrays.rank_prefix.begin());
    std::fill(arrays.recv_src_idx.get() + rows.count(), arrays.recv_src_idx.get() + shown, -1);
    return {view(arrays.rank_prefix, {comm_.size()}),
            {arrays.recv_src_idx.get(), dtype::int32, {shown}},
            {routing->in_rank.get(), dtype::boolean, {routing->tokens, comm_.size()}},
            routing->bound == 0 ? shape().max_tokens : routing->bound,
            routing};
  }

  // --- combine -----------------------------------------------------------------------------------

  /// Writes the weights beside the outputs, so that they go home with the outputs.
  static void place_weights(const batch& this_batch, std::span<const float> weights) {
    for (std::size_t i = 0; i < this_batch.rows->count(); ++i) {
      const auto place = this_batch.rows->template output_attachment<float>(i);
      std::ranges::copy(weights.subspan(i * place.size(), place.size()), place.begin());
    }
  }

  void publish_weights(batch& this_batch) override {
    const std::size_t top_k = shape().top_k;
    for (std::size_t t = 0; t < this_batch.tokens; ++t) {
      float* const sums = this_batch.arrays.combined_weights.get() + t * top_k;
      std::fill_n(sums, top_k, 0.0F);
      for (std::size_t copy = 0; copy < this_batch.arrays.copies[t]; ++copy) {
        const auto weights = moe_.template returned_attachment<float>(this_batch.ticket, t, copy);
        for (std::size_t k = 0; k < top_k; ++k) sums[k] += weights[k];
      }
    }
  }
};

}  // namespace peerbus::deep_ep::detail

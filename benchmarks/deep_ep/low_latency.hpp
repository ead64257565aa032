// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>

#include "deep_ep/options.hpp"
#include "deep_ep/pair.hpp"

namespace deep_ep_bench {

namespace deep_ep = peerbus::deep_ep;

/// The low-latency calls, and the padded exchange under them used directly. Experts give back what
/// they are given, so that what comes home is known. They write into memory of their own, from
/// which the timed combine of either side takes it, or, with zero_copy, where combine reads it.
template <class Codec>
class low_latency_subject {
  using exchange = peerbus::moe::exchange<transport, Codec, peerbus::moe::padded>;
  static constexpr bool fp8 = !peerbus::verbatim_codec<Codec>;

 public:
  low_latency_subject(peerbus::communicator<transport>& comm, const options& chosen,
                      const rank_input& input)
      : chosen_{chosen},
        input_{input},
        moe_{comm,
             {.experts = chosen.payload.experts,
              .hidden = input.hidden,
              .top_k = input.top_k,
              .max_tokens = input.count,
              .in_flight = chosen.in_flight,
              .outputs = chosen.zero_copy ? peerbus::moe::outputs_at::expert
                                          : peerbus::moe::outputs_at::home,
              .stream_from = chosen.payload.stream_from()},
             Codec{}},
        buffer_{comm,
                {.in_flight = chosen.in_flight,
                 .zero_copy = chosen.zero_copy,
                 .stream_from = chosen.payload.stream_from()}},
        rows_per_expert_{comm.size() * input.count},
        local_experts_{moe_.placement().count(comm.rank())},
        y_{chosen.zero_copy ? 1 : local_experts_ * rows_per_expert_ * input.hidden},
        out_{input.count * input.hidden},
        values_(input.hidden) {}

  void dispatch(side which) {
    if (which == side::native) {
      rows_.emplace(moe_.dispatch(input_.tokens.all(), {input_.experts, input_.weights}));
      return;
    }
    got_ = buffer_.low_latency_dispatch(
        {.x = deep_ep::view(tokens(), {input_.count, input_.hidden}),
         .topk_idx = deep_ep::view(input_.experts, {input_.count, input_.top_k}),
         .num_max_dispatch_tokens_per_rank = input_.count,
         .num_experts = chosen_.payload.experts,
         .use_fp8 = fp8});
  }

  void run_experts(side which) {
    for (std::size_t e = 0; e < local_experts_; ++e) {
      const std::size_t count =
          which == side::native
              ? rows_->experts()[e].count()
              : static_cast<std::size_t>(got_.recv_count.template at<std::int32_t>(e));
      for (std::size_t i = 0; i < count; ++i) {
        bf16* const y = place(which, e, i);
        if constexpr (fp8) {
          read(which, e, i);
          for (std::size_t h = 0; h < input_.hidden; ++h) y[h] = bf16{values_[h]};
        } else {
          std::memcpy(y,
                      which == side::native ? rows_->experts()[e].row(i).data()
                                            : &got_.recv_x.template at<bf16>(e, i),
                      input_.hidden * sizeof(bf16));
        }
      }
    }
  }

  void combine(side which) {
    if (which == side::native) {
      if (!chosen_.zero_copy)
        for (std::size_t e = 0; e < local_experts_; ++e) {
          const auto& rows = rows_->experts()[e];
          for (std::size_t i = 0; i < rows.count(); ++i)
            std::memcpy(rows.output(i).data(), place(which, e, i), input_.hidden * sizeof(bf16));
        }
      moe_.combine(*rows_, out_.all());
      return;
    }
    const deep_ep::tensor y =
        chosen_.zero_copy
            ? buffer_.get_next_low_latency_combine_buffer(got_.handle)
            : deep_ep::view(y_.all(), {local_experts_, rows_per_expert_, input_.hidden});
    combined_ =
        buffer_
            .low_latency_combine(
                {.x = y,
                 .topk_idx = deep_ep::view(input_.experts, {input_.count, input_.top_k}),
                 .topk_weights = deep_ep::view(input_.weights, {input_.count, input_.top_k}),
                 .handle = got_.handle,
                 .zero_copy = chosen_.zero_copy,
                 .out = deep_ep::view(out_.all(), {input_.count, input_.hidden})})
            .combined_x;
  }

  [[nodiscard]] std::string wrong(side) {
    std::vector<bf16> expected(input_.count * input_.hidden);
    std::vector<std::byte> row(Codec::row_bytes(input_.hidden));
    std::vector<float> scales(Codec::scale_bytes(input_.hidden) / sizeof(float) + 1);
    for (std::size_t t = 0; t < input_.count; ++t) {
      const auto scale_bytes =
          std::as_writable_bytes(std::span{scales}).first(Codec::scale_bytes(input_.hidden));
      Codec{}.encode(input_.tokens.all().subspan(t * input_.hidden, input_.hidden), row,
                     scale_bytes);
      Codec{}.decode(row, scale_bytes, values_);
      for (std::size_t h = 0; h < input_.hidden; ++h) {
        float sum = 0;
        for (std::size_t k = 0; k < input_.top_k; ++k)
          sum = std::fma(input_.weights[t * input_.top_k + k], static_cast<float>(bf16{values_[h]}),
                         sum);
        expected[t * input_.hidden + h] = bf16{sum};
      }
    }
    std::string found = first_difference(out_.all(), expected, input_.hidden);
    std::ranges::fill(out_.all(), bf16::from_bits(0xffff));
    return found;
  }

 private:
  [[nodiscard]] std::span<const bf16> tokens() const { return input_.tokens.all(); }

  [[nodiscard]] bf16* place(side which, std::size_t e, std::size_t i) {
    if (!chosen_.zero_copy) return &y_.all()[(e * rows_per_expert_ + i) * input_.hidden];
    if (which == side::native) return rows_->experts()[e].output(i).data();
    return &buffer_.get_next_low_latency_combine_buffer(got_.handle).template at<bf16>(e, i);
  }

  void read(side which, std::size_t e, std::size_t i) {
    if (which == side::native) return rows_->experts()[e].decode(i, values_);
    for (std::size_t h = 0; h < input_.hidden; ++h)
      values_[h] = static_cast<float>(got_.recv_x.template at<peerbus::fp8_e4m3>(e, i, h)) *
                   got_.recv_x_scales.template at<float>(e, i, h / 128);
  }

  options chosen_;
  const rank_input& input_;
  exchange moe_;
  deep_ep::buffer<transport> buffer_;
  std::size_t rows_per_expert_;
  std::size_t local_experts_;
  bench::pages<bf16> y_;
  bench::pages<bf16> out_;
  std::vector<float> values_;
  std::optional<typename exchange::received_type> rows_;
  deep_ep::low_latency_dispatch_result got_;
  deep_ep::tensor combined_;
};

}  // namespace deep_ep_bench

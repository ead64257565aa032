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

/// The low-latency calls, and the padded exchange under them used directly. Experts give back what
/// they are given, so that what comes home is known. They write into memory of their own, from
/// which the timed combine of either side takes it, or, with zero_copy, where combine reads it.
namespace deep_ep_bench {

namespace deep_ep = peerbus::deep_ep;

/// What both sides read and write.
template <class Codec>
struct low_latency_memory {
  low_latency_memory(std::size_t ranks, const options& chosen, const rank_input& given)
      : input{given},
        rows_per_expert{ranks * given.count},
        y{chosen.zero_copy
              ? 1
              : (chosen.payload.experts + ranks - 1) / ranks * rows_per_expert * given.hidden},
        out{given.count * given.hidden},
        values(given.hidden) {}

  /// Returns what is wrong with `sums`, and spoils `out`. `roundings` as for `first_difference`.
  [[nodiscard]] std::string wrong(std::span<const bf16> sums, int roundings) {
    std::vector<bf16> expected(input.count * input.hidden);
    std::vector<std::byte> row(Codec::row_bytes(input.hidden));
    std::vector<float> scales(Codec::scale_bytes(input.hidden) / sizeof(float) + 1);
    for (std::size_t t = 0; t < input.count; ++t) {
      const auto scale_bytes =
          std::as_writable_bytes(std::span{scales}).first(Codec::scale_bytes(input.hidden));
      Codec{}.encode(input.tokens.all().subspan(t * input.hidden, input.hidden), row, scale_bytes);
      Codec{}.decode(row, scale_bytes, values);
      for (std::size_t h = 0; h < input.hidden; ++h) {
        float sum = 0;
        for (std::size_t k = 0; k < input.top_k; ++k)
          sum = std::fma(input.weights[t * input.top_k + k], static_cast<float>(bf16{values[h]}),
                         sum);
        expected[t * input.hidden + h] = bf16{sum};
      }
    }
    std::string found = first_difference(sums, expected, input.hidden, roundings);
    std::ranges::fill(out.all(), bf16::from_bits(0xffff));
    return found;
  }

  /// Lets every expert give back its rows: `count(e)` of expert e, which `encoded(e, i)` has as the
  /// codec encodes them, or `decode(e, i)` writes to `values`. `place(e, i)` is where row i goes.
  template <class Count, class Encoded, class Decode, class Place>
  void run_experts(std::size_t experts, Count&& count, Encoded&& encoded, Decode&& decode,
                   Place&& place) {
    for (std::size_t e = 0; e < experts; ++e)
      for (std::size_t i = 0; i < count(e); ++i) {
        bf16* const to = place(e, i);
        if constexpr (peerbus::verbatim_codec<Codec>) {
          std::memcpy(to, encoded(e, i), input.hidden * sizeof(bf16));
        } else {
          decode(e, i);
          for (std::size_t h = 0; h < input.hidden; ++h) to[h] = bf16{values[h]};
        }
      }
  }
  /// Returns the place of an output of row i of expert e.
  [[nodiscard]] bf16* output(std::size_t e, std::size_t i) noexcept {
    return &y.all()[(e * rows_per_expert + i) * input.hidden];
  }

  const rank_input& input;
  std::size_t rows_per_expert;
  bench::pages<bf16> y;       ///< outputs of the experts, unless with zero_copy
  bench::pages<bf16> out;     ///< sums
  std::vector<float> values;  ///< of a row
};

/// The padded exchange.
template <class Transport, class Codec>
class low_latency_own {
  using exchange = peerbus::moe::exchange<Transport, Codec, peerbus::moe::padded>;

 public:
  low_latency_own(peerbus::communicator<Transport>& comm, const options& chosen,
                  low_latency_memory<Codec>& memory)
      : memory_{memory},
        zero_copy_{chosen.zero_copy},
        moe_{comm,
             {.experts = chosen.payload.experts,
              .hidden = memory.input.hidden,
              .top_k = memory.input.top_k,
              .max_tokens = memory.input.count,
              .in_flight = chosen.in_flight,
              .outputs = chosen.zero_copy ? peerbus::moe::outputs_at::expert
                                          : peerbus::moe::outputs_at::home,
              .stream_from = chosen.payload.stream_from()},
             Codec{}},
        own_{comm.rank(), memory.input.count, moe_.map().copies, chosen.zero_copy} {}

  void dispatch() {
    const rank_input& input = memory_.input;
    rows_.emplace(moe_.dispatch(input.tokens.all(), {input.experts, input.weights}));
  }
  void run_experts() {
    const auto& blocks = rows_->experts();
    memory_.run_experts(
        blocks.size(), [&](std::size_t e) { return blocks[e].count(); },
        [&](std::size_t e, std::size_t i) { return blocks[e].row(i).data(); },
        [&](std::size_t e, std::size_t i) { blocks[e].decode(i, memory_.values); },
        [&](std::size_t e, std::size_t i) {
          return zero_copy_ ? blocks[e].output(i).data() : memory_.output(e, i);
        });
  }
  void combine() {
    if (!zero_copy_)
      for (std::size_t e = 0; e < rows_->experts().size(); ++e) {
        const auto& rows = rows_->experts()[e];
        for (std::size_t i = 0; i < rows.count(); ++i) own_.place(rows, i, memory_.output(e, i));
      }
    moe_.combine(*rows_, memory_.out.all(), {.terms = {.own = own_.outputs()}});
  }

  [[nodiscard]] std::span<const bf16> sums() const { return memory_.out.all(); }

 private:
  low_latency_memory<Codec>& memory_;
  bool zero_copy_;
  exchange moe_;
  own_outputs own_;
  std::optional<typename exchange::received_type> rows_;
};

/// DeepEP's names, with or without relay.
template <class Transport, class Codec, peerbus::moe::relay Relay = peerbus::moe::relay::never>
class low_latency_names {
  static constexpr bool fp8 = !peerbus::verbatim_codec<Codec>;

 public:
  low_latency_names(peerbus::communicator<Transport>& comm, const options& chosen,
                    low_latency_memory<Codec>& memory)
      : memory_{memory},
        zero_copy_{chosen.zero_copy},
        experts_{chosen.payload.experts},
        buffer_{comm,
                {.in_flight = chosen.in_flight,
                 .zero_copy = chosen.zero_copy,
                 .stream_from = chosen.payload.stream_from(),
                 .relay = Relay}} {}

  void dispatch() {
    const rank_input& input = memory_.input;
    got_ = buffer_.low_latency_dispatch(
        {.x = deep_ep::view(std::span<const bf16>{input.tokens.all()}, {input.count, input.hidden}),
         .topk_idx = deep_ep::view(input.experts, {input.count, input.top_k}),
         .num_max_dispatch_tokens_per_rank = input.count,
         .num_experts = experts_,
         .use_fp8 = fp8});
  }
  void run_experts() {
    deep_ep::tensor there;
    if (zero_copy_) there = buffer_.get_next_low_latency_combine_buffer(got_.handle);
    memory_.run_experts(
        got_.recv_count.size(0),
        [&](std::size_t e) {
          return static_cast<std::size_t>(got_.recv_count.template at<std::int32_t>(e));
        },
        [&](std::size_t e, std::size_t i) { return &got_.recv_x.template at<bf16>(e, i); },
        [&](std::size_t e, std::size_t i) {
          for (std::size_t h = 0; h < memory_.input.hidden; ++h)
            memory_.values[h] =
                static_cast<float>(got_.recv_x.template at<peerbus::fp8_e4m3>(e, i, h)) *
                got_.recv_x_scales.template at<float>(e, i, h / 128);
        },
        [&](std::size_t e, std::size_t i) {
          return zero_copy_ ? &there.template at<bf16>(e, i) : memory_.output(e, i);
        });
  }
  void combine() {
    const rank_input& input = memory_.input;
    const deep_ep::tensor y =
        zero_copy_
            ? buffer_.get_next_low_latency_combine_buffer(got_.handle)
            : deep_ep::tensor{memory_.y.all().data(),
                              deep_ep::dtype::bfloat16,
                              {got_.recv_count.size(0), memory_.rows_per_expert, input.hidden}};
    static_cast<void>(buffer_.low_latency_combine(
        {.x = y,
         .topk_idx = deep_ep::view(input.experts, {input.count, input.top_k}),
         .topk_weights = deep_ep::view(input.weights, {input.count, input.top_k}),
         .handle = got_.handle,
         .zero_copy = zero_copy_,
         .out = deep_ep::view(memory_.out.all(), {input.count, input.hidden})}));
  }

  [[nodiscard]] std::span<const bf16> sums() const { return memory_.out.all(); }

 private:
  low_latency_memory<Codec>& memory_;
  bool zero_copy_;
  std::size_t experts_;
  deep_ep::buffer<Transport> buffer_;
  deep_ep::low_latency_dispatch_result got_;
};

}  // namespace deep_ep_bench

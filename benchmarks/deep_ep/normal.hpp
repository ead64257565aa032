// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>

#include "deep_ep/options.hpp"
#include "deep_ep/pair.hpp"

/// The normal calls, bf16, and the rank-major exchange under them used directly. Ranks give back
/// what they are given, so that a token comes home as often as it has ranks.
namespace deep_ep_bench {

namespace deep_ep = peerbus::deep_ep;

/// What both sides read and write.
struct normal_memory {
  normal_memory(std::size_t rank_count, const options& chosen, const rank_input& given)
      : input{given},
        ranks{rank_count},
        placement{chosen.payload.experts, rank_count},
        y{rank_count * given.count * given.hidden},
        out{given.count * given.hidden} {}

  /// Returns what is wrong with `sums`, and spoils `out`. `roundings` as for `first_difference`.
  [[nodiscard]] std::string wrong(std::span<const bf16> sums, int roundings) {
    std::vector<bf16> expected(input.count * input.hidden);
    for (std::size_t t = 0; t < input.count; ++t) {
      std::vector<bool> goes(ranks);
      for (std::size_t k = 0; k < input.top_k; ++k)
        goes[placement.owner(static_cast<std::size_t>(input.experts[t * input.top_k + k]))
                 .index()] = true;
      const auto copies = std::count(goes.begin(), goes.end(), true);
      for (std::size_t h = 0; h < input.hidden; ++h) {
        float sum = 0;
        for (std::ptrdiff_t c = 0; c < copies; ++c)
          sum += static_cast<float>(input.tokens.all()[t * input.hidden + h]);
        expected[t * input.hidden + h] = bf16{sum};
      }
    }
    std::string found = first_difference(sums, expected, input.hidden, roundings);
    std::ranges::fill(out.all(), bf16::from_bits(0xffff));
    return found;
  }

  const rank_input& input;
  std::size_t ranks;
  peerbus::moe::expert_placement placement;
  bench::pages<bf16> y;    ///< what ranks give back
  bench::pages<bf16> out;  ///< sums
};

/// The rank-major exchange.
template <class Transport>
class normal_own {
  using exchange =
      peerbus::moe::exchange<Transport, peerbus::codec::bf16, peerbus::moe::rank_major>;

 public:
  normal_own(peerbus::communicator<Transport>& comm, const options& chosen, normal_memory& memory)
      : memory_{memory},
        moe_{comm,
             {.experts = chosen.payload.experts,
              .hidden = memory.input.hidden,
              .top_k = memory.input.top_k,
              .max_tokens = memory.input.count,
              .in_flight = chosen.in_flight,
              .outputs = peerbus::moe::outputs_at::home,
              .stream_from = chosen.payload.stream_from()},
             {}},
        own_{comm.rank(), memory.input.count, moe_.map().copies, false} {}

  void dispatch() {
    const rank_input& input = memory_.input;
    rows_.emplace(moe_.dispatch(input.tokens.all(), {input.experts, input.weights}));
  }
  void run_experts() {
    if (rows_->count() != 0)
      std::memcpy(memory_.y.all().data(), rows_->rows().data(),
                  rows_->count() * memory_.input.hidden * sizeof(bf16));
  }
  void combine() {
    for (std::size_t i = 0; i < rows_->count(); ++i)
      own_.place(*rows_, i, &memory_.y.all()[i * memory_.input.hidden]);
    moe_.combine(*rows_, memory_.out.all(), {.terms = {.own = own_.outputs()}});
  }

  [[nodiscard]] std::span<const bf16> sums() const { return memory_.out.all(); }

 private:
  normal_memory& memory_;
  exchange moe_;
  own_outputs own_;
  std::optional<typename exchange::received_type> rows_;
};

/// DeepEP's names, with or without relay.
template <class Transport, peerbus::moe::relay Relay = peerbus::moe::relay::never>
class normal_names {
 public:
  normal_names(peerbus::communicator<Transport>& comm, const options& chosen, normal_memory& memory)
      : memory_{memory},
        buffer_{comm,
                {.num_max_tokens_per_rank = memory.input.count,
                 .in_flight = chosen.in_flight,
                 .stream_from = chosen.payload.stream_from(),
                 .relay = Relay}},
        layout_{buffer_.get_dispatch_layout(
            deep_ep::view(memory.input.experts, {memory.input.count, memory.input.top_k}),
            chosen.payload.experts)} {}

  void dispatch() {
    const rank_input& input = memory_.input;
    // Member by member: of the list of all, g++ 12 believes that some are not set.
    deep_ep::dispatch_args args;
    args.x = {std::span<const bf16>{input.tokens.all()}, {input.count, input.hidden}};
    args.num_tokens_per_rank = layout_.num_tokens_per_rank;
    args.is_token_in_rank = layout_.is_token_in_rank;
    args.num_tokens_per_expert = layout_.num_tokens_per_expert;
    args.topk_idx = deep_ep::view(input.experts, {input.count, input.top_k});
    args.topk_weights = deep_ep::view(input.weights, {input.count, input.top_k});
    got_ = buffer_.dispatch(args);
  }
  void run_experts() {
    if (rows() != 0)
      std::memcpy(memory_.y.all().data(), got_.recv_x.template as<bf16>(),
                  rows() * memory_.input.hidden * sizeof(bf16));
  }
  /// Its sums lie in the buffer.
  void combine() {
    combined_ =
        buffer_
            .combine(
                {.x = {std::span<const bf16>{memory_.y.all()}.first(rows() * memory_.input.hidden),
                       {rows(), memory_.input.hidden}},
                 .handle = got_.handle})
            .combined_x;
  }
  [[nodiscard]] std::span<const bf16> sums() const { return combined_.template values<bf16>(); }

 private:
  [[nodiscard]] std::size_t rows() const { return got_.recv_x.size(0); }

  normal_memory& memory_;
  deep_ep::buffer<Transport> buffer_;
  deep_ep::dispatch_layout layout_;
  deep_ep::tensor combined_;
  deep_ep::dispatch_result got_;
};

}  // namespace deep_ep_bench

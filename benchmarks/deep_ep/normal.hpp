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

namespace deep_ep_bench {

namespace deep_ep = peerbus::deep_ep;

/// The normal calls, bf16, and the rank-major exchange under them used directly. Ranks give back
/// what they are given, so that a token comes home as often as it has ranks.
class normal_subject {
  using exchange =
      peerbus::moe::exchange<transport, peerbus::codec::bf16, peerbus::moe::rank_major>;

 public:
  normal_subject(peerbus::communicator<transport>& comm, const options& chosen,
                 const rank_input& input)
      : chosen_{chosen},
        input_{input},
        moe_{comm,
             {.experts = chosen.payload.experts,
              .hidden = input.hidden,
              .top_k = input.top_k,
              .max_tokens = input.count,
              .in_flight = chosen.in_flight,
              .outputs = peerbus::moe::outputs_at::home,
              .stream_from = chosen.payload.stream_from()},
             {}},
        buffer_{comm,
                {.num_max_tokens_per_rank = input.count,
                 .in_flight = chosen.in_flight,
                 .stream_from = chosen.payload.stream_from()}},
        layout_{buffer_.get_dispatch_layout(
            deep_ep::view(input.experts, {input.count, input.top_k}), chosen.payload.experts)},
        ranks_{comm.size()},
        y_{comm.size() * input.count * input.hidden},
        out_{input.count * input.hidden} {}

  void dispatch(side which) {
    if (which == side::native) {
      rows_.emplace(moe_.dispatch(input_.tokens.all(), {input_.experts, input_.weights}));
      return;
    }
    // Member by member: of the list of all, g++ 12 believes that some are not set.
    deep_ep::dispatch_args args;
    args.x = {std::span<const bf16>{input_.tokens.all()}, {input_.count, input_.hidden}};
    args.num_tokens_per_rank = layout_.num_tokens_per_rank;
    args.is_token_in_rank = layout_.is_token_in_rank;
    args.num_tokens_per_expert = layout_.num_tokens_per_expert;
    args.topk_idx = deep_ep::view(input_.experts, {input_.count, input_.top_k});
    args.topk_weights = deep_ep::view(input_.weights, {input_.count, input_.top_k});
    got_ = buffer_.dispatch(args);
  }

  void run_experts(side which) {
    const std::size_t count = rows(which);
    const bf16* const from = which == side::native ? rows_->rows().data() : got_.recv_x.as<bf16>();
    if (count != 0) std::memcpy(y_.all().data(), from, count * input_.hidden * sizeof(bf16));
  }

  void combine(side which) {
    if (which == side::native) {
      for (std::size_t i = 0; i < rows_->count(); ++i)
        std::memcpy(rows_->output(i).data(), &y_.all()[i * input_.hidden],
                    input_.hidden * sizeof(bf16));
      moe_.combine(*rows_, out_.all());
      return;
    }
    const auto back =
        buffer_.combine({.x = {std::span<const bf16>{y_.all()}.first(rows(which) * input_.hidden),
                               {rows(which), input_.hidden}},
                         .handle = got_.handle});
    combined_ = back.combined_x;
  }

  [[nodiscard]] std::string wrong(side which) {
    std::vector<bf16> expected(input_.count * input_.hidden);
    for (std::size_t t = 0; t < input_.count; ++t) {
      std::size_t copies = 0;
      for (std::size_t r = 0; r < ranks_; ++r)
        copies += layout_.is_token_in_rank.at<bool>(t, r) ? 1 : 0;
      for (std::size_t h = 0; h < input_.hidden; ++h) {
        float sum = 0;
        for (std::size_t c = 0; c < copies; ++c)
          sum += static_cast<float>(input_.tokens.all()[t * input_.hidden + h]);
        expected[t * input_.hidden + h] = bf16{sum};
      }
    }
    if (which == side::adapter)
      return first_difference(combined_.values<bf16>(), expected, input_.hidden);
    std::string found = first_difference(out_.all(), expected, input_.hidden);
    std::ranges::fill(out_.all(), bf16::from_bits(0xffff));
    return found;
  }

 private:
  [[nodiscard]] std::size_t rows(side which) const {
    return which == side::native ? rows_->count() : got_.recv_x.size(0);
  }

  options chosen_;
  const rank_input& input_;
  exchange moe_;
  deep_ep::buffer<transport> buffer_;
  deep_ep::dispatch_layout layout_;
  std::size_t ranks_;
  bench::pages<bf16> y_;
  bench::pages<bf16> out_;
  std::optional<exchange::received_type> rows_;
  deep_ep::dispatch_result got_;
  deep_ep::tensor combined_;
};

}  // namespace deep_ep_bench

// SPDX-License-Identifier: MIT
// The MoE layers of a serving engine, written with DeepEP's names: prefill in normal mode, and
// decode in low-latency mode with two microbatches and receive hooks. Each rank also computes its
// layers without communication and compares the tokens bit for bit. Finally the program prints what
// an Ascend A3 would accept and refuse of the calls.
//   deepep_port [RANKS]
// docs/porting-from-deepep.md explains it step by step.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/peerbus.hpp>

namespace {

namespace deep_ep = peerbus::deep_ep;
using deep_ep::view;
using peerbus::bf16;
using transport = peerbus::unified_bus;

constexpr std::size_t hidden = 256, experts = 12, top_k = 3, layers = 3;
constexpr std::size_t prefill_tokens = 96, decode_tokens = 16, decode_steps = 4;

// Returns number `i` of a fixed sequence in [-0.5, 0.5).
float noise(std::uint64_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  return static_cast<float>((z ^ (z >> 31U)) >> 40U) * 0x1p-24F - 0.5F;
}

// Stands in for an expert. The result differs for each expert and each channel.
float expert_output(std::size_t expert, std::size_t channel, float value) {
  return value * (1.0F + 0.125F * static_cast<float>(expert)) +
         noise(expert * hidden + channel) * 0.25F;
}

// The tokens of a batch, and the choices of the router for them in a layer.
struct batch {
  std::size_t count;
  std::vector<bf16> x;                 // [count, hidden]
  std::vector<std::int64_t> topk_idx;  // [count, top_k]
  std::vector<float> topk_weights;     // [count, top_k]

  batch(std::size_t tokens, std::uint64_t seed)
      : count{tokens}, x(tokens * hidden), topk_idx(tokens * top_k), topk_weights(tokens * top_k) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = bf16{noise(seed * 7919 + i)};
  }

  [[nodiscard]] deep_ep::const_tensor tokens() const { return view(x, {count, hidden}); }
  [[nodiscard]] deep_ep::const_tensor idx() const { return view(topk_idx, {count, top_k}); }
  [[nodiscard]] deep_ep::const_tensor weights() const { return view(topk_weights, {count, top_k}); }

  void route(std::size_t layer) {
    for (std::size_t t = 0; t < count; ++t) {
      // The key depends on the token itself, so that the computation without communication routes
      // it identically.
      const auto key = static_cast<std::uint64_t>(x[t * hidden].bits) * 31 + layer;
      for (std::size_t k = 0; k < top_k; ++k) {
        topk_idx[t * top_k + k] = static_cast<std::int64_t>((key * 5 + k * 5 + t) % experts);
        topk_weights[t * top_k + k] = 0.4F + 0.1F * static_cast<float>(k);
      }
      if (t % 7 == 3) topk_idx[t * top_k + 1] = -1;
    }
  }
  void set_tokens(std::span<const bf16> values) {
    std::copy(values.begin(), values.end(), x.begin());
  }
};

// --- The engine ---

class engine {
 public:
  explicit engine(peerbus::communicator<transport>& comm)
      : comm_{comm},
        buffer_{comm, {.num_max_tokens_per_rank = prefill_tokens, .in_flight = 2}},
        first_expert_{peerbus::moe::expert_placement{experts, comm.size()}.first(comm.rank())} {}

  // Computes a layer in normal mode. Each token goes once to a rank, however many of its experts
  // are there. The rank of the experts applies the weights.
  void prefill_layer(batch& prompt) {
    const auto layout = buffer_.get_dispatch_layout(prompt.idx(), experts);
    const auto received = buffer_.dispatch({.x = prompt.tokens(),
                                            .num_tokens_per_rank = layout.num_tokens_per_rank,
                                            .is_token_in_rank = layout.is_token_in_rank,
                                            .num_tokens_per_expert = layout.num_tokens_per_expert,
                                            .topk_idx = prompt.idx(),
                                            .topk_weights = prompt.weights()});
    const std::size_t rows = received.recv_x.size(0);
    std::vector<bf16> y(rows * hidden);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t h = 0; h < hidden; ++h) {
        float sum = 0;
        for (std::size_t k = 0; k < top_k; ++k)
          if (const auto e = received.recv_topk_idx.at<std::int64_t>(i, k); e >= 0)
            sum = std::fma(received.recv_topk_weights.at<float>(i, k),
                           expert_output(first_expert_ + static_cast<std::size_t>(e), h,
                                         static_cast<float>(received.recv_x.at<bf16>(i, h))),
                           sum);
        y[i * hidden + h] = bf16{sum};
      }
    const auto combined =
        buffer_.combine({.x = view(y, {rows, hidden}), .handle = received.handle});
    prompt.set_tokens(combined.combined_x.values<bf16>());
  }

  // Computes a layer in low-latency mode. While one microbatch travels, the rank computes the
  // other.
  void decode_layer(std::array<batch, 2>& micro) {
    std::array<deep_ep::low_latency_dispatch_result, 2> received;
    std::array<deep_ep::low_latency_combine_result, 2> combined;
    for (std::size_t m = 0; m < 2; ++m)
      received[m] = buffer_.low_latency_dispatch({.x = micro[m].tokens(),
                                                  .topk_idx = micro[m].idx(),
                                                  .num_max_dispatch_tokens_per_rank = decode_tokens,
                                                  .num_experts = experts,
                                                  .return_recv_hook = true});
    for (std::size_t m = 0; m < 2; ++m) {
      received[m].hook();
      run_experts(received[m]);
      combined[m] = buffer_.low_latency_combine(
          {.x = view(y_, {y_.size() / hidden / rows_per_expert(), rows_per_expert(), hidden}),
           .topk_idx = micro[m].idx(),
           .topk_weights = micro[m].weights(),
           .handle = received[m].handle,
           .return_recv_hook = true});
    }
    for (std::size_t m = 0; m < 2; ++m) {
      combined[m].hook();
      micro[m].set_tokens(combined[m].combined_x.values<bf16>());
    }
  }

 private:
  [[nodiscard]] std::size_t rows_per_expert() const { return comm_.size() * decode_tokens; }

  // Applies the experts to the tensors that a masked grouped GEMM would read: codes, scales, and
  // the number of rows per expert.
  void run_experts(const deep_ep::low_latency_dispatch_result& received) {
    const std::size_t local_experts = received.recv_x.size(0);
    y_.resize(local_experts * rows_per_expert() * hidden);
    for (std::size_t e = 0; e < local_experts; ++e)
      for (std::int32_t i = 0; i < received.recv_count.at<std::int32_t>(e); ++i) {
        const auto row = static_cast<std::size_t>(i);
        for (std::size_t h = 0; h < hidden; ++h) {
          const auto code = static_cast<float>(received.recv_x.at<peerbus::fp8_e4m3>(e, row, h));
          const float scale = received.recv_x_scales.at<float>(e, row, h / 128);
          y_[(e * rows_per_expert() + row) * hidden + h] =
              bf16{expert_output(first_expert_ + e, h, code * scale)};
        }
      }
  }

  peerbus::communicator<transport>& comm_;
  deep_ep::buffer<transport> buffer_;
  std::size_t first_expert_;
  std::vector<bf16> y_;
};

// --- The same layers without communication ---

void prefill_layer_alone(batch& prompt, std::size_t ranks) {
  const peerbus::moe::expert_placement placement{experts, ranks};
  std::vector<bf16> out(prompt.x.size());
  for (std::size_t t = 0; t < prompt.count; ++t)
    for (std::size_t h = 0; h < hidden; ++h) {
      float total = 0;
      for (std::size_t r = 0; r < ranks; ++r) {
        float sum = 0;
        for (std::size_t k = 0; k < top_k; ++k) {
          const std::int64_t e = prompt.topk_idx[t * top_k + k];
          if (e < 0 || placement.owner(static_cast<std::size_t>(e)).index() != r) continue;
          sum = std::fma(prompt.topk_weights[t * top_k + k],
                         expert_output(static_cast<std::size_t>(e), h,
                                       static_cast<float>(prompt.x[t * hidden + h])),
                         sum);
        }
        total += static_cast<float>(bf16{sum});
      }
      out[t * hidden + h] = bf16{total};
    }
  prompt.set_tokens(out);
}

void decode_layer_alone(batch& micro) {
  using codec = peerbus::codec::fp8_e4m3_per_128_f32;
  std::array<std::byte, hidden> codes;
  alignas(float) std::array<std::byte, codec::scale_bytes(hidden)> scales;
  std::array<float, hidden> values;
  std::vector<bf16> out(micro.x.size());
  for (std::size_t t = 0; t < micro.count; ++t) {
    codec{}.encode({&micro.x[t * hidden], hidden}, codes, scales);
    codec{}.decode(codes, scales, values);
    for (std::size_t h = 0; h < hidden; ++h) {
      float sum = 0;
      for (std::size_t k = 0; k < top_k; ++k)
        if (const std::int64_t e = micro.topk_idx[t * top_k + k]; e >= 0)
          sum = std::fma(
              micro.topk_weights[t * top_k + k],
              static_cast<float>(bf16{expert_output(static_cast<std::size_t>(e), h, values[h])}),
              sum);
      out[t * hidden + h] = bf16{sum};
    }
  }
  micro.set_tokens(out);
}

std::size_t count_differences(const batch& a, const batch& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.x.size(); ++i) count += a.x[i].bits != b.x[i].bits ? 1 : 0;
  return count;
}

// --- The judgement of another platform ---

// Prints the judgement of an Atlas A3 about the decode call above on 16 of its ranks.
void ask_ascend() {
  deep_ep::call asked;
  asked.what = deep_ep::operation::low_latency_dispatch;
  asked.ranks = 16;
  asked.tokens = asked.max_tokens = decode_tokens;
  asked.hidden = hidden;
  asked.top_k = top_k;
  asked.experts = 16;
  asked.dropped = asked.use_fp8 = asked.return_recv_hook = true;
  std::puts("on an Atlas A3, low_latency_dispatch:");
  deep_ep::examine(deep_ep::profile::ascend_a3, asked, [](const deep_ep::finding& found) {
    std::printf("  %.*s: %s\n", static_cast<int>(to_string(found.kind).size()),
                to_string(found.kind).data(), describe(found).c_str());
  });
}

int serve(peerbus::communicator<transport>& comm) {
  const std::size_t rank = comm.rank().index();
  engine serving{comm};
  std::size_t wrong = 0;

  batch prompt{prefill_tokens - rank, rank};  // Ranks may have different numbers of tokens.
  batch prompt_alone = prompt;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    prompt.route(layer);
    prompt_alone.route(layer);
    serving.prefill_layer(prompt);
    prefill_layer_alone(prompt_alone, comm.size());
  }
  wrong += count_differences(prompt, prompt_alone);

  for (std::size_t step = 0; step < decode_steps; ++step) {
    std::array<batch, 2> micro{batch{decode_tokens, 100 + 2 * step + rank * 1000},
                               batch{decode_tokens / 2, 101 + 2 * step + rank * 1000}};
    std::array<batch, 2> alone = micro;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (auto* set : {&micro, &alone})
        for (batch& current : *set) current.route(layer);
      serving.decode_layer(micro);
      for (batch& current : alone) decode_layer_alone(current);
    }
    for (std::size_t m = 0; m < 2; ++m) wrong += count_differences(micro[m], alone[m]);
  }

  std::printf("rank %zu: prefill of %zu tokens, %zu decode steps, %zu values differ\n", rank,
              prompt.count, decode_steps, wrong);
  std::fflush(stdout);
  comm.barrier();
  if (rank == 0) ask_ascend();
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t ranks = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 4;
  if (ranks == 0 || ranks > 64) {
    std::fprintf(stderr, "deepep_port: RANKS is '%s', expected 1 to 64\n", argv[1]);
    return 2;
  }
  return peerbus::run<transport>(ranks, serve);
}

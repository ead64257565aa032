// SPDX-License-Identifier: MIT
// Steps of multi-token prediction through shapes that are captured once, as an engine captures CUDA
// graphs. A sequence has one to four tokens in a step, so each rank has another number of tokens in
// each step, or none. In a step all ranks replay the smallest shape that holds the tokens of any of
// them. Tokens beyond a rank's own name no expert, and num_worst_tokens gives the results as many
// rows in each replay, at the addresses of the capture: no replay waits for a number. Each rank
// compares its tokens with those computed without communication, bit for bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <peerbus/collective.hpp>
#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/peerbus.hpp>

namespace {

namespace deep_ep = peerbus::deep_ep;
using deep_ep::view;
using peerbus::bf16;
using transport = peerbus::unified_bus;

constexpr std::size_t ranks = 4, hidden = 32, experts = 8, top_k = 3, steps = 40;
constexpr std::size_t drafts = 3;                           // beside the next token of a sequence
constexpr std::array<std::size_t, 4> shapes{24, 12, 6, 2};  // tokens of a rank, the largest first

// Returns number `i` of a fixed sequence.
std::uint64_t noise(std::uint64_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  return z ^ (z >> 33U);
}

// What a token is and chooses follows from its number. All sums of these values are exact, so that
// their order does not matter.
float channel_of(std::uint64_t token, std::size_t h) {
  return std::ldexp((noise(token) + h) % 2 == 0 ? 1.0F : -1.0F,
                    static_cast<int>((noise(token) + h) % 8));
}
std::int64_t expert_of(std::uint64_t token, std::size_t k) {
  return static_cast<std::int64_t>((noise(token) + 3 * k) % experts);
}
constexpr float weight_of(std::size_t k) { return 0.5F / static_cast<float>(std::size_t{1} << k); }
float factor_of(std::int64_t expert) { return 1.0F + 0.125F * static_cast<float>(expert); }

// The tokens of a rank in a step: one to 1 + drafts of each of its sequences. A rank begins with
// twice its number of sequences, which end one after the other.
std::size_t tokens_of(std::size_t rank, std::size_t step) {
  const std::size_t sequences = 2 * rank * (steps - step) / steps;
  std::size_t tokens = 0;
  for (std::size_t sequence = 0; sequence < sequences; ++sequence)
    tokens += 1 + noise(step * 64 + rank * 8 + sequence) % (1 + drafts);
  return tokens;
}

// A layer for a fixed number of tokens: its arrays, and where the rows of its dispatches lie.
class captured_layer {
 public:
  captured_layer(deep_ep::buffer<transport>& buffer, std::size_t tokens, std::size_t first_expert)
      : buffer_{buffer},
        tokens_{tokens},
        first_expert_{first_expert},
        x_(tokens * hidden),
        topk_idx_(tokens * top_k, -1),
        topk_weights_(tokens * top_k),
        y_(ranks * tokens * hidden) {
    replay();  // Takes the memory.
    rows_ = replay();
  }

  [[nodiscard]] std::size_t tokens() const { return tokens_; }

  // Writes the tokens from `first` on; the rest of the shape is padding.
  void fill(std::uint64_t first, std::size_t count) {
    std::fill(topk_idx_.begin(), topk_idx_.end(), -1);
    for (std::size_t t = 0; t < count; ++t) {
      for (std::size_t h = 0; h < hidden; ++h) x_[t * hidden + h] = bf16{channel_of(first + t, h)};
      for (std::size_t k = 0; k < top_k; ++k) {
        topk_idx_[t * top_k + k] = expert_of(first + t, k);
        topk_weights_[t * top_k + k] = weight_of(k);
      }
    }
  }

  // Sends the tokens to their experts and back. Returns where the received rows lie.
  const bf16* replay() {
    const auto idx = view(topk_idx_, {tokens_, top_k});
    const auto layout = buffer_.get_dispatch_layout(idx, experts);
    const auto received = buffer_.dispatch({.x = view(x_, {tokens_, hidden}),
                                            .num_tokens_per_rank = layout.num_tokens_per_rank,
                                            .is_token_in_rank = layout.is_token_in_rank,
                                            .num_tokens_per_expert = layout.num_tokens_per_expert,
                                            .topk_idx = idx,
                                            .topk_weights = view(topk_weights_, {tokens_, top_k}),
                                            .num_worst_tokens = ranks * tokens_});
    // Over all rows, as the grid of a kernel: rows that did not arrive name no expert.
    for (std::size_t i = 0; i < ranks * tokens_; ++i) {
      float factor = 0;
      for (std::size_t k = 0; k < top_k; ++k)
        if (const auto e = received.recv_topk_idx.at<std::int64_t>(i, k); e >= 0)
          factor += received.recv_topk_weights.at<float>(i, k) *
                    factor_of(static_cast<std::int64_t>(first_expert_) + e);
      if (factor == 0) continue;
      for (std::size_t h = 0; h < hidden; ++h)
        y_[i * hidden + h] = bf16{factor * static_cast<float>(received.recv_x.at<bf16>(i, h))};
    }
    const auto combined =
        buffer_.combine({.x = view(y_, {ranks * tokens_, hidden}), .handle = received.handle});
    const auto values = combined.combined_x.values<bf16>();
    std::copy(values.begin(), values.end(), x_.begin());
    return received.recv_x.values<bf16>().data();
  }

  // Returns whether the tokens from `first` on are what their experts make of them, and the rows
  // still lie where they lay when the layer was captured.
  [[nodiscard]] bool is_right(std::uint64_t first, std::size_t count, const bf16* rows) const {
    for (std::size_t t = 0; t < count; ++t) {
      float factor = 0;
      for (std::size_t k = 0; k < top_k; ++k)
        factor += weight_of(k) * factor_of(expert_of(first + t, k));
      for (std::size_t h = 0; h < hidden; ++h)
        if (static_cast<float>(x_[t * hidden + h]) != factor * channel_of(first + t, h))
          return false;
    }
    return rows == rows_;
  }

 private:
  deep_ep::buffer<transport>& buffer_;
  std::size_t tokens_;
  std::size_t first_expert_;
  std::vector<bf16> x_;                 // [tokens, hidden]
  std::vector<std::int64_t> topk_idx_;  // [tokens, top_k]
  std::vector<float> topk_weights_;     // [tokens, top_k]
  std::vector<bf16> y_;                 // [ranks x tokens, hidden], of the experts
  const bf16* rows_ = nullptr;
};

int serve(peerbus::communicator<transport>& comm) {
  const std::size_t rank = comm.rank().index();
  peerbus::collective::team team{comm};
  // A batch in flight, so that each dispatch has its rows at the same place.
  deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = shapes[0], .in_flight = 1}};
  const peerbus::moe::expert_placement placement{experts, ranks};
  std::vector<captured_layer> layers;
  layers.reserve(shapes.size());
  for (const std::size_t tokens : shapes)  // The largest first, as the others fit into its memory.
    layers.emplace_back(buffer, tokens, placement.first(comm.rank()));

  std::array<std::size_t, shapes.size()> replays{};
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t count = tokens_of(rank, step);
    std::array<std::uint32_t, ranks> counts{};
    peerbus::collective::all_gather(team, std::array{static_cast<std::uint32_t>(count)}, counts);
    std::size_t smallest = shapes.size() - 1;
    while (layers[smallest].tokens() < *std::ranges::max_element(counts)) --smallest;

    captured_layer& layer = layers[smallest];
    const std::uint64_t first = step * 1000 + rank * 100;
    layer.fill(first, count);
    const bf16* const rows = layer.replay();
    if (!layer.is_right(first, count, rows)) {
      std::printf("rank %zu: step %zu of %zu tokens is wrong\n", rank, step, count);
      return 1;
    }
    ++replays[smallest];
  }
  if (rank == 0)
    for (std::size_t i = 0; i < shapes.size(); ++i)
      std::printf("shape of %2zu tokens a rank, %2zu rows: replayed %zu times\n", shapes[i],
                  ranks * shapes[i], replays[i]);
  return 0;
}

}  // namespace

int main() { return peerbus::run<transport>(ranks, serve); }

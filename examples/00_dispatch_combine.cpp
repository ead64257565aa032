// SPDX-License-Identifier: MIT
// Eight processes send 128 tokens each to 256 experts and sum the outputs that come back.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/peerbus.hpp>

constexpr std::size_t count = 128, hidden = 7168, top_k = 8;

struct batch {
  std::vector<peerbus::bf16> tokens;  // [count, hidden]
  std::vector<std::int32_t> experts;  // [count, top_k]
  std::vector<float> weights;         // [count, top_k]
};

batch make_batch(peerbus::rank_id rank) {
  batch result{std::vector<peerbus::bf16>(count * hidden), std::vector<std::int32_t>(count * top_k),
               std::vector<float>(count * top_k, 0.125F)};
  for (std::size_t i = 0; i < result.tokens.size(); ++i)
    result.tokens[i] = peerbus::bf16{static_cast<float>(i % 255) - 127};
  for (std::size_t i = 0; i < result.experts.size(); ++i)  // 8 different experts per token
    result.experts[i] = static_cast<std::int32_t>((i / 8 * 37 + i % 8 * 32 + rank.index()) % 256);
  return result;
}

// Returns the factor that an expert multiplies a channel by: -1 if bit `channel % 8` of the
// expert's number is set, otherwise 1.
float sign(std::size_t expert, std::size_t channel) {
  return (expert >> channel % 8 & 1) == 0 ? 1.0F : -1.0F;
}

void run_expert(const auto& expert) {
  std::vector<float> row(hidden);
  for (std::size_t i = 0; i < expert.count(); ++i) {
    expert.decode(i, row);
    for (std::size_t c = 0; c < hidden; ++c)
      expert.output(i)[c] = peerbus::bf16{row[c] * sign(expert.id(), c)};
  }
}

int compare(const batch& input, const std::vector<peerbus::bf16>& out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    float signs = 0;
    for (std::size_t k = 0; k < top_k; ++k)
      signs += sign(static_cast<std::size_t>(input.experts[i / hidden * top_k + k]), i % hidden);
    const float expected = static_cast<float>(input.tokens[i]) * signs / 8;
    if (!(std::abs(static_cast<float>(out[i]) - expected) <= 0.01F * 127)) return 1;
  }
  return 0;
}

int main() {
  return peerbus::run<peerbus::unified_bus>(8, [](auto& comm) {  // 8 processes on this host
    peerbus::moe::exchange moe{
        comm,
        {.experts = 256, .hidden = hidden, .top_k = top_k, .max_tokens = count},
        peerbus::codec::int8_per_token{}};
    const batch mine = make_batch(comm.rank());
    std::vector<peerbus::bf16> out(mine.tokens.size());

    auto received = moe.dispatch(mine.tokens, {mine.experts, mine.weights});  // by expert
    for (auto& expert : received.experts()) run_expert(expert);  // outputs lie where combine reads
    moe.combine(received, out);  // weighted sum at each token's home rank
    return compare(mine, out);
  });
}

// SPDX-License-Identifier: MIT
// A layer as serving stacks run it: attention is data-parallel over two replicas and
// tensor-parallel over the two ranks of each, and all four ranks have experts. Compares with one
// process.
//
// A rank keeps half of its replica's sequence. all_gather brings the whole sequence together, each
// rank runs one head over it, and reduce_scatter adds the heads and leaves each rank its half.
// dispatch and combine then carry these tokens to the experts of all ranks and back.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <peerbus/bootstrap/split.hpp>
#include <peerbus/collective.hpp>
#include <peerbus/peerbus.hpp>

namespace {

using peerbus::bf16;

constexpr std::size_t ranks = 4, heads = 2;                 // two ranks, and heads, in each replica
constexpr std::size_t count = 8, sequence = heads * count;  // tokens of a rank, of a replica
constexpr std::size_t hidden = 32, experts = 6, top_k = 2;
using token = std::array<float, hidden>;

// Returns number `i` of a fixed sequence in [-0.5, 0.5).
float noise(std::size_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  return static_cast<float>((z ^ (z >> 31U)) >> 40U) * 0x1p-24F - 0.5F;
}

// Returns what one head adds to each token of a sequence. Its projections are factors per channel.
std::vector<float> run_head(std::span<const bf16> x, std::size_t head) {
  std::vector<float> out(sequence * hidden);
  for (std::size_t t = 0; t < sequence; ++t) {
    float total = 0;
    for (std::size_t other = 0; other <= t; ++other) {
      float score = 0;
      for (std::size_t c = 0; c < hidden; ++c)
        score += static_cast<float>(x[t * hidden + c]) * static_cast<float>(x[other * hidden + c]) *
                 noise(head * hidden + c);
      const float weight = std::exp(score);
      total += weight;
      for (std::size_t c = 0; c < hidden; ++c)
        out[t * hidden + c] += weight * static_cast<float>(x[other * hidden + c]);
    }
    for (std::size_t c = 0; c < hidden; ++c)
      out[t * hidden + c] *= 4 * noise(900 + head * hidden + c) / total;
  }
  return out;
}

// Returns x + the heads' sums, rounded.
std::vector<bf16> add(std::span<const bf16> x, std::span<const float> sums) {
  std::vector<bf16> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = bf16{static_cast<float>(x[i]) + sums[i]};
  return y;
}

// Stands in for the router: two different experts per token.
std::size_t expert_of(std::size_t token_number, std::size_t k) {
  return (token_number * 5 + k * (1 + token_number % (experts - 1))) % experts;
}
float weight_of(std::size_t k) { return k == 0 ? 0.75F : 0.25F; }

// Writes what an expert makes of a token: neighbouring channels, mixed by its own factors.
void run_expert(std::size_t expert, const token& x, std::span<bf16> out) {
  for (std::size_t c = 0; c < hidden; ++c)
    out[c] = bf16{x[c] * noise(5000 + expert * hidden + c) + x[(c + 1) % hidden]};
}

std::vector<bf16> make_sequence(std::size_t replica) {
  std::vector<bf16> x(sequence * hidden);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = bf16{noise(100'000 * (replica + 1) + i)};
  return x;
}

// Returns the layer's outputs for the sequence of a replica, computed in one process.
std::vector<float> run_alone(std::size_t replica) {
  const std::vector<bf16> x = make_sequence(replica);
  std::vector<float> sums = run_head(x, 0);
  const std::vector<float> second = run_head(x, 1);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += second[i];
  const std::vector<bf16> y = add(x, sums);
  std::vector<float> out(y.size());
  for (std::size_t t = 0; t < sequence; ++t)
    for (std::size_t k = 0; k < top_k; ++k) {
      token input;
      std::array<bf16, hidden> output;
      for (std::size_t c = 0; c < hidden; ++c) input[c] = static_cast<float>(y[t * hidden + c]);
      run_expert(expert_of(replica * sequence + t, k), input, output);
      for (std::size_t c = 0; c < hidden; ++c)
        out[t * hidden + c] += weight_of(k) * static_cast<float>(output[c]);
    }
  return out;
}

int work(peerbus::bootstrap& boot) {
  const std::size_t replica = boot.rank().index() / heads, head = boot.rank().index() % heads;
  const auto replica_boot = peerbus::split(boot, replica);
  peerbus::communicator all{peerbus::unified_bus{boot}};
  peerbus::communicator pair{peerbus::unified_bus{*replica_boot}};
  peerbus::collective::team team{pair};
  peerbus::moe::exchange moe{
      all,
      {.experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = count},
      peerbus::codec::bf16{}};

  const std::vector<bf16> whole = make_sequence(replica);
  const std::span<const bf16> own = std::span{whole}.subspan(head * count * hidden, count * hidden);

  // Attention within the replica.
  std::vector<bf16> x(sequence * hidden);
  peerbus::collective::all_gather(team, own, x);
  std::vector<float> sums(own.size());
  peerbus::collective::reduce_scatter(team, run_head(x, head), sums, peerbus::collective::sum{});
  const std::vector<bf16> tokens = add(own, sums);

  // Experts of all ranks.
  std::vector<std::int32_t> chosen(count * top_k);
  std::vector<float> weights(count * top_k);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::size_t number = replica * sequence + head * count + i / top_k;
    chosen[i] = static_cast<std::int32_t>(expert_of(number, i % top_k));
    weights[i] = weight_of(i % top_k);
  }
  std::vector<bf16> out(own.size());
  auto received = moe.dispatch(tokens, {chosen, weights});
  for (auto& expert : received.experts())
    for (std::size_t i = 0; i < expert.count(); ++i) {
      token row;
      expert.decode(i, row);
      run_expert(expert.id(), row, expert.output(i));
    }
  moe.combine(received, out);

  const std::vector<float> expected = run_alone(replica);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float wanted = expected[head * count * hidden + i];
    if (std::abs(static_cast<float>(out[i]) - wanted) > 0.01F * std::abs(wanted) + 1e-6F) {
      std::printf("rank %zu: channel %zu is %g, one process computes %g\n", boot.rank().index(), i,
                  static_cast<double>(static_cast<float>(out[i])), static_cast<double>(wanted));
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main() { return peerbus::run_local(ranks, work); }

// SPDX-License-Identifier: MIT
// A tensor-parallel MLP: each process has a share of the weights of two linear layers. One
// all_reduce adds what the processes computed, and the residual connection in the same pass.
// Compares the result with the whole MLP in one process.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <span>
#include <vector>

#include <peerbus/collective.hpp>
#include <peerbus/peerbus.hpp>

namespace {

constexpr std::size_t tokens = 6, hidden = 64, inner = 96;

// Returns a small whole number, so that sums in f32 are exact and do not depend on their order.
float noise(std::size_t i) { return static_cast<float>((i * 2654435761U >> 7U) % 5) - 2; }
float up(std::size_t channel, std::size_t unit) { return noise(channel * inner + unit); }
float down(std::size_t unit, std::size_t channel) {
  return noise(77'777 + unit * hidden + channel);
}

// Returns what the inner units from `first` on add to each token: down(relu(up(x))).
std::vector<float> run_units(std::span<const float> x, std::size_t first, std::size_t count) {
  std::vector<float> sums(tokens * hidden);
  for (std::size_t t = 0; t < tokens; ++t)
    for (std::size_t unit = first; unit < first + count; ++unit) {
      float value = 0;
      for (std::size_t c = 0; c < hidden; ++c) value += x[t * hidden + c] * up(c, unit);
      value = std::max(value, 0.0F);
      for (std::size_t c = 0; c < hidden; ++c) sums[t * hidden + c] += value * down(unit, c);
    }
  return sums;
}

}  // namespace

int main() {
  return peerbus::run<peerbus::unified_bus>(4, [](auto& comm) {
    peerbus::collective::team team{comm};
    std::vector<float> x(tokens * hidden);  // the same on all ranks
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = noise(i);
    std::vector<float> expected = run_units(x, 0, inner);
    std::transform(x.begin(), x.end(), expected.begin(), expected.begin(), std::plus{});

    const std::size_t share = inner / comm.size();
    const std::vector<float> partial = run_units(x, comm.rank().index() * share, share);
    peerbus::collective::all_reduce_add(team, partial, x, x);  // x = x + the sum of all ranks

    if (x == expected) return 0;
    std::printf("rank %zu: not what one process computes\n", comm.rank().index());
    return 1;
  });
}

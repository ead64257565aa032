// SPDX-License-Identifier: MIT
// A layer loop over two microbatches: while one's tokens are on their way, the other's are computed
// on. Prints the time with and without, and checks that both give the same bytes.
//   04_overlap [RANKS]
//
// The library has no thread of its own: on a CPU it is the rank's own core that copies rows, and
// overlap hides nothing of that. What it hides is waiting. Attention takes longer on the rank whose
// sequences are longer just now, and whoever needs its rows waits; with a second microbatch at hand
// there is something to do meanwhile, and only the sum of both has to be even. So it gains most
// where ranks are uneven and have a core each, and nothing where they are even or share a core.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <peerbus/peerbus.hpp>

namespace {

using peerbus::bf16;
using codec = peerbus::codec::int8_per_token;
using exchange = peerbus::moe::exchange<peerbus::unified_bus, codec>;

constexpr std::size_t hidden = 256, experts = 8, top_k = 2, count = 48, layers = 6;
constexpr std::size_t repetitions = 9;
using row = std::array<float, hidden>;

// The same numbers everywhere, in [0, 1).
float noise(std::size_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  return static_cast<float>((z ^ (z >> 31U)) >> 40U) * 0x1p-24F;
}

// out += factor * values
void add(row& out, float factor, const row& values) {
  for (std::size_t h = 0; h < hidden; ++h) out[h] += factor * values[h];
}

struct microbatch {
  std::size_t number;
  std::vector<bf16> tokens, sums;    // [count, hidden]
  std::vector<std::int32_t> chosen;  // [count, top_k]
  std::vector<float> weights;        // [count, top_k]
  peerbus::moe::ticket begun{};      // of the dispatch on its way
  std::optional<exchange::received_type> rows{};
};

// One rank's share of a model whose weights are noise.
class model {
 public:
  model(std::size_t rank, exchange& moe) : rank_{rank}, moe_{moe}, keys_(64) {
    for (std::size_t i = 0; i < keys_.size(); ++i) fill(keys_[i], i);
    weights_.resize(experts * hidden);
    for (std::size_t i = 0; i < weights_.size(); ++i) fill(weights_[i], 1000 + i);
  }

  [[nodiscard]] microbatch make(std::size_t number) const {
    microbatch made{number, std::vector<bf16>(count * hidden), std::vector<bf16>(count * hidden),
                    std::vector<std::int32_t>(count * top_k),
                    std::vector<float>(count * top_k, 0.5F)};
    for (std::size_t i = 0; i < made.tokens.size(); ++i)
      made.tokens[i] = bf16{noise(i + 7777 * (2 * rank_ + number)) - 0.5F};
    return made;
  }

  // A stand-in for attention: each token over as many keys as its context is long, 1 to 12 blocks,
  // different for every rank, microbatch and layer. Then the router's choice.
  void attend(microbatch& of, std::size_t layer) const {
    const std::size_t which = (layer * 2 + of.number) * 64 + rank_;
    const auto blocks = 1 + static_cast<std::size_t>(12 * noise(31 * which));
    for (std::size_t t = 0; t < count; ++t) {
      row x, sum{};
      for (std::size_t h = 0; h < hidden; ++h)
        x[h] = static_cast<float>(of.tokens[t * hidden + h]) +
               static_cast<float>(of.sums[t * hidden + h]);
      for (std::size_t j = 0; j < blocks * keys_.size(); ++j)
        add(sum, x[j % hidden], keys_[j % keys_.size()]);
      for (std::size_t h = 0; h < hidden; ++h)
        of.tokens[t * hidden + h] = bf16{0.5F * x[h] + sum[h] / static_cast<float>(8 * blocks)};
      const auto first = static_cast<std::int32_t>(noise(which * count + t) * experts);
      of.chosen[t * top_k] = first;
      of.chosen[t * top_k + 1] = (first + 3) % static_cast<std::int32_t>(experts);
    }
  }

  // Each expert is a matrix.
  void run_experts(const microbatch& of) const {
    row x, y;
    for (const auto& expert : of.rows->experts())
      for (std::size_t i = 0; i < expert.count(); ++i) {
        expert.decode(i, x);
        y = {};
        for (std::size_t j = 0; j < hidden; ++j) add(y, x[j], weights_[expert.id() * hidden + j]);
        const auto out = expert.output(i);
        for (std::size_t h = 0; h < hidden; ++h) out[h] = bf16{y[h] / 8};
      }
  }

  void one_after_the_other(std::span<microbatch> batches) {
    for (std::size_t layer = 0; layer < layers; ++layer)
      for (microbatch& one : batches) {
        attend(one, layer);
        one.rows = moe_.dispatch(one.tokens, {one.chosen, one.weights});
        run_experts(one);
        moe_.combine(*one.rows, one.sums);
      }
  }

  void overlapped(std::span<microbatch> batches) {
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (microbatch& one : batches) {
        if (layer > 0) moe_.combine_recv(*one.rows, one.sums);
        attend(one, layer);  // meanwhile the other microbatch is on its way
        one.begun = moe_.dispatch_send(one.tokens, {one.chosen, one.weights});
      }
      for (microbatch& one : batches) {
        one.rows = moe_.dispatch_recv(one.begun);
        run_experts(one);
        moe_.combine_send(*one.rows);
      }
    }
    for (microbatch& one : batches) moe_.combine_recv(*one.rows, one.sums);
  }

 private:
  static void fill(row& values, std::size_t seed) {
    for (std::size_t h = 0; h < hidden; ++h) values[h] = noise(seed * hidden + h) - 0.5F;
  }

  std::size_t rank_;
  exchange& moe_;
  std::vector<row> keys_;
  std::vector<row> weights_;  // [experts, hidden]
};

double median(std::vector<double> of) {
  std::nth_element(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2), of.end());
  return of[of.size() / 2];
}

int work(peerbus::communicator<peerbus::unified_bus>& comm) {
  exchange moe{
      comm,
      {.experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = count, .in_flight = 2}};
  model mine{comm.rank().index(), moe};

  std::vector<double> apart, together;  // ms, from when all ranks begin to when all have ended
  bool same = true;
  for (std::size_t i = 0; i < repetitions + 1; ++i) {
    std::array batches{mine.make(0), mine.make(1)};
    std::array again{mine.make(0), mine.make(1)};
    const auto timed = [&](auto&& pass) {
      comm.barrier();
      const auto start = std::chrono::steady_clock::now();
      pass();
      comm.barrier();
      return std::chrono::duration<double, std::milli>{std::chrono::steady_clock::now() - start}
          .count();
    };
    const double first = timed([&] { mine.one_after_the_other(batches); });
    const double second = timed([&] { mine.overlapped(again); });
    for (std::size_t b = 0; b < batches.size(); ++b)
      same = same && batches[b].tokens == again[b].tokens && batches[b].sums == again[b].sums;
    if (i == 0) continue;  // It touched the memory.
    apart.push_back(first);
    together.push_back(second);
  }
  if (comm.rank() == peerbus::rank_id{0}) {
    const double before = median(apart), after = median(together);
    std::printf("%zu ranks on %u cores, 2 microbatches of %zu tokens, %zu layers, medians of %zu\n",
                comm.size(), std::thread::hardware_concurrency(), count, layers, repetitions);
    std::printf("one after the other  %8.2f ms\noverlapped           %8.2f ms  %+.1f %%\n", before,
                after, 100 * (after / before - 1));
  }
  if (!same) std::printf("rank %zu: the bytes differ\n", comm.rank().index());
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t ranks = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 2;
  if (argc > 2 || ranks < 1 || ranks > 64) {
    std::fprintf(stderr, "usage: 04_overlap [RANKS], 1 to 64\n");
    return 2;
  }
  return peerbus::run<peerbus::unified_bus>(ranks, work);
}

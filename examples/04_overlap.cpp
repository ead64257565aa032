// SPDX-License-Identifier: MIT
// A loop over layers with two microbatches: while the tokens of one microbatch travel, the rank
// computes the other microbatch. Prints the time with and without overlap, and checks that both
// give the same bytes.
//   04_overlap [RANKS [REPETITIONS]]
//
// The library has no thread of its own. On a CPU the rank's own core copies rows, and overlap does
// not hide that work. It hides waiting. Attention takes longer on a rank whose current sequences
// are longer, and the ranks that need its rows wait. With a second microbatch they have work
// meanwhile, and only the sum of both microbatches must take equally long on all ranks. The gain is
// largest if ranks are uneven and each has a core, and zero if they are even or share a core.
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
using row = std::array<float, hidden>;

// Returns number `i` of a fixed sequence in [0, 1).
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
  peerbus::moe::ticket dispatch{};   // of the dispatch in flight
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
    microbatch result{number, std::vector<bf16>(count * hidden), std::vector<bf16>(count * hidden),
                      std::vector<std::int32_t>(count * top_k),
                      std::vector<float>(count * top_k, 0.5F)};
    for (std::size_t i = 0; i < result.tokens.size(); ++i)
      result.tokens[i] = bf16{noise(i + 7777 * (2 * rank_ + number)) - 0.5F};
    return result;
  }

  // Stands in for attention and for the router. Each token attends to as many keys as its context
  // is long: 1 to 12 blocks, different for every rank, microbatch and layer.
  void attend(microbatch& current, std::size_t layer) const {
    const std::size_t context = (layer * 2 + current.number) * 64 + rank_;
    const auto blocks = 1 + static_cast<std::size_t>(12 * noise(31 * context));
    for (std::size_t t = 0; t < count; ++t) {
      row x, sum{};
      for (std::size_t h = 0; h < hidden; ++h)
        x[h] = static_cast<float>(current.tokens[t * hidden + h]) +
               static_cast<float>(current.sums[t * hidden + h]);
      for (std::size_t j = 0; j < blocks * keys_.size(); ++j)
        add(sum, x[j % hidden], keys_[j % keys_.size()]);
      for (std::size_t h = 0; h < hidden; ++h)
        current.tokens[t * hidden + h] =
            bf16{0.5F * x[h] + sum[h] / static_cast<float>(8 * blocks)};
      const auto first = static_cast<std::int32_t>(noise(context * count + t) * experts);
      current.chosen[t * top_k] = first;
      current.chosen[t * top_k + 1] = (first + 3) % static_cast<std::int32_t>(experts);
    }
  }

  // Each expert is a matrix.
  void run_experts(const microbatch& current) const {
    row x, y;
    for (const auto& expert : current.rows->experts())
      for (std::size_t i = 0; i < expert.count(); ++i) {
        expert.decode(i, x);
        y = {};
        for (std::size_t j = 0; j < hidden; ++j) add(y, x[j], weights_[expert.id() * hidden + j]);
        const auto out = expert.output(i);
        for (std::size_t h = 0; h < hidden; ++h) out[h] = bf16{y[h] / 8};
      }
  }

  void run_in_sequence(std::span<microbatch> batches) {
    for (std::size_t layer = 0; layer < layers; ++layer)
      for (microbatch& current : batches) {
        attend(current, layer);
        current.rows = moe_.dispatch(current.tokens, {current.chosen, current.weights});
        run_experts(current);
        moe_.combine(*current.rows, current.sums);
      }
  }

  void run_overlapped(std::span<microbatch> batches) {
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (microbatch& current : batches) {
        if (layer > 0) moe_.combine_recv(*current.rows, current.sums);
        attend(current, layer);  // The other microbatch travels meanwhile.
        current.dispatch = moe_.dispatch_send(current.tokens, {current.chosen, current.weights});
      }
      for (microbatch& current : batches) {
        current.rows = moe_.dispatch_recv(current.dispatch);
        run_experts(current);
        moe_.combine_send(*current.rows);
      }
    }
    for (microbatch& current : batches) moe_.combine_recv(*current.rows, current.sums);
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

double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

int work(peerbus::communicator<peerbus::unified_bus>& comm, std::size_t repetitions) {
  exchange moe{
      comm,
      {.experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = count, .in_flight = 2}};
  model share{comm.rank().index(), moe};

  // In ms, from the moment when all ranks begin to the moment when all have ended.
  std::vector<double> sequential_times, overlapped_times;
  bool is_equal = true;
  for (std::size_t i = 0; i < repetitions + 1; ++i) {
    std::array sequential{share.make(0), share.make(1)};
    std::array overlapped{share.make(0), share.make(1)};
    const auto measure = [&](auto&& pass) {
      comm.barrier();
      const auto start = std::chrono::steady_clock::now();
      pass();
      comm.barrier();
      return std::chrono::duration<double, std::milli>{std::chrono::steady_clock::now() - start}
          .count();
    };
    const double sequential_ms = measure([&] { share.run_in_sequence(sequential); });
    const double overlapped_ms = measure([&] { share.run_overlapped(overlapped); });
    for (std::size_t b = 0; b < sequential.size(); ++b)
      is_equal = is_equal && sequential[b].tokens == overlapped[b].tokens &&
                 sequential[b].sums == overlapped[b].sums;
    if (i == 0) continue;  // The first repetition only touches the memory.
    sequential_times.push_back(sequential_ms);
    overlapped_times.push_back(overlapped_ms);
  }
  if (comm.rank() == peerbus::rank_id{0}) {
    const double sequential = median(sequential_times), overlapped = median(overlapped_times);
    std::printf("%zu ranks on %u cores, 2 microbatches of %zu tokens, %zu layers, medians of %zu\n",
                comm.size(), std::thread::hardware_concurrency(), count, layers, repetitions);
    std::printf("one after the other  %8.2f ms\noverlapped           %8.2f ms  %+.1f %%\n",
                sequential, overlapped, 100 * (overlapped / sequential - 1));
  }
  if (!is_equal) std::printf("rank %zu: the bytes differ\n", comm.rank().index());
  return is_equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t ranks = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 2;
  const std::size_t repetitions = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 9;
  if (argc > 3 || ranks < 1 || ranks > 64 || repetitions < 1) {
    std::fprintf(stderr,
                 "usage: 04_overlap [RANKS [REPETITIONS]], 1 to 64 ranks, at least 1 repetition\n");
    return 2;
  }
  return peerbus::run<peerbus::unified_bus>(
      ranks, [repetitions](auto& comm) { return work(comm, repetitions); });
}

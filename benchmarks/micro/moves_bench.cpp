// SPDX-License-Identifier: MIT
//
// What a dispatch takes while experts move between ranks: blocks of batches with and without moves
// in turns. Each rank has one expert of 44 MB, as DeepSeek-V3's in FP8, and all move on to the next
// rank, 256 KiB after each batch; every eighth batch asks whether they may change over. Times of
// rank 0, of calls of `dispatch`; the bytes of every expert are checked after each move.
//   still_p50_us, still_p99_us, still_max_us  without moves
//   moving_p50_us, ...                        with
//   ratio_p99                                 moving_p99_us / still_p99_us
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance/expert_weights.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/group.hpp"
#include "support/clock.hpp"
#include "support/statistics.hpp"

namespace micro::moves_bench {
namespace {

constexpr std::size_t hidden = 7168, tokens = 32, block = 64;
constexpr std::size_t expert_bytes = std::size_t{3} * 7168 * 2048;
constexpr std::size_t still = 0, moving = 1;

using communicator = peerbus::communicator<peerbus::unified_bus>;
using exchange = peerbus::moe::exchange<peerbus::unified_bus, peerbus::codec::int8_per_token>;

class mover {
 public:
  mover(communicator& comm, std::size_t bytes_between)
      : comm_{&comm},
        bytes_between_{bytes_between},
        moe_{comm, config_of(comm.size())},
        weights_{comm, moe_.placement(), {.bytes = {expert_bytes}}},
        table_(comm.size()),
        ids_(tokens * config_of(comm.size()).top_k),
        route_weights_(ids_.size(), 1.0F),
        activations_(tokens * hidden, peerbus::bf16{1.0F}),
        out_(activations_.size()) {
    std::iota(table_.begin(), table_.end(), 0U);
    std::memset(weights_.tensor(0, 0).data(), content(), expert_bytes);
    for (std::size_t i = 0; i < ids_.size(); ++i)
      ids_[i] = static_cast<std::int32_t>((i + comm.rank().index()) % comm.size());
  }

  /// Returns the microseconds of the dispatch.
  double serve_batch() {
    const auto begin = bench::clock::now();
    const auto received = moe_.dispatch(activations_, {ids_, route_weights_});
    const double spent = bench::microseconds(bench::clock::now() - begin);
    for (const auto& rows : received.experts())
      for (std::size_t row = 0; row < rows.count(); ++row)
        std::ranges::fill(rows.output(row), peerbus::bf16{1.0F});
    moe_.combine(received, out_);
    return spent;
  }

  /// Moves a part, and changes over if all is there.
  void move_on(std::size_t batch) {
    if (!weights_.is_moving()) {
      std::rotate(table_.begin(), table_.end() - 1, table_.end());
      weights_.begin(table_);
    }
    weights_.advance(bytes_between_);
    if (batch % 8 != 0 || !weights_.commit({}, moe_)) return;
    const auto bytes = weights_.tensor(0, 0);
    if (std::ranges::any_of(bytes, [&](std::byte value) { return value != std::byte{content()}; }))
      is_right_ = false;
    comm_->barrier();  // So that the next dispatch does not wait for ranks that still compare.
  }

  [[nodiscard]] bool is_right() const noexcept { return is_right_; }

 private:
  static peerbus::moe::exchange_config config_of(std::size_t rank_count) {
    return {.experts = rank_count,
            .hidden = hidden,
            .top_k = std::min<std::size_t>(rank_count, 8),
            .max_tokens = tokens};
  }
  /// What the bytes of the expert here are.
  [[nodiscard]] unsigned char content() const {
    return static_cast<unsigned char>(1 + weights_.experts().logical(comm_->rank().index()));
  }

  communicator* comm_;
  std::size_t bytes_between_;
  exchange moe_;
  peerbus::moe::expert_weights weights_;
  std::vector<std::uint32_t> table_;
  std::vector<std::int32_t> ids_;
  std::vector<float> route_weights_;
  std::vector<peerbus::bf16> activations_;
  std::vector<peerbus::bf16> out_;
  bool is_right_ = true;
};

void measure(benchmark::State& state) {
  const found result = run_group<peerbus::unified_bus>(
      state, static_cast<std::size_t>(state.range(0)),
      [&](communicator& comm, std::size_t operations, found& own) {
        mover mine{comm, static_cast<std::size_t>(state.range(1)) << 10U};
        for (std::size_t batch = 0; batch < 8; ++batch) mine.serve_batch();
        std::array<std::vector<double>, 2> times;
        const auto start = bench::clock::now();
        // One block of each at least.
        for (std::size_t batch = 0; batch < std::max(operations, 2 * block); ++batch) {
          const std::size_t kind = batch / block % 2;
          times[kind].push_back(mine.serve_batch());
          if (kind == moving) mine.move_on(batch);
        }
        own.seconds = bench::microseconds(bench::clock::now() - start) / 1e6;
        own.payload_right = mine.is_right();
        for (const std::size_t kind : {still, moving}) {
          const auto of = bench::summarise(times[kind]);
          own.nanoseconds[3 * kind] = of.p50;
          own.nanoseconds[3 * kind + 1] = of.p99;
          own.nanoseconds[3 * kind + 2] = of.max;
        }
      });
  const auto& times = result.nanoseconds;
  constexpr std::array names{"still_p50_us",  "still_p99_us",  "still_max_us",
                             "moving_p50_us", "moving_p99_us", "moving_max_us"};
  for (std::size_t i = 0; i < names.size(); ++i) state.counters[names[i]] = times[i];
  state.counters["ratio_p99"] = times[4] / times[1];
}

BENCHMARK(measure)
    ->Name("moves/dispatch")
    ->ArgNames({"ranks", "KiB"})
    ->ArgsProduct({{2, 8}, {64, 256}})
    ->UseManualTime();

}  // namespace
}  // namespace micro::moves_bench

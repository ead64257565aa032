// SPDX-License-Identifier: MIT
//
// What a dispatch and its combine cost a rank beside rows: both without a token, on one expert a
// rank. With more ranks than cores, ranks take turns on the cores, so the CPU time says more than
// the time from begin to end. With counts first, and with slots.
//   dispatch_cpu_ns, combine_cpu_ns  CPU time of rank 0, user and kernel, for one operation
//   dispatch_ns, combine_ns          median time of rank 0 for one operation
//   cpu_ns_per_peer                  both CPU times together, divided by the number of peers
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/group.hpp"
#include "support/clock.hpp"
#include "support/statistics.hpp"

namespace micro::empty_batch_bench {
namespace {

double cpu_nanoseconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) * 1e9 + static_cast<double>(used.tv_nsec);
}

/// The time and CPU time of operations of one kind.
class account {
 public:
  template <class Operation>
  void add(Operation&& operation) {
    const double cpu_before = cpu_nanoseconds();
    const auto begin = bench::clock::now();
    operation();
    times_.push_back(bench::nanoseconds(bench::clock::now() - begin));
    cpu_ += cpu_nanoseconds() - cpu_before;
  }
  [[nodiscard]] double median() const { return bench::median(times_); }
  [[nodiscard]] double mean_cpu() const { return cpu_ / static_cast<double>(times_.size()); }

 private:
  std::vector<double> times_;
  double cpu_ = 0;
};

template <class Layout>
void empty_batch(benchmark::State& state, std::size_t ranks) {
  const auto result = micro::run_group<peerbus::unified_bus>(
      state, ranks, [&](auto& comm, std::size_t operations, micro::found& found) {
        peerbus::moe::exchange moe{comm,
                                   {.experts = ranks, .hidden = 7168, .top_k = 8, .max_tokens = 4},
                                   peerbus::codec::int8_per_token{},
                                   Layout{}};
        const std::span<const peerbus::bf16> no_tokens;
        const std::span<const std::int32_t> no_experts;
        const std::span<const float> no_weights;
        account dispatches;
        account combines;
        const auto start = bench::clock::now();
        for (std::size_t i = 0; i < operations; ++i) {
          comm.barrier();
          std::optional<typename decltype(moe)::received_type> received;
          dispatches.add([&] { received = moe.dispatch(no_tokens, {no_experts, no_weights}); });
          if (received->rows() != 0) found.payload_right = false;
          combines.add([&] { moe.combine(*received, {}); });
        }
        found.seconds = bench::nanoseconds(bench::clock::now() - start) / 1e9;
        found.nanoseconds = {dispatches.median(), dispatches.mean_cpu(), combines.median(),
                             combines.mean_cpu()};
      });
  const auto [dispatch, dispatch_cpu, combine, combine_cpu] = micro::medians_of<4>(result);
  state.counters["dispatch_ns"] = dispatch;
  state.counters["dispatch_cpu_ns"] = dispatch_cpu;
  state.counters["combine_ns"] = combine;
  state.counters["combine_cpu_ns"] = combine_cpu;
  state.counters["cpu_ns_per_peer"] = (dispatch_cpu + combine_cpu) / static_cast<double>(ranks - 1);
}

[[maybe_unused]] const bool registered = [] {
  const auto add = [](const char* name, auto function) {
    for (const std::size_t ranks : {8U, 64U, 320U})
      benchmark::RegisterBenchmark((std::string{name} + "/ranks:" + std::to_string(ranks)).c_str(),
                                   function, ranks)
          ->UseManualTime()
          ->Iterations(40);
  };
  add("empty_batch", empty_batch<peerbus::moe::compact>);
  add("empty_batch_in_slots", empty_batch<peerbus::moe::expert_slots>);
  return true;
}();

}  // namespace
}  // namespace micro::empty_batch_bench

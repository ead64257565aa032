// SPDX-License-Identifier: MIT
//
// What a recorder costs (`peerbus::recorder`): a dispatch and its combine on 2 ranks, by exchanges
// that take turns, of which one is recorded.
//   trace/<tokens>, medians of single operations of rank 0, each from a barrier
//     plain_ns     without a recorder
//     recorded_ns  with one
//     ratio        their quotient
//     control      a second exchange without a recorder, divided by the first: how far from 1 a
//                  ratio is by chance
//     events       that a dispatch and its combine record
// For steady ratios: --benchmark_repetitions=7 --benchmark_report_aggregates_only=true.
#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/trace/recorder.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/batch.hpp"
#include "micro/group.hpp"
#include "support/clock.hpp"
#include "support/statistics.hpp"

namespace micro::trace_bench {
namespace {

using codec = peerbus::codec::int8_per_token;
using peerbus::unified_bus;

/// An exchange in a group of its own, because listeners hear all of a group.
class contender {
 public:
  contender(peerbus::communicator<unified_bus>& whole, const batch& from, bool is_recorded)
      : from_{&from},
        boot_{whole.bus().boot().subgroup({peerbus::rank_id{0}, peerbus::rank_id{1}})},
        recorder_{is_recorded ? std::make_unique<peerbus::recorder>() : nullptr},
        comm_{listened(*boot_, recorder_.get())},
        moe_{comm_,
             {.experts = experts,
              .hidden = hidden,
              .top_k = top_k,
              .max_tokens = from.ids.size() / top_k},
             codec{}},
        out_(from.tokens.size()) {}
  contender(const contender&) = delete;
  contender& operator=(const contender&) = delete;
  ~contender() {
    if (recorder_) boot_->members()->listeners().remove(*recorder_);
  }

  void play() { moe_.combine(moe_.dispatch(from_->tokens, {from_->ids, from_->weights}), out_); }
  [[nodiscard]] auto& exchange() noexcept { return moe_; }
  /// Returns the number of events so far, of this thread.
  [[nodiscard]] std::size_t events() const { return recorder_->read().front().size(); }

 private:
  static constexpr std::size_t experts = 256;

  static unified_bus listened(peerbus::bootstrap& boot, peerbus::recorder* listener) {
    if (listener != nullptr) boot.members()->listeners().add(*listener);
    return unified_bus{boot};
  }

  const batch* from_;
  std::unique_ptr<peerbus::bootstrap> boot_;
  std::unique_ptr<peerbus::recorder> recorder_;
  peerbus::communicator<unified_bus> comm_;
  peerbus::moe::exchange<unified_bus, codec> moe_;
  std::vector<peerbus::bf16> out_;
};

void dispatch_and_combine(benchmark::State& state) {
  const auto tokens = static_cast<std::size_t>(state.range(0));
  const auto result = micro::run_group<unified_bus>(
      state, 2, [&](auto& comm, std::size_t operations, micro::found& found) {
        const batch mine{tokens, comm.rank().index(), 256};
        contender plain{comm, mine, false};
        contender recorded{comm, mine, true};
        contender control{comm, mine, false};
        found.payload_right = all_sum_to(sums_by(plain.exchange(), mine), mine, recorded.exchange(),
                                         control.exchange());
        const std::size_t before = recorded.events();
        recorded.play();
        const std::size_t events = recorded.events() - before;
        const std::array contenders{&plain, &recorded, &control};
        std::array<std::vector<double>, 3> times;
        const auto begin = bench::clock::now();
        for (std::size_t i = 0; i < operations; ++i)
          for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
            // Whichever comes first finds the tokens elsewhere.
            const std::size_t which = (turn + i) % contenders.size();
            comm.barrier();
            const auto start = bench::clock::now();
            contenders[which]->play();
            times[which].push_back(bench::nanoseconds(bench::clock::now() - start));
          }
        found.seconds = bench::nanoseconds(bench::clock::now() - begin) / 1e9;
        for (std::size_t i = 0; i < times.size(); ++i)
          found.nanoseconds[i] = bench::median(times[i]);
        found.nanoseconds[3] = static_cast<double>(events);
      });
  const auto [plain, recorded, control, events] = micro::medians_of<4>(result);
  state.counters["plain_ns"] = plain;
  state.counters["recorded_ns"] = recorded;
  state.counters["ratio"] = recorded / plain;
  state.counters["control"] = control / plain;
  state.counters["events"] = events;
}

[[maybe_unused]] const bool registered = [] {
  for (const auto& [tokens, operations] : {std::pair{1, 10'000}, std::pair{128, 200}})
    benchmark::RegisterBenchmark("trace", dispatch_and_combine)
        ->UseManualTime()
        ->Arg(tokens)
        ->Iterations(operations);
  return true;
}();

}  // namespace
}  // namespace micro::trace_bench

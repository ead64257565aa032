// SPDX-License-Identifier: MIT
//
// What a transport that is chosen at run time costs: dispatch and combine over one that holds a
// unified_bus, in turns with the same over a unified_bus itself, by the same two ranks on the same
// payload. Times are of rank 0, medians of single operations, each from a barrier.
//   dispatch_ratio  dispatch over the holder, divided by dispatch over the held transport
//   combine_ratio   the same of combine
//   ratio           the same of a dispatch and its combine together
// direct: an any_transport. staged: an any_transport, against a unified_bus without peer
// memory, so that both move rows by puts. control: the held transport against itself, which shows
// how far from 1 a ratio is by chance. c: the interface of C (libpeerbus.so, which holds a
// unified_bus in an any_transport) against an any_transport in C++; both are as this
// build compiles them, so that only a release build compares them fairly. For steady ratios:
// --benchmark_min_time=10.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/batch.hpp"
#if PEERBUS_BENCH_C
#include "micro/c_contender.hpp"
#endif
#include "micro/group.hpp"
#include "support/clock.hpp"
#include "support/put_only_bus.hpp"
#include "support/statistics.hpp"

namespace micro::erased_bench {
namespace {

using peerbus::bf16;
using codec = peerbus::codec::int8_per_token;
using micro::batch;
using micro::hidden;
using micro::top_k;

constexpr std::size_t experts = 16;
constexpr std::size_t ranks = 2;

/// An exchange over one of the transports, and how long its operations took.
template <class Transport>
class contender {
 public:
  contender(Transport bus, std::size_t count)
      : comm_{std::move(bus)},
        moe_{comm_,
             {.experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = count},
             codec{}},
        out_(count * hidden) {}

  void play(const batch& from) {
    dispatch_ns_.push_back(
        timed([&] { received_.emplace(moe_.dispatch(from.tokens, {from.ids, from.weights})); }));
    for (const auto& expert : received_->experts()) {
      const float sign = expert.id() % 2 == 0 ? 1.0F : 3.0F;
      for (bf16& value : expert.outputs()) value = bf16{sign};
    }
    combine_ns_.push_back(timed([&] { moe_.combine(*received_, out_); }));
    both_ns_.push_back(dispatch_ns_.back() + combine_ns_.back());
  }

  /// Returns the latest sums.
  [[nodiscard]] std::span<const bf16> out() const noexcept { return out_; }
  /// Returns the bytes of the rows that the latest dispatch brought.
  [[nodiscard]] auto rows() const noexcept { return std::as_bytes(received_->all_rows()); }
  [[nodiscard]] double dispatch_ns() const { return bench::median(dispatch_ns_); }
  [[nodiscard]] double combine_ns() const { return bench::median(combine_ns_); }
  [[nodiscard]] double both_ns() const { return bench::median(both_ns_); }

 private:
  using exchange = peerbus::moe::exchange<Transport, codec>;

  template <class Operation>
  double timed(Operation&& operation) {
    comm_.barrier();
    const auto start = bench::clock::now();
    operation();
    return bench::nanoseconds(bench::clock::now() - start);
  }

  peerbus::communicator<Transport> comm_;
  exchange moe_;
  std::optional<typename exchange::received_type> received_;
  std::vector<bf16> out_;
  std::vector<double> dispatch_ns_;
  std::vector<double> combine_ns_;
  std::vector<double> both_ns_;
};

/// Returns whether the latest outputs of `one` are the sums that `from` is routed to, and its rows
/// those that `other` received.
template <class One, class Other>
bool has_right_payload(const batch& from, const One& one, const Other& other) {
  for (std::size_t t = 0; t < from.tokens.size() / hidden; ++t) {
    float sum = 0;
    for (std::size_t k = 0; k < top_k; ++k)
      sum += 0.125F * (from.ids[t * top_k + k] % 2 == 0 ? 1.0F : 3.0F);
    for (std::size_t h = 0; h < hidden; ++h)
      if (static_cast<float>(one.out()[t * hidden + h]) != sum) return false;
  }
  const std::span<const std::byte> rows = one.rows();
  const std::span<const std::byte> others = other.rows();
  return !rows.empty() && rows.size() == others.size() &&
         std::memcmp(rows.data(), others.data(), rows.size()) == 0;
}

/// Lets two contenders take turns, and notes their medians.
template <class Plain, class Holder>
void compete(Plain& plain, Holder& holder, const batch& mine, std::size_t operations,
             micro::found& found) {
  const auto start = bench::clock::now();
  for (std::size_t i = 0; i < operations; ++i) {
    // Whichever comes second finds the tokens in the cache.
    if (i % 2 == 0) plain.play(mine);
    holder.play(mine);
    if (i % 2 != 0) plain.play(mine);
  }
  found.seconds = bench::nanoseconds(bench::clock::now() - start) / 1e9;
  found.nanoseconds = {plain.dispatch_ns(), holder.dispatch_ns(), plain.combine_ns(),
                       holder.combine_ns(), plain.both_ns(),      holder.both_ns()};
  found.payload_right = has_right_payload(mine, holder, plain);
}

/// Shows the medians of a holder, and their ratios to those of what it holds.
void set_counters(benchmark::State& state, const micro::found& result) {
  const auto [plain_dispatch, dispatch, plain_combine, combine, plain_both, both] =
      micro::medians_of<6>(result);
  state.counters["dispatch_ns"] = dispatch;
  state.counters["dispatch_ratio"] = dispatch / plain_dispatch;
  state.counters["combine_ns"] = combine;
  state.counters["combine_ratio"] = combine / plain_combine;
  state.counters["ratio"] = both / plain_both;
}

template <class Held, class Erased>
void erased(benchmark::State& state, std::size_t count) {
  const auto result = micro::run_group<Held>(
      state, ranks,
      [&](peerbus::communicator<Held>& comm, std::size_t operations, micro::found& found) {
        peerbus::bootstrap& boot = comm.bus().boot();
        const batch mine{count, comm.rank().index(), experts};
        contender<Held> plain{Held{boot}, count};
        contender<Erased> holder{Erased{Held{boot}}, count};
        compete(plain, holder, mine, operations, found);
      });
  set_counters(state, result);
}

#if PEERBUS_BENCH_C
void through_c(benchmark::State& state, std::size_t count) {
  using peerbus::unified_bus;
  static int group = 0;  // The ranks of each run meet by a name of its own.
  const std::string job =
      "erased_bench." + std::to_string(::getpid()) + "." + std::to_string(group++);
  const auto result = micro::run_group<unified_bus>(
      state, ranks,
      [&](peerbus::communicator<unified_bus>& comm, std::size_t operations, micro::found& found) {
        const std::size_t rank = comm.rank().index();
        const batch mine{count, rank, experts};
        contender<peerbus::any_transport> plain{
            peerbus::any_transport{unified_bus{comm.bus().boot()}}, count};
        micro::c_contender through{rank, ranks, job, experts, count};
        compete(plain, through, mine, operations, found);
      });
  set_counters(state, result);
}
#endif

template <class Held, class Erased>
void add(const std::string& path) {
  for (const std::size_t tokens : {8U, 32U, 128U})
    benchmark::RegisterBenchmark(("erased/" + path + "/tokens:" + std::to_string(tokens)).c_str(),
                                 erased<Held, Erased>, tokens)
        ->UseManualTime();
}

[[maybe_unused]] const bool registered = [] {
  add<peerbus::unified_bus, peerbus::any_transport>("direct");
  add<peerbus::unified_bus, peerbus::unified_bus>("direct_control");
  add<bench::put_only_bus, peerbus::any_transport>("staged");
  add<bench::put_only_bus, bench::put_only_bus>("staged_control");
#if PEERBUS_BENCH_C
  for (const std::size_t tokens : {8U, 128U})
    benchmark::RegisterBenchmark(("erased/c/tokens:" + std::to_string(tokens)).c_str(), through_c,
                                 tokens)
        ->UseManualTime();
#endif
  return true;
}();

}  // namespace
}  // namespace micro::erased_bench

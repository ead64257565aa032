// SPDX-License-Identifier: MIT
//
// Plain against streaming stores, with the reader: two ranks dispatch, then each reads all rows
// that it received, as an expert does first. Then they combine, and each reads its results. Two
// exchanges that differ only in their stores take turns. Times are medians, from a barrier to the
// next.
//
// `ratio` is (dispatch + first read) with streaming stores / the same with plain ones; below 1,
// streaming wins. `combine_ratio` is the same for combine. `batch_bytes` = tokens x top_k x hidden
// is what a rank stores in a dispatch, and what `exchange_config::stream_from` is compared with:
// the least `batch_bytes` from which `ratio` stays below 1 is the value for this machine.
// `default_from` is its default here.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/read_once.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/run.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/batch.hpp"
#include "micro/group.hpp"
#include "support/clock.hpp"
#include "support/pages.hpp"
#include "support/statistics.hpp"

namespace micro::stores_bench {
namespace {

using peerbus::bf16;
using codec = peerbus::codec::int8_per_token;
using communicator = peerbus::communicator<peerbus::unified_bus>;
using micro::batch;
using micro::hidden;
using micro::top_k;

constexpr std::size_t experts = 256;
constexpr std::size_t ranks = 2;

/// Returns whether each row and scale is that of its token, encoded here.
bool right(const peerbus::moe::received<codec>& rows, std::span<const batch> batches) {
  std::array<std::byte, hidden> row;
  std::array<std::byte, sizeof(float)> scale;
  std::size_t count = 0;
  for (const auto& expert : rows.experts()) {
    const auto scales = std::as_bytes(expert.scales());
    for (std::size_t i = 0; i < expert.count(); ++i, ++count) {
      const auto origin = expert.origin(i);
      const batch& source = batches[origin.rank.index()];
      codec{}.encode({source.tokens.data() + origin.token * hidden, hidden}, row, scale);
      if (std::memcmp(row.data(), expert.row(i).data(), row.size()) != 0) return false;
      if (!std::ranges::equal(scale, scales.subspan(i * scale.size(), scale.size()))) return false;
    }
  }
  return count == rows.rows();
}

/// One way to store, and what it took.
class contender {
 public:
  contender(communicator& comm, std::size_t tokens, std::optional<std::size_t> stream_from)
      : comm_{&comm},
        moe_{comm,
             {.experts = experts,
              .hidden = hidden,
              .top_k = top_k,
              .max_tokens = tokens,
              .stream_from = stream_from},
             codec{}},
        out_(tokens * hidden) {}

  void time(const batch& own) {
    peerbus::read_once(std::as_bytes(std::span{own.tokens}));
    comm_->barrier();
    const auto start = bench::clock::now();
    const auto rows = moe_.dispatch(own.tokens, {own.ids, own.weights});
    comm_->barrier();
    const auto sent = bench::clock::now();
    peerbus::read_once(std::as_bytes(rows.all_rows()));
    comm_->barrier();
    dispatches.push_back(bench::nanoseconds(sent - start));
    reads.push_back(bench::nanoseconds(bench::clock::now() - start));

    for (const auto& expert : rows.experts()) std::ranges::fill(expert.outputs(), bf16{1.0F});
    comm_->barrier();
    const auto back = bench::clock::now();
    moe_.combine(rows, out_);
    peerbus::read_once(std::as_bytes(std::span{out_}));
    comm_->barrier();
    combines.push_back(bench::nanoseconds(bench::clock::now() - back));
  }
  /// Checks every byte of a dispatch, and of a combine of 8 outputs that are 1 with weights of 1/8.
  [[nodiscard]] bool is_right(std::span<const batch> batches) {
    const batch& own = batches[comm_->rank().index()];
    const auto rows = moe_.dispatch(own.tokens, {own.ids, own.weights});
    const bool rows_right = right(rows, batches);
    for (const auto& expert : rows.experts()) std::ranges::fill(expert.outputs(), bf16{1.0F});
    moe_.combine(rows, out_);
    const auto is_one = [](bf16 value) { return value == bf16{1.0F}; };
    return std::ranges::all_of(out_, is_one) && rows_right;
  }

  std::vector<double> dispatches;
  std::vector<double> reads;     ///< dispatch and first read
  std::vector<double> combines;  ///< combine and first read

 private:
  communicator* comm_;
  peerbus::moe::exchange<peerbus::unified_bus, codec> moe_;
  std::vector<bf16> out_;
};

/// Returns what `exchange_config::stream_from` is by default for this group on this machine.
double default_stream_from() {
  double found = 0;
  const int status =
      peerbus::run<peerbus::loopback>(ranks, [&](peerbus::communicator<peerbus::loopback>& comm) {
        const peerbus::moe::exchange moe{
            comm, {.experts = ranks, .hidden = hidden, .top_k = 1, .max_tokens = 1}, codec{}};
        if (comm.rank().index() == 0) found = static_cast<double>(*moe.config().stream_from);
      });
  return status == 0 ? found : 0;
}

void stores(benchmark::State& state, std::size_t tokens) {
  const auto result = micro::run_group<peerbus::unified_bus>(
      state, ranks, [&](communicator& comm, std::size_t operations, micro::found& found) {
        const std::vector<batch> batches{batch{tokens, 0, experts}, batch{tokens, 1, experts}};
        contender plain{comm, tokens, peerbus::moe::never_stream};
        contender streaming{comm, tokens, 0};
        // Both checks are collective, whatever the first one finds.
        const auto check = [&] {
          const bool plain_right = plain.is_right(batches);
          if (!streaming.is_right(batches) || !plain_right) found.payload_right = false;
        };
        check();
        for (std::size_t i = 0; i < operations; ++i) {
          plain.time(batches[comm.rank().index()]);
          streaming.time(batches[comm.rank().index()]);
        }
        check();
        for (const double spent : streaming.reads) found.seconds += spent / 1e9;
        found.nanoseconds = {bench::median(plain.dispatches), bench::median(streaming.dispatches),
                             bench::median(plain.reads),      bench::median(streaming.reads),
                             bench::median(plain.combines),   bench::median(streaming.combines)};
      });
  const auto& spent = result.nanoseconds;
  state.counters["batch_bytes"] = static_cast<double>(tokens * top_k * hidden);
  state.counters["default_from"] = default_stream_from();
  state.counters["plain_dispatch_us"] = spent[0] / 1e3;
  state.counters["streaming_dispatch_us"] = spent[1] / 1e3;
  state.counters["plain_us"] = spent[2] / 1e3;
  state.counters["streaming_us"] = spent[3] / 1e3;
  state.counters["ratio"] = spent[3] / spent[2];
  state.counters["combine_ratio"] = spent[5] / spent[4];
}

const bool registered = [] {
  for (const std::size_t tokens : {8U, 16U, 32U, 64U, 128U, 256U, 512U, 1024U, 2048U, 4096U})
    benchmark::RegisterBenchmark(("stores/tokens:" + std::to_string(tokens)).c_str(), stores,
                                 tokens)
        ->UseManualTime();
  return true;
}();

}  // namespace
}  // namespace micro::stores_bench

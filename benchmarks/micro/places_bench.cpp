// SPDX-License-Identifier: MIT
//
// Two ways for a sender to know where a row goes. Fixed slots: [expert][source][max_tokens], so
// rows leave at once, with their counts behind them, and lie with gaps at the expert. Counts first,
// as the exchange does it: counts go ahead, and rows lie without gaps. And fixed slots whose rows
// the receiver packs afterwards, for a grouped GEMM that wants them without gaps.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/batch.hpp"
#include "micro/blocks.hpp"
#include "micro/group.hpp"
#include "support/copy_encoder.hpp"

namespace micro::places_bench {
namespace {

using peerbus::rank_id;
using peerbus::signal_id;
using codec = peerbus::codec::int8_per_token;
using micro::batch;
using micro::hidden;
using micro::top_k;

constexpr std::size_t experts = 256;
constexpr std::size_t ranks = 2;
constexpr std::size_t local_experts = experts / ranks;

/// Fixed slots on windows of two halves that take turns, so that a half is written again only after
/// its reader has signalled in the one between.
class fixed_slots {
 public:
  fixed_slots(peerbus::communicator<peerbus::unified_bus>& comm, std::size_t max_tokens)
      : comm_{&comm},
        slots_{max_tokens},
        half_bytes_{counts_bytes + local_experts * ranks * slots_ * row_bytes},
        window_{comm.make_window(2 * half_bytes_, ranks)},
        packed_(ranks * max_tokens * top_k * row_bytes) {}

  void dispatch(const batch& from, bool pack) {
    ++epoch_;
    const std::size_t half = epoch_ % 2 * half_bytes_;
    std::uint32_t next[experts] = {};
    for (std::size_t t = 0; t < from.tokens.size() / hidden; ++t) {
      std::byte* rows[top_k];
      std::byte* scales[top_k];
      for (std::size_t k = 0; k < top_k; ++k) {
        const auto e = static_cast<std::size_t>(from.ids[t * top_k + k]);
        std::byte* const part = window_.peer(rank_id{e / local_experts}).data() + half;
        rows[k] = part + counts_bytes + slot(e % local_experts, me(), next[e]++) * row_bytes;
        scales[k] = rows[k] + hidden;
      }
      encoder_.encode({from.tokens.data() + t * hidden, hidden}, rows, scales);
    }
    const rank_id peer{1 - me()};
    for (const rank_id to : comm_->ranks())
      std::memcpy(window_.peer(to).data() + half + me() * local_experts * sizeof(std::uint32_t),
                  next + to.index() * local_experts, local_experts * sizeof(std::uint32_t));
    peerbus::check(window_.signal(peer, signal_of(me()), epoch_), "signal");
    window_.await(signal_of(peer.index()), epoch_, comm_->default_deadline(), peer);
    if (pack) pack_rows(half);
  }

  [[nodiscard]] std::span<const std::byte> packed() const noexcept { return packed_; }

 private:
  static constexpr std::size_t row_bytes = hidden + 64;  // The scale behind the row, and padding.
  static constexpr std::size_t counts_bytes = ranks * local_experts * sizeof(std::uint32_t);

  [[nodiscard]] std::size_t me() const noexcept { return comm_->rank().index(); }
  [[nodiscard]] std::size_t slot(std::size_t e, std::size_t source, std::size_t n) const noexcept {
    return (e * ranks + source) * slots_ + n;
  }
  static signal_id signal_of(std::size_t source) { return static_cast<signal_id>(source); }

  void pack_rows(std::size_t half) {
    const std::byte* const part = window_.local().data() + half;
    const auto* const counts = reinterpret_cast<const std::uint32_t*>(part);
    std::byte* to = packed_.data();
    for (std::size_t e = 0; e < local_experts; ++e)
      for (std::size_t source = 0; source < ranks; ++source) {
        const std::size_t bytes = counts[source * local_experts + e] * row_bytes;
        std::memcpy(to, part + counts_bytes + slot(e, source, 0) * row_bytes, bytes);
        to += bytes;
      }
  }

  peerbus::communicator<peerbus::unified_bus>* comm_;
  std::size_t slots_;
  std::size_t half_bytes_;
  peerbus::window<peerbus::unified_bus> window_;
  std::vector<std::byte> packed_;
  bench::copy_encoder<codec> encoder_{hidden};
  std::uint64_t epoch_ = 0;

 public:
  /// Whether the packed rows are those of a dispatch of the exchange.
  [[nodiscard]] bool same(const peerbus::moe::received<codec>& other) const {
    const std::byte* row = packed_.data();
    for (const auto& expert : other.experts())
      for (std::size_t i = 0; i < expert.count(); ++i, row += row_bytes)
        if (std::memcmp(row, expert.row(i).data(), hidden) != 0) return false;
    return true;
  }
};

void dispatch(benchmark::State& state, std::size_t tokens) {
  const auto result = micro::run_group<peerbus::unified_bus>(
      state, ranks, [&](auto& comm, std::size_t operations, micro::found& found) {
        const batch mine{tokens, comm.rank().index(), experts};
        peerbus::moe::exchange moe{
            comm,
            {.experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = tokens},
            codec{}};
        fixed_slots fixed{comm, tokens};
        const auto times = [](auto&& once) {
          return [once](std::size_t count) {
            for (std::size_t i = 0; i < count; ++i) once();
          };
        };
        // Touches all memory before it is timed.
        for (int i = 0; i < 2; ++i) fixed.dispatch(mine, true);
        found.payload_right = fixed.same(moe.dispatch(mine.tokens, {mine.ids, mine.weights}));
        comm.barrier();
        micro::alternate(operations, 1, found, times([&] { fixed.dispatch(mine, false); }),
                         times([&] { fixed.dispatch(mine, true); }), times([&] {
                           static_cast<void>(moe.dispatch(mine.tokens, {mine.ids, mine.weights}));
                         }));
      });
  state.counters["fixed_ns"] = result.nanoseconds[0];
  state.counters["fixed_packed_ns"] = result.nanoseconds[1];
  state.counters["counts_first_ns"] = result.nanoseconds[2];
}

[[maybe_unused]] const bool registered = [] {
  for (const std::size_t tokens : {1U, 8U, 32U, 128U})
    benchmark::RegisterBenchmark(("places/tokens:" + std::to_string(tokens)).c_str(), dispatch,
                                 tokens)
        ->UseManualTime();
  return true;
}();

}  // namespace
}  // namespace micro::places_bench

// SPDX-License-Identifier: MIT
//
// Writing to a peer that is not looking: put of 8 bytes to 1 MiB beside memcpy to the same place,
// and signal beside a plain store.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/blocks.hpp"
#include "micro/group.hpp"
#include "micro/one_sided.hpp"

namespace micro::put_cost_bench {
namespace {

using peerbus::rank_id;
using peerbus::signal_id;

template <class Transport>
void put(benchmark::State& state, std::size_t bytes) {
  constexpr std::byte sent{2};
  const auto result = micro::one_sided<Transport>(
      state, bytes,
      [&](auto& window, std::size_t operations, micro::found& found) {
        const std::vector<std::byte> other(bytes, std::byte{1});
        const std::vector<std::byte> source(bytes, sent);
        std::byte* const target = window.peer(rank_id{1}).data();
        micro::alternate(
            operations, 1, found,
            [&](std::size_t count) {
              for (std::size_t i = 0; i < count; ++i) {
                std::memcpy(target, other.data(), bytes);
                benchmark::ClobberMemory();
              }
            },
            [&](std::size_t count) {
              for (std::size_t i = 0; i < count; ++i) {
                peerbus::check(window.put(rank_id{1}, 0, std::span{source}), "put");
                benchmark::ClobberMemory();
              }
            });
      },
      [&](auto& window, std::size_t) {
        return std::ranges::all_of(window.local(), [&](std::byte seen) { return seen == sent; });
      });
  micro::compare(state, "memcpy_ns", result);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

template <class Transport>
void signal(benchmark::State& state) {
  const auto result = micro::one_sided<Transport>(
      state, sizeof(std::uint64_t),
      [&](auto& window, std::size_t operations, micro::found& found) {
        auto& word = window.template peer<std::uint64_t>(rank_id{1}).front();
        std::uint64_t epoch = 0;
        micro::alternate(
            operations, 1, found,
            [&](std::size_t count) {
              for (std::size_t i = 0; i < count; ++i) {
                word = 0;
                benchmark::ClobberMemory();
              }
            },
            [&](std::size_t count) {
              for (std::size_t i = 0; i < count; ++i)
                peerbus::check(window.signal(rank_id{1}, signal_id{0}, ++epoch), "signal");
            });
      },
      [](auto& window, std::size_t operations) {
        return window.value(signal_id{0}) == operations;
      });
  micro::compare(state, "store_ns", result);
}

template <class Transport>
void add(const std::string& transport) {
  for (const std::size_t bytes : {8U, 64U, 512U, 4096U, 32768U, 262144U, 1048576U})
    benchmark::RegisterBenchmark(("put/" + transport + "/bytes:" + std::to_string(bytes)).c_str(),
                                 put<Transport>, bytes)
        ->UseManualTime();
  benchmark::RegisterBenchmark(("signal/" + transport).c_str(), signal<Transport>)->UseManualTime();
}

[[maybe_unused]] const bool registered = [] {
  add<peerbus::unified_bus>("unified_bus");
  add<peerbus::loopback>("loopback");
  return true;
}();

}  // namespace
}  // namespace micro::put_cost_bench

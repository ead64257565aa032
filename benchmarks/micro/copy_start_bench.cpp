// SPDX-License-Identifier: MIT
//
// What it costs to start a copy to another process: a put, which is a store into memory that both
// map, in turns with process_vm_writev, by which the kernel copies to the same place of the same
// process. From 8 bytes, where nothing but the start counts, to 1 MiB, to show where they meet.
#include <unistd.h>

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
#include <peerbus/transport/unified_bus.hpp>

#include "micro/blocks.hpp"
#include "micro/group.hpp"
#include "micro/one_sided.hpp"
#include "support/kernel_copy.hpp"

namespace micro::copy_start_bench {
namespace {

using peerbus::rank_id;

/// Where rank 1 finds its part of the window, in its own words.
struct card {
  bench::far_address start;
  pid_t process;
};

/// The window is the card, then two places: for what is timed, and for one copy of each kind.
class places {
 public:
  explicit places(std::size_t bytes) : bytes_{bytes} {}

  static constexpr std::size_t timed = 4096;  ///< A page for the card.
  [[nodiscard]] std::size_t by_kernel() const noexcept { return timed + bytes_; }
  [[nodiscard]] std::size_t by_put() const noexcept { return timed + 2 * bytes_; }
  [[nodiscard]] std::size_t all() const noexcept { return timed + 3 * bytes_; }

 private:
  std::size_t bytes_;
};

constexpr std::byte kernel_sent{1};
constexpr std::byte put_sent{2};

void copy_start(benchmark::State& state, std::size_t bytes) {
  const places at{bytes};
  const auto result = micro::one_sided<peerbus::unified_bus>(
      state, at.all(),
      [](auto& window) {
        bench::allow_kernel_copies();
        const card mine{reinterpret_cast<bench::far_address>(window.local().data()), ::getpid()};
        std::memcpy(window.local().data(), &mine, sizeof mine);
      },
      [&](auto& window, std::size_t operations, micro::found& found) {
        card there{};
        std::memcpy(&there, window.peer(rank_id{1}).data(), sizeof there);
        const std::vector<std::byte> first(bytes, kernel_sent);
        const std::vector<std::byte> second(bytes, put_sent);
        const auto copy = [&](std::size_t to) {
          return bench::try_kernel_copy(there.process, there.start + to, first.data(), bytes);
        };
        const auto put = [&](std::size_t to) {
          peerbus::check(window.put(rank_id{1}, to, std::span{second}), "put");
          benchmark::ClobberMemory();
        };
        found.refusal = copy(at.by_kernel());
        if (found.refusal != 0) return;
        put(at.by_put());
        micro::alternate(
            operations, 1, found,
            [&](std::size_t count) {
              for (std::size_t i = 0; i < count; ++i)
                if (const int code = copy(places::timed); code != 0) found.refusal = code;
            },
            [&](std::size_t count) {
              for (std::size_t i = 0; i < count; ++i) put(places::timed);
            });
      },
      [&](auto& window, std::size_t) {
        const auto is = [&](std::size_t place, std::byte sent) {
          return std::ranges::all_of(window.local().subspan(place, bytes),
                                     [&](std::byte seen) { return seen == sent; });
        };
        return is(places::timed, put_sent) && is(at.by_kernel(), kernel_sent) &&
               is(at.by_put(), put_sent);
      });
  const double kernel = result.nanoseconds[0];
  const double put = result.nanoseconds[1];
  state.counters["kernel_ns"] = kernel;
  state.counters["put_ns"] = put;
  state.counters["kernel_per_put"] = kernel / put;
}

[[maybe_unused]] const bool registered = [] {
  for (const std::size_t bytes :
       {8U, 16U, 32U, 64U, 128U, 256U, 512U, 4096U, 32768U, 262144U, 1048576U})
    benchmark::RegisterBenchmark(("copy_start/bytes:" + std::to_string(bytes)).c_str(), copy_start,
                                 bytes)
        // Not chosen by the time of a put, in which the kernel's copies would take minutes.
        ->Iterations(bytes <= 4096 ? 50'000 : 2'000)
        ->UseManualTime();
  return true;
}();

}  // namespace
}  // namespace micro::copy_start_bench

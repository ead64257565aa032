// SPDX-License-Identifier: MIT
#include "put_bench/measure.hpp"

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "support/statistics.hpp"

namespace put_bench {
namespace {

/// What one contender took.
struct samples {
  std::vector<double> all;
  std::vector<double> medians;  ///< of its blocks

  void add(const std::vector<double>& block) {
    all.insert(all.end(), block.begin(), block.end());
    medians.push_back(bench::median(block));
  }
  /// Returns the figures of all samples, with the median of the blocks' medians.
  [[nodiscard]] bench::statistics figures() const {
    bench::statistics found = bench::summarise(all);
    found.p50 = bench::median(medians);
    return found;
  }
};

/// Calls `play(contender)` for each of `taking_part` in turns. Returns: the samples of each,
/// without those of the first block, which warms up.
template <class Play>
std::vector<samples> take_turns(const std::vector<contender*>& taking_part, const turns& how,
                                Play play) {
  std::vector<samples> found(taking_part.size());
  for (std::size_t block = 0; block <= how.blocks; ++block)
    for (std::size_t i = 0; i < taking_part.size(); ++i) {
      const std::vector<double> block_of_one = play(*taking_part[i]);
      how.end_turn();
      if (block != 0) found[i].add(block_of_one);
    }
  return found;
}

template <class Takes>
std::vector<contender*> those_that(const contenders& all, Takes takes) {
  std::vector<contender*> found;
  for (const auto& each : all)
    if (takes(*each)) found.push_back(each.get());
  return found;
}

/// Returns the p50 of the contender with which number `i` is compared.
double reference_p50(const std::vector<contender*>& taking_part, const std::vector<samples>& found,
                     std::size_t i) {
  std::size_t reference = 0;
  for (std::size_t j = 0; j < taking_part.size(); ++j)
    if (taking_part[j]->name() == taking_part[i]->reference()) reference = j;
  return found[reference].figures().p50;
}

bench::json figures_json(const bench::statistics& time, double scale) {
  const auto value = [&](double each) { return bench::rounded(each * scale); };
  return {{"min", value(time.min)}, {"p50", value(time.p50)}, {"p99", value(time.p99)}};
}

}  // namespace

bench::json measure_latency(const std::string& title, const contenders& all,
                            std::span<const std::size_t> sizes, const turns& how) {
  bench::json results = bench::json::array();
  if (how.prints)
    std::printf("\n%-42s%10s%10s%10s%10s%10s\n", title.c_str(), "bytes", "min", "p50", "p99",
                "ratio");
  for (const std::size_t bytes : sizes) {
    const auto sending = those_that(all, [&](const contender& c) { return c.sends(bytes); });
    const auto found = take_turns(
        sending, how, [&](contender& each) { return each.ping_pong(bytes, how.rounds); });
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto figures = found[i].figures();
      const double ratio = figures.p50 / reference_p50(sending, found, i);
      if (how.prints)
        std::printf("%-42s%10zu%10.3f%10.3f%10.3f%10.2f\n", sending[i]->name().c_str(), bytes,
                    figures.min, figures.p50, figures.p99, ratio);
      results.push_back({{"contender", sending[i]->name()},
                         {"bytes", bytes},
                         {"one_way_us", figures_json(figures, 1)},
                         {"one_way_ns", figures_json(figures, 1000)},
                         {"ratio", bench::rounded(ratio)}});
    }
  }
  if (how.prints)
    std::puts(
        "one way = half of the time from a message until its answer is there; p50: median of "
        "the blocks' medians");
  return results;
}

bench::json measure_bandwidth(const contenders& all, std::span<const named_stream> streams,
                              const turns& how) {
  bench::json results = bench::json::array();
  const auto streaming = those_that(all, [](const contender& c) { return c.streams(); });
  if (streaming.empty()) return results;
  if (how.prints)
    std::printf("\n%-42s%10s%10s%12s%10s%10s%10s\n", "messages to one peer", "bytes", "messages",
                "us/message", "MB/s", "best", "ratio");
  for (const auto& [name, shape] : streams) {
    const auto found = take_turns(streaming, how, [&, &shape = shape](contender& each) {
      return std::vector{each.stream(shape) / static_cast<double>(shape.messages)};
    });
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto figures = found[i].figures();
      const auto rate = [&, &shape = shape](double us) {
        return static_cast<double>(shape.bytes) / us;
      };
      const double ratio = rate(figures.p50) / rate(reference_p50(streaming, found, i));
      const std::string title = streaming[i]->name() + ", " + name;
      if (how.prints)
        std::printf("%-42s%10zu%10zu%12.2f%10.1f%10.1f%10.2f\n", title.c_str(), shape.bytes,
                    shape.messages, figures.p50, rate(figures.p50), rate(figures.min), ratio);
      results.push_back({{"contender", streaming[i]->name()},
                         {"bytes", shape.bytes},
                         {"messages", shape.messages},
                         {"gap", shape.gap},
                         {"us_per_message", figures_json(figures, 1)},
                         {"megabytes_per_second", rate(figures.p50)},
                         {"ratio", bench::rounded(ratio)}});
    }
  }
  if (how.prints)
    std::puts(
        "us/message = (from the first message until the peer's answer to the signal behind the "
        "last) "
        "/ messages,\n  p50 of the blocks; MB/s = bytes / that, of 10^6; best: of the fastest "
        "block");
  return results;
}

}  // namespace put_bench

// SPDX-License-Identifier: MIT
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/moe/choices.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/stores.hpp>

#include "ep_bench/figures.hpp"
#include "ep_bench/report.hpp"

namespace ep_bench {
namespace {

/// One decimal, or two where the first alone would hide a difference.
void print_time(double microseconds) {
  std::printf("%10.*f", microseconds < 100 ? 2 : 1, microseconds);
}

void print_row(const char* name, const bench::statistics& time) {
  std::printf("%-10s", name);
  for (const double value : {time.min, time.p50, time.p90, time.p99, time.max}) print_time(value);
}

void print_bytes(std::size_t bytes, const bench::statistics& time) {
  std::printf("%12zu%8.1f", bytes, gigabytes_per_second(bytes, time.p50));
}
void print_comparison(const bench::statistics& time, double least) {
  print_time(least);
  std::printf("%8.2f\n", time.p50 / least);
}

void print_limit(const outcome& result, const figures& found) {
  const limit& there = found.dispatch_limit;
  const limit& back = found.combine_limit;
  std::printf(
      "limit     of a perfect program, from medians of what was measured in turns with the "
      "operations:\n          dispatch: %.2f us by %s",
      there.copy, words_for_copies(result, there.streams).c_str());
  std::printf(
      " + %.2f of reading and encoding + %.2f of signals' ways\n          combine: %.2f us "
      "of %s + %.2f of a signal's way\n",
      there.encode, there.signals, back.copy,
      result.floor == floor_kind::puts ? "such puts"
      : back.streams                   ? "reading the outputs and streaming the results"
                                       : "reading the outputs and writing the results",
      back.signals);
}

void print_stores(const peerbus::moe::store_choice& found) {
  std::printf("stores    of rank 0: %s, %s", std::string{describe(found.kind)}.c_str(),
              std::string{describe(found.why)}.c_str());
  if (found.trials > 0) std::printf(" in %zu trial%s", found.trials, found.trials == 1 ? "" : "s");
  if (found.plain_us > 0)
    std::printf(
        ": to write rows, read as many, sum outputs and read the sums took it %.2f "
        "us with plain "
        "stores and %.2f us with streaming ones",
        found.plain_us, found.streaming_us);
  std::printf("\n");
}

void print_slowest_rank(const outcome& result) {
  std::printf("ranks     slowest by its median, and the median of all:");
  const char* between = "";
  for (const auto& [name, which] : operation_series) {
    const bench::slowest_rank found = result.slowest_in(which);
    std::printf("%s %s rank %zu with %.2f us, all %.2f", between, name, found.rank, found.median,
                found.median_of_all);
    between = ";";
  }
  std::printf("\n");
}

void print_core_use(const char* operation, const core_use& taken) {
  std::printf(
      "core      of rank 0, its calling thread: %s takes %.1f us of it, and gives it up %.1f "
      "times, "
      "of which %.1f to sleep\n",
      operation, taken.cpu_us, taken.sleeps + taken.yields, taken.sleeps);
}

void print_replans(const std::vector<replan>& all) {
  for (const replan& each : all)
    std::printf(
        "plan      after %zu iterations: %zu places got another expert, balancedness %.3f to "
        "%.3f\n",
        each.step, each.moves, each.before, each.after);
}

void print_protocol(const options& chosen, const peerbus::moe::protocol_choice& made) {
  const std::string name{describe(made.chosen)};
  std::printf(
      "protocol  %s, %s: by %s costs a round of counts takes %.2f us, and rows in slots take %.2f "
      "us longer\n",
      name.c_str(),
      made.why == peerbus::moe::protocol_reason::configured ? "as asked for" : "chosen",
      made.why == peerbus::moe::protocol_reason::assumed || chosen.costs.empty() ? "assumed"
                                                                                 : "the given",
      made.estimate.counts_us, made.estimate.slots_us);
}

}  // namespace

void print_machine(const bench::machine& where, std::size_t cores) {
  std::printf("machine   %s, %zu cores, %zu usable; %s; %s; huge pages %s; kernels %s\n\n",
              where.cpu.c_str(), where.cores, cores, where.kernel.c_str(), where.compiler.c_str(),
              where.huge_pages.c_str(), where.kernel_set.c_str());
}

void print_check(const std::string& wrong, std::string_view checked) {
  const std::string_view text = wrong.empty() ? checked : wrong;
  std::printf("check     %s: %.*s\n", wrong.empty() ? "passed" : "FAILED",
              static_cast<int>(text.size()), text.data());
}

void print(const options& chosen, const group& who, const bench::machine& where,
           const outcome& result) {
  std::printf(
      "ep_bench  %zu ranks over %s, %s; %s tokens a rank, hidden %zu, top-%zu of %zu "
      "experts, %s, %s, %s, %zu iterations\n",
      who.ranks, chosen.transport.c_str(), who.placement.c_str(), words_for_tokens(chosen).c_str(),
      chosen.hidden, chosen.top_k, chosen.experts, chosen.codec.c_str(),
      words_for_layout(chosen).c_str(), chosen.routing.c_str(), result.iterations());
  print_machine(where, result.cores);
  if (const auto found = figures::of_run(result)) {
    std::printf("%-10s%10s%10s%10s%10s%10s%12s%8s%10s%8s\n", "us", "min", "p50", "p90", "p99",
                "max", "bytes/rank", "GB/s", "limit", "ratio");
    print_row("dispatch", found->dispatch);
    print_bytes(result.dispatch_bytes, found->dispatch);
    print_comparison(found->dispatch, found->dispatch_limit.total());
    if (found->read) {
      print_row("read", *found->read);
      print_bytes(result.dispatch_bytes, *found->read);
      std::printf("\n");
    }
    if (found->experts) {
      print_row("experts", *found->experts);
      std::printf("\n");
    }
    print_row("combine", found->combine);
    print_bytes(result.combine_bytes, found->combine);
    print_comparison(found->combine, found->combine_limit.total());
    print_row("sum", found->sum);
    std::printf("%20s", "");
    print_comparison(found->sum, found->sum_limit);
    std::printf("\ntimes     of the slowest rank of each iteration, in microseconds; %s\n",
                words_for_between(chosen).c_str());
    print_slowest_rank(result);
    print_limit(result, *found);
    if (!result.noise.empty())
      std::printf("noise     %s: no figures to compare or to keep\n", result.noise.c_str());
    const bool puts = result.floor == floor_kind::puts;
    if (found->streaming_dispatch)
      std::printf(
          "          of one rank's bytes a plain copy takes %.1f us, a streaming one %.1f us\n",
          found->plain_dispatch.p50, found->streaming_dispatch->p50);
    if (chosen.lanes > 1 && puts)
      std::printf("          plain puts have one thread a rank, an operation %zu\n", chosen.lanes);
    else if (chosen.lanes > 1)
      std::printf("          a plain copy has one thread a rank, an operation %zu\n", chosen.lanes);
    if (found->signal_one_way_ns)
      std::printf("signal    %.0f ns one way: %s between ranks 0 and 1%s\n",
                  *found->signal_one_way_ns,
                  puts ? "a signal of the transport and nothing else" : "a bare cache line",
                  !result.crowded ? ""
                  : puts          ? ", the least of all, while ranks share cores"
                                  : ", the least of all, yielding, as ranks share cores");
    std::printf(
        "load      rows of experts: %.0f at the hottest rank, %.1f in the mean of all: "
        "balancedness %.3f\n",
        result.load.most_rows, result.load.mean_rows, result.load.balancedness());
    print_replans(result.replans);
    print_stores(result.stores);
    if (result.crowded) {
      print_core_use("a dispatch", result.dispatch_core);
      print_core_use("a combine", result.combine_core);
    }
    if (result.planes)
      std::printf(
          "planes    rank 0 has %zu near ranks and %zu far; a dispatch and combine took\n"
          "          far: %.0f bytes in %.0f messages of rank 0, as the transport counts them\n"
          "          near: %.0f bytes: %zu of %zu rows that rank 0 stored, %zu of their outputs "
          "that it loaded, %.0f put in %.0f messages\n",
          result.planes->near_ranks - 1, who.ranks - result.planes->near_ranks,
          result.planes->far_bytes, result.planes->far_messages, result.planes->near_bytes(),
          result.planes->rows.near_bytes, result.planes->rows.near_rows,
          result.planes->rows.near_output_bytes, result.planes->near_put_bytes,
          result.planes->near_messages);
    if (result.planes) {
      const auto tokens = static_cast<double>(chosen.tokens);
      const peerbus::moe::relay_estimate& expected = result.choices.relay.estimate;
      std::printf(
          "          rows of such tokens are expected to take %.0f far bytes with one level and "
          "%.0f "
          "with two\n          %s\n",
          tokens * expected.far_bytes_flat, tokens * expected.far_bytes_relay,
          describe(result.choices.relay).c_str());
      const double floor_us = found->plain_dispatch.p50 + found->combine_limit.copy;
      const auto floor_bytes = static_cast<double>(result.dispatch_bytes + result.combine_bytes);
      std::printf(
          "          the plain puts of the limit take %.4f ns a byte: moe.relay.far_byte_ns if all "
          "ranks are far (--groups %zu), near_byte_ns if all are near (--groups 1)\n",
          1000 * floor_us / floor_bytes, who.ranks);
    }
    std::printf("bytes     %s; GB/s of 10^9 at p50\n", bytes_formula(chosen).c_str());
  }
  if (result.choices.protocol.why != peerbus::moe::protocol_reason::layout)
    print_protocol(chosen, result.choices.protocol);
  print_check(result.wrong, what_is_checked);
}

}  // namespace ep_bench

// SPDX-License-Identifier: MIT
//
// What DeepEP's names cost over peerbus's own calls: both in turns in one run, with the same
// tokens, routing and layout. With --relay: what relay gains them over hosts. Its JSON has the
// names of ep_bench's and mpi_ep's, so that benchmarks/compare.sh can set deep_ep against MPI.
#include <cstddef>
#include <cstdio>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "deep_ep/low_latency.hpp"
#include "deep_ep/normal.hpp"
#include "deep_ep/options.hpp"
#include "deep_ep/pair.hpp"
#include "deep_ep/relay.hpp"
#include "examples/support/command_line.hpp"
#include "support/json.hpp"
#include "support/noise.hpp"
#include "support/pin.hpp"
#include "support/statistics.hpp"

namespace deep_ep_bench {
namespace {

using transport = peerbus::unified_bus;

constexpr side_names own_and_names{{"own calls", "deep_ep"}, "native_"};

constexpr const char* what_is_checked =
    "against a plain reference, before and after timing: every combined element, bit by bit, or "
    "with relay within the roundings of the hosts' sums";

bench::json times_json(const std::vector<double>& times) {
  return bench::statistics_json(bench::summarise(times));
}

void print_line(const char* what, const std::array<std::vector<double>, 2>& times) {
  const bench::statistics native = bench::summarise(times[0]);
  const bench::statistics adapter = bench::summarise(times[1]);
  if (native.p50 == 0) {
    std::printf("%-10s%28s%12.1f  (%.1f .. %.1f)\n", what, "-", adapter.p50, adapter.p10,
                adapter.p90);
    return;
  }
  std::printf("%-10s%12.1f  (%.1f .. %.1f)%12.1f  (%.1f .. %.1f)%10.3f\n", what, native.p50,
              native.p10, native.p90, adapter.p50, adapter.p10, adapter.p90,
              adapter.p50 / native.p50);
}

void report(const options& chosen, const side_names& names, const outcome& result) {
  const ep_bench::options& payload = chosen.payload;
  std::printf("%zu ranks, %zu tokens, hidden %zu, top-%zu of %zu, %s, %s%s%s\n", payload.ranks,
              payload.tokens, payload.hidden, payload.top_k, payload.experts, chosen.mode.c_str(),
              payload.codec.c_str(), chosen.zero_copy ? ", zero copy" : "",
              chosen.relay ? ", pretended hosts" : "");
  if (!result.wrong.empty()) {
    std::printf("WRONG: %s\n", result.wrong.c_str());
  } else {
    std::printf("%-10s%12s, p50 (p10 .. p90)%25s%14s\n", "us", names.words[0], names.words[1],
                "ratio");
    print_line("dispatch", result.dispatch);
    print_line("combine", result.combine);
    std::printf(
        "ratio = %s p50 / %s p50; each sample is the slowest rank's time from a barrier "
        "on\n",
        names.words[1], names.words[0]);
    if (chosen.twice) {
      const bench::statistics first = bench::summarise(result.combine[1]);
      const bench::statistics second = bench::summarise(result.second_combine);
      std::printf(
          "deep_ep's second combine by one handle %.1f  (%.1f .. %.1f), %.3f of the first\n",
          second.p50, second.p10, second.p90, second.p50 / first.p50);
    }
  }
  if (chosen.json.empty()) return;
  bench::json all{{"check", bench::check_json(result.wrong, what_is_checked)}};
  if (result.wrong.empty() && !chosen.alone) {
    all[std::string{names.first_key} + "dispatch_us"] = times_json(result.dispatch[0]);
    all[std::string{names.first_key} + "combine_us"] = times_json(result.combine[0]);
  }
  if (result.wrong.empty()) {
    all["dispatch_us"] = times_json(result.dispatch[1]);
    all["combine_us"] = times_json(result.combine[1]);
    if (chosen.twice) all["second_combine_us"] = times_json(result.second_combine);
    all["noise"] = bench::noise_json(
        payload.noise,
        bench::signs_of_noise(payload.noise, {{"dispatch", bench::summarise(result.dispatch[1])},
                                              {"combine", bench::summarise(result.combine[1])}}));
  }
  bench::write_json(chosen.json, all);
}

template <class Codec>
using low_latency_sides = two_sides<low_latency_memory<Codec>, low_latency_own<transport, Codec>,
                                    low_latency_names<transport, Codec>>;

outcome measure_names(peerbus::bootstrap& boot, const options& chosen) {
  peerbus::communicator<transport> comm{transport{boot}};
  if (chosen.mode == "normal")
    return measure<two_sides<normal_memory, normal_own<transport>, normal_names<transport>>>(
        comm, chosen, own_and_names);
  if (chosen.payload.codec == "bf16")
    return measure<low_latency_sides<peerbus::codec::bf16>>(comm, chosen, own_and_names);
  return measure<low_latency_sides<peerbus::codec::fp8_e4m3_per_128_f32>>(comm, chosen,
                                                                          own_and_names);
}

int run_rank(peerbus::bootstrap& boot, const options& chosen) {
  if (boot.ranks_here() <= boot.cores_here()) bench::pin_this_thread(boot.rank().index());
  const outcome result = chosen.relay ? measure_relay(boot, chosen) : measure_names(boot, chosen);
  if (boot.rank().index() == 0) report(chosen, chosen.relay ? relay_names : own_and_names, result);
  return result.wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace deep_ep_bench

int main(int argc, char** argv) {
  deep_ep_bench::options chosen;
  chosen.payload.codec = "bf16";
  programs::command_line line{"deep_ep_bench",
                              "What DeepEP's names cost over peerbus's own calls."};
  line.add("--ranks", chosen.payload.ranks).whole_number(1, 64);
  std::size_t tokens = chosen.payload.tokens;
  line.add("--tokens", tokens).whole_number(1, 8192);
  line.add("--hidden", chosen.payload.hidden).whole_number(128, 65536);
  line.add("--top-k", chosen.payload.top_k).whole_number(1, 32);
  line.add("--experts", chosen.payload.experts).whole_number(1, 4096);
  line.add("--codec", chosen.payload.codec).one_of({"bf16", "fp8"});
  line.add("--mode", chosen.mode).one_of({"low_latency", "normal"});
  line.flag("--zero-copy", chosen.zero_copy, "experts write where combine reads");
  line.flag("--alone", chosen.alone, "DeepEP's names only");
  line.flag("--relay", chosen.relay,
            "DeepEP's names without and with relay, over --hosts pretended hosts and TCP");
  line.add("--hosts", chosen.hosts, "how many hosts --relay pretends").whole_number(2, 64);
  line.flag("--twice", chosen.twice, "DeepEP's names combine again by the same handle");
  line.add("--in-flight", chosen.in_flight).whole_number(1, 16);
  line.add("--stores", chosen.payload.stores, "stores of rows and outputs")
      .one_of({"automatic", "plain", "streaming"});
  line.add("--iters", chosen.payload.iterations).whole_number(1, 1'000'000);
  line.add("--warmup", chosen.payload.warmup).whole_number(0, 1'000'000);
  line.add("--seed", chosen.payload.seed);
  line.add("--json", chosen.json, "write the figures to this file");
  const auto check = [&] {
    chosen.payload.set_tokens(tokens);
    if (chosen.mode == "normal" && (chosen.payload.codec != "bf16" || chosen.zero_copy))
      programs::refuse("--mode", "normal given with --codec or --zero-copy, expected neither");
    if (chosen.relay && (chosen.zero_copy || chosen.twice))
      programs::refuse("--relay", "given with --zero-copy or --twice, expected neither");
    if (chosen.relay && chosen.payload.ranks % chosen.hosts != 0)
      programs::refuse("--ranks", "given with --relay, expected a multiple of --hosts");
    if (chosen.payload.top_k > chosen.payload.experts)
      programs::refuse("--top-k", "more given than --experts, expected at most as many");
  };
  if (const auto status = line.parse(argc, argv, check)) return *status;
  try {
    if (!chosen.json.empty()) chosen.payload.noise.busy_cores = bench::busy_cores();
    return peerbus::run_local(chosen.payload.ranks, [&chosen](peerbus::bootstrap& boot) {
      return deep_ep_bench::run_rank(boot, chosen);
    });
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "deep_ep_bench: %s\n", problem.what());
    return 1;
  }
}

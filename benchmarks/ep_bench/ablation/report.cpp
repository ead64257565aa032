// SPDX-License-Identifier: MIT
#include "ep_bench/report.hpp"

#include <cstddef>
#include <cstdio>
#include <string>

#include "ep_bench/ablation/figures.hpp"
#include "ep_bench/ablation/steps.hpp"
#include "ep_bench/result_json.hpp"

namespace ep_bench {
namespace {

void print_times(const bench::statistics& time) {
  std::printf("%10.*f%9.*f%5.0f%%", time.p50 < 100 ? 2 : 1, time.p50, time.p90 < 100 ? 2 : 1,
              time.p90, 100 * spread(time));
}

json ratios(const step_figures& than, const step_figures& step) {
  return {{"dispatch", rounded(times_faster(than.dispatch, step.dispatch))},
          {"combine", rounded(times_faster(than.combine, step.combine))},
          {"sum", rounded(times_faster(than.sum, step.sum))}};
}

}  // namespace

void print_ablation(const options& chosen, const group& who, const bench::machine& where,
                    std::size_t cores, const ablation_outcome& result) {
  const std::size_t iterations = result.samples.empty() ? 0 : result.samples.front().size();
  std::printf(
      "ep_bench --ablation  %zu ranks over %s, %s; %zu tokens a rank, hidden %zu, top-%zu of %zu "
      "experts, %s, %zu rounds\n",
      who.ranks, chosen.transport.c_str(), who.placement.c_str(), chosen.tokens, chosen.hidden,
      chosen.top_k, chosen.experts, chosen.routing.c_str(), iterations);
  print_machine(where, cores);
  if (iterations != 0) {
    std::printf("%-24s%-25s%-25s%-25s%s\n%-24s", "", "  dispatch", "  combine", "  sum",
                "  sum: times faster", "us");
    for (int i = 0; i < 3; ++i) std::printf("%10s%9s%6s", "p50", "p90", "spread");
    std::printf("%11s%13s\n", "than basic", "than before");
    const step_figures basic = step_figures::of(result, 0);
    step_figures before = basic;
    for (std::size_t s = 0; s < ablation_steps.size(); ++s) {
      const step_figures step = step_figures::of(result, s);
      std::printf("%zu %-22s", s, ablation_steps[s].name);
      print_times(step.dispatch);
      print_times(step.combine);
      print_times(step.sum);
      std::printf("%11.2f%13.2f\n", times_faster(basic.sum, step.sum),
                  times_faster(before.sum, step.sum));
      before = step;
    }
    std::printf("\n");
    for (std::size_t s = 0; s < ablation_steps.size(); ++s)
      std::printf("step %zu    %s\n", s, ablation_steps[s].what);
    std::printf(
        "\ntimes     of the slowest rank of each round, in microseconds, each from a barrier on; "
        "spread: (p90 - p10) / p50\n"
        "turns     every round times all steps, beginning with another one each time\n"
        "kept out  the experts' work and its outputs, for which memory is allocated once in all "
        "steps\n");
  }
  print_check(result.wrong, what_ablation_checks);
}

json ablation_json(const options& chosen, const group& who, const bench::machine& where,
                   std::size_t cores, const ablation_outcome& result) {
  json all;
  const std::size_t rounds = result.samples.empty() ? 0 : result.samples.front().size();
  all["config"] = config_json(chosen, who, rounds);
  all["machine"] = machine_json(where, cores);
  all["steps"] = json::array();
  if (rounds != 0) {
    const step_figures basic = step_figures::of(result, 0);
    step_figures before = basic;
    for (std::size_t s = 0; s < ablation_steps.size(); ++s) {
      const step_figures step = step_figures::of(result, s);
      all["steps"].push_back({{"name", ablation_steps[s].name},
                              {"what", ablation_steps[s].what},
                              {"dispatch_us", bench::statistics_json(step.dispatch)},
                              {"combine_us", bench::statistics_json(step.combine)},
                              {"sum_us", bench::statistics_json(step.sum)},
                              {"times_faster_than_basic", ratios(basic, step)},
                              {"times_faster_than_before", ratios(before, step)}});
      before = step;
    }
  }
  all["check"] = bench::check_json(result.wrong, what_ablation_checks);
  return all;
}

}  // namespace ep_bench

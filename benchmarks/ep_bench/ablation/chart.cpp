// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>

#include "common/svg.hpp"
#include "ep_bench/ablation/figures.hpp"
#include "ep_bench/ablation/steps.hpp"
#include "ep_bench/html/axis.hpp"
#include "ep_bench/json_parts.hpp"
#include "ep_bench/report.hpp"

namespace ep_bench {
namespace {

using bench::text_anchor;

constexpr double width = 860;
constexpr double left = 190;   // Of the bars; names stand before it.
constexpr double right = 640;  // Of the axis; ratios stand behind it.
constexpr double top = 96;
constexpr double row = 46;
constexpr double thickness = 26;
constexpr const char* dispatch_colour = "#2b6cb0";
constexpr const char* combine_colour = "#ed8936";
constexpr const char* grid_colour = "#ddd";
constexpr const char* faint = "#555";

std::string in_microseconds(double time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f",
                time == 0    ? 0
                : time < 10  ? 2
                : time < 100 ? 1
                             : 0,
                time);
  return text;
}

std::string times(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f\u00d7", ratio < 10 ? 2 : 1, ratio);
  return text;
}

void draw_legend(bench::svg_drawing& chart) {
  chart.rectangle({left, 60}, 12, 12, dispatch_colour);
  chart.text({left + 18, 70}, "dispatch", 12);
  chart.rectangle({left + 90, 60}, 12, 12, combine_colour);
  chart.text({left + 108, 70}, "combine", 12);
  chart.line({left + 186, 66}, {left + 206, 66}, "#222", 1.5);
  chart.text({left + 212, 70}, "p10 to p90 of the sum", 12);
  chart.text({right + 90, 58}, "faster than", 12, text_anchor::middle, true);
  chart.text({right + 50, 74}, "basic", 12, text_anchor::middle);
  chart.text({right + 140, 74}, "the step before", 12, text_anchor::middle);
}

}  // namespace

void write_ablation_chart(const options& chosen, const group& who, const machine& where,
                          const ablation_outcome& result) {
  double longest = 0;
  for (std::size_t s = 0; s < ablation_steps.size(); ++s)
    longest = std::max(longest, step_figures::of(result, s).sum.p90);
  const double step_of_axis = round_step(longest / 5);
  const auto x = [&](double time) { return left + time / longest * (right - left - 60); };
  const double bottom = top + row * static_cast<double>(ablation_steps.size());

  bench::svg_drawing chart{width, bottom + 74};
  chart.rectangle({0, 0}, width, bottom + 74, "#fff");
  const std::string title = "From a basic MoE flow to one fused operation";
  chart.text({16, 28}, title, 17, text_anchor::start, true);
  draw_legend(chart);
  for (double time = 0; x(time) <= right; time += step_of_axis) {
    chart.line({x(time), top - 8}, {x(time), bottom}, grid_colour);
    chart.text({x(time), bottom + 16}, in_microseconds(time), 11, text_anchor::middle, false,
               faint);
  }
  chart.text({(left + right) / 2, bottom + 34}, "microseconds, median of the slowest rank", 12,
             text_anchor::middle, false, faint);

  const step_figures basic = step_figures::of(result, 0);
  step_figures before = basic;
  for (std::size_t s = 0; s < ablation_steps.size(); ++s) {
    const step_figures step = step_figures::of(result, s);
    const double y = top + row * static_cast<double>(s);
    const double middle = y + thickness / 2;
    const double end = x(step.dispatch.p50 + step.combine.p50);
    chart.text({left - 12, middle + 4}, ablation_steps[s].name, 13, text_anchor::end);
    chart.rectangle({left, y}, x(step.dispatch.p50) - left, thickness, dispatch_colour);
    chart.rectangle({x(step.dispatch.p50), y}, end - x(step.dispatch.p50), thickness,
                    combine_colour);
    chart.line({x(step.sum.p10), middle}, {x(step.sum.p90), middle}, "#222", 1.5);
    for (const double whisker : {step.sum.p10, step.sum.p90})
      chart.line({x(whisker), middle - 5}, {x(whisker), middle + 5}, "#222", 1.5);
    chart.text({std::max(end, x(step.sum.p90)) + 8, middle + 4}, in_microseconds(step.sum.p50), 13,
               text_anchor::start, true);
    chart.text({right + 50, middle + 4}, times(times_faster(basic.sum, step.sum)), 13,
               text_anchor::middle, true);
    chart.text({right + 140, middle + 4}, times(times_faster(before.sum, step.sum)), 13,
               text_anchor::middle);
    before = step;
  }
  const std::string about =
      std::to_string(who.ranks) + " ranks, " + who.placement + ", " +
      std::to_string(chosen.tokens) + " tokens a rank, hidden " + std::to_string(chosen.hidden) +
      ", top-" + std::to_string(chosen.top_k) + " of " + std::to_string(chosen.experts) +
      " experts; " + where.cpu + ", " + std::to_string(where.cores) + " cores";
  chart.text({16, bottom + 60}, about, 11, text_anchor::start, false, faint);
  write_text(chosen.svg, chart.finish(title));
}

}  // namespace ep_bench

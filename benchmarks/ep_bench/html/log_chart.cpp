// SPDX-License-Identifier: MIT
#include "ep_bench/html/log_chart.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "common/svg.hpp"

namespace ep_bench {
namespace {

using bench::svg_point;
using bench::text_anchor;

constexpr double width = 620;
constexpr double left = 64;
constexpr double right = 604;
constexpr double plot_height = 300;
constexpr const char* grid_colour = "#d8d8d8";
constexpr const char* faint_grid_colour = "#f0f0f0";
constexpr const char* shade_colour = "#f4f1ea";
constexpr const char* faint = "#555";

std::string as_label(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*g", value < 1000 ? 3 : 8, value);
  return text;
}

/// One axis, from a range of values to pixels.
class log_axis {
 public:
  log_axis(double low, double high, double from, double to) noexcept
      : low_{std::log(low)}, span_{std::log(high) - low_}, from_{from}, to_{to} {}
  [[nodiscard]] double operator()(double value) const noexcept {
    return from_ + (std::log(value) - low_) / span_ * (to_ - from_);
  }

 private:
  double low_;
  double span_;
  double from_;
  double to_;
};

class painter {
 public:
  explicit painter(const log_chart& chart)
      : chart_{chart},
        // Title, then a line of the legend for each line, then the plot.
        top_{44 + 18 * static_cast<double>(chart.lines.size())},
        bottom_{top_ + plot_height},
        drawing_{width, bottom_ + 52} {
    for (const chart_line& line : chart.lines)
      for (const chart_value& value : line.values) {
        xs_.insert(value.x);
        low_ = std::min(low_, value.low);
        high_ = std::max(high_, value.high);
      }
  }

  [[nodiscard]] std::string paint() {
    drawing_.rectangle({0, 0}, width, bottom_ + 52, "#fff");
    drawing_.text({left, 22}, chart_.title, 15, text_anchor::start, true);
    if (xs_.empty()) {
      drawing_.text({width / 2, top_ + plot_height / 2}, "nothing was measured", 13,
                    text_anchor::middle, false, faint);
      return drawing_.finish(chart_.title);
    }
    const auto first = static_cast<double>(*xs_.begin());
    const auto last = static_cast<double>(*xs_.rbegin());
    // Room on both sides, and some breadth for a single value.
    const double margin = std::max(std::pow(last / first, 0.04), 1.1);
    const log_axis x{first / margin, last * margin, left, right};
    const log_axis y{low_ / 1.25, high_ * 1.25, bottom_, top_};
    draw_shade(x);
    draw_axes(x, y);
    for (const chart_line& line : chart_.lines) draw_band(line, x, y);
    for (const chart_line& line : chart_.lines) draw_line(line, x, y);
    draw_legend();
    return drawing_.finish(chart_.title);
  }

 private:
  void draw_shade(const log_axis& x) {
    if (chart_.shaded_above == 0) return;
    const auto beyond = xs_.upper_bound(chart_.shaded_above);
    if (beyond == xs_.end()) return;
    const double from =
        beyond == xs_.begin()
            ? left
            : x(std::sqrt(static_cast<double>(*beyond) * static_cast<double>(*std::prev(beyond))));
    drawing_.rectangle({from, top_}, right - from, plot_height, shade_colour);
    drawing_.text({right - 6, bottom_ - 8}, chart_.shade_label, 11, text_anchor::end, false, faint);
  }

  void draw_axes(const log_axis& x, const log_axis& y) {
    const bool few_decades = high_ / low_ < 1000;
    for (double decade = std::pow(10.0, std::floor(std::log10(low_ / 1.25)));
         decade <= high_ * 1.25; decade *= 10)
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double value = decade * factor;
        if (value < low_ / 1.25 || value > high_ * 1.25) continue;
        const bool main = factor == 1.0;
        drawing_.line({left, y(value)}, {right, y(value)}, main ? grid_colour : faint_grid_colour);
        if (main || few_decades)
          drawing_.text({left - 6, y(value) + 4}, as_label(value), 11, text_anchor::end, false,
                        faint);
      }
    double free_from = 0;
    for (const std::size_t value : xs_) {
      const double at = x(static_cast<double>(value));
      drawing_.line({at, bottom_}, {at, bottom_ + 4}, faint);
      const std::string label = std::to_string(value);
      const double half = 3.4 * static_cast<double>(label.size()) + 2;
      if (at - half < free_from) continue;  // Labels that would run into each other are left out.
      free_from = at + half;
      drawing_.text({at, bottom_ + 18}, label, 11, text_anchor::middle, false, faint);
    }
    drawing_.line({left, bottom_}, {right, bottom_}, faint);
    drawing_.text({(left + right) / 2, bottom_ + 40}, chart_.x_label, 12, text_anchor::middle,
                  false, faint);
    drawing_.text({left - 6, top_ - 8}, chart_.y_label, 11, text_anchor::end, false, faint);
  }

  void draw_band(const chart_line& line, const log_axis& x, const log_axis& y) {
    std::vector<svg_point> outline;
    outline.reserve(2 * line.values.size());
    for (const chart_value& value : line.values)
      outline.push_back({x(static_cast<double>(value.x)), y(value.high)});
    for (auto value = line.values.rbegin(); value != line.values.rend(); ++value)
      outline.push_back({x(static_cast<double>(value->x)), y(value->low)});
    const auto ranged = [](const chart_value& value) { return value.low < value.high; };
    if (std::none_of(line.values.begin(), line.values.end(), ranged)) return;
    if (line.values.size() == 1)
      drawing_.line(outline.front(), outline.back(), line.colour, 2);
    else
      drawing_.area(outline, line.colour, 0.16);
  }

  void draw_line(const chart_line& line, const log_axis& x, const log_axis& y) {
    std::vector<svg_point> points;
    points.reserve(line.values.size());
    for (const chart_value& value : line.values)
      points.push_back({x(static_cast<double>(value.x)), y(value.y)});
    const bool dashed = line.style == line_style::dashed;
    drawing_.polyline(points, line.colour, dashed ? 1.6 : 2.2, dashed ? "6 4" : "");
    for (std::size_t i = 0; i < points.size(); ++i)
      drawing_.dot(points[i], dashed ? 2 : 3.2, line.colour,
                   line.name + ", " + std::to_string(line.values[i].x) + " " + chart_.x_label +
                       ": " + as_label(line.values[i].y) + " " + chart_.y_label);
  }

  void draw_legend() {
    double y = 42;
    for (const chart_line& line : chart_.lines) {
      const bool dashed = line.style == line_style::dashed;
      drawing_.polyline({{left, y - 4}, {left + 26, y - 4}}, line.colour, dashed ? 1.6 : 2.2,
                        dashed ? "6 4" : "");
      drawing_.text({left + 34, y}, line.name, 12);
      y += 18;
    }
  }

  const log_chart& chart_;
  double top_;
  double bottom_;
  bench::svg_drawing drawing_;
  std::set<std::size_t> xs_;
  double low_ = 1e300;
  double high_ = 0;
};

}  // namespace

std::string log_chart::draw() const { return painter{*this}.paint(); }

}  // namespace ep_bench

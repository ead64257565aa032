// SPDX-License-Identifier: MIT
#include "chart.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/layout.hpp>

namespace moe_text {

namespace {

constexpr std::size_t height = 8;  // Lines.
constexpr std::size_t axis = 8;    // Columns left of the bars.
constexpr std::array<std::string_view, 9> eighths{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

struct bar {
  double rows;
  bool starts_rank;
};

std::vector<bar> bars_of(std::span<const std::uint64_t> rows_of_expert, std::size_t ranks,
                         std::size_t experts_per_bar) {
  const peerbus::moe::expert_placement placement{rows_of_expert.size(), ranks};
  std::vector<bar> bars;
  for (std::size_t first = 0; first < rows_of_expert.size(); first += experts_per_bar) {
    const auto group =
        rows_of_expert.subspan(first, std::min(experts_per_bar, rows_of_expert.size() - first));
    double sum = 0;
    for (const std::uint64_t rows : group) sum += static_cast<double>(rows);
    bars.push_back({sum / static_cast<double>(group.size()),
                    first == placement.first(placement.owner(first))});
  }
  return bars;
}

/// Returns the character of `line` in a bar of height `rows`, where `top` fills all lines.
std::string_view part_of(double rows, double top, std::size_t line) {
  const double full = std::ceil(rows / top * static_cast<double>(8 * height));
  const double in_line = full - static_cast<double>(8 * (height - 1 - line));
  return eighths[static_cast<std::size_t>(std::clamp(in_line, 0.0, 8.0))];
}

}  // namespace

std::string load_chart(std::span<const std::uint64_t> rows_of_expert, std::size_t ranks,
                       std::size_t width) {
  const std::size_t experts = rows_of_expert.size();
  const std::size_t room = std::max<std::size_t>(width, axis + 32) - axis;
  const bool has_gaps = experts + std::min(ranks, experts) <= room;
  const std::size_t per_bar = has_gaps ? 1 : (experts + room - 1) / room;
  const std::vector<bar> bars = bars_of(rows_of_expert, ranks, per_bar);
  const std::size_t bar_width =
      has_gaps ? std::clamp<std::size_t>((room - ranks) / bars.size(), 1, 4) : 1;

  double top = 1;
  for (const bar& each : bars) top = std::max(top, each.rows);
  std::string chart;
  for (std::size_t line = 0; line < height; ++line) {
    std::array<char, 16> label{};
    if (line == 0) std::snprintf(label.data(), label.size(), "%.0f", top);
    if (line == height / 2) std::snprintf(label.data(), label.size(), "%.0f", top / 2);
    const std::string_view text{label.data()};
    chart.append(axis - 2 - std::min(axis - 2, text.size()), ' ').append(text);
    chart += (line == 0 || line == height / 2) ? " ┤" : " │";
    for (std::size_t i = 0; i < bars.size(); ++i) {
      if (has_gaps && i != 0 && bars[i].starts_rank) chart += ' ';
      for (std::size_t column = 0; column < bar_width; ++column)
        chart += part_of(bars[i].rows, top, line);
    }
    chart += '\n';
  }
  // The axis has a mark under the first expert of each rank.
  chart.append(axis - 2, ' ').append(" └");
  for (std::size_t i = 0; i < bars.size(); ++i) {
    if (has_gaps && i != 0 && bars[i].starts_rank) chart += "─";
    for (std::size_t column = 0; column < bar_width; ++column)
      chart += column == 0 && bars[i].starts_rank ? "┴" : "─";
  }
  chart += '\n';
  if (per_bar > 1)
    chart.append(axis, ' ') += "each bar: the mean of " + std::to_string(per_bar) + " experts\n";
  return chart;
}

std::size_t terminal_width() {
  winsize size{};
  const bool is_known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return is_known ? size.ws_col : 80;
}

}  // namespace moe_text

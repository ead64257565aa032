// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ep_bench {

/// A value over something countable, with the range in which most samples lie; low = high where
/// none is known.
struct chart_value {
  std::size_t x;
  double y;
  double low;
  double high;
};

enum class line_style { solid, dashed };

struct chart_line {
  std::string name;
  std::string colour;
  line_style style;
  std::vector<chart_value> values;  ///< in order of x
};

/// Lines over two logarithmic axes. Values above 0.
struct log_chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<chart_line> lines;
  std::size_t shaded_above = 0;  ///< x values beyond it lie on a shade; 0: none do
  std::string shade_label;

  /// As an SVG element.
  [[nodiscard]] std::string draw() const;
};

}  // namespace ep_bench

// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

/// Text as it may stand between tags or in a quoted attribute of HTML and SVG.
inline std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      default:
        // Other control characters are not allowed in XML, escaped or not.
        result += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return result;
}

struct svg_point {
  double x;
  double y;
};

enum class text_anchor { start, middle, end };

/// A drawing of a fixed size in pixels, from the top left corner, built up element by element.
/// Colours are what SVG understands, written by the program and not escaped; texts are.
class svg_drawing {
 public:
  svg_drawing(double width, double height) : width_{width}, height_{height} {}

  void rectangle(svg_point corner, double width, double height, std::string_view fill) {
    body_ += "<rect x=\"" + number(corner.x) + "\" y=\"" + number(corner.y) + "\" width=\"" +
             number(width) + "\" height=\"" + number(height) + "\" fill=\"" + std::string{fill} +
             "\"/>\n";
  }
  void line(svg_point from, svg_point to, std::string_view stroke, double thickness = 1) {
    polyline({from, to}, stroke, thickness);
  }
  /// `dashes`: lengths of strokes and gaps, such as "6 4"; empty for a solid line.
  void polyline(const std::vector<svg_point>& points, std::string_view stroke, double thickness,
                std::string_view dashes = {}) {
    body_ += "<polyline points=\"" + list(points) + "\" fill=\"none\" stroke=\"" +
             std::string{stroke} + "\" stroke-width=\"" + number(thickness) + '"';
    if (!dashes.empty()) body_ += " stroke-dasharray=\"" + std::string{dashes} + '"';
    body_ += "/>\n";
  }
  void area(const std::vector<svg_point>& outline, std::string_view fill, double opacity) {
    body_ += "<polygon points=\"" + list(outline) + "\" fill=\"" + std::string{fill} +
             "\" fill-opacity=\"" + number(opacity) + "\"/>\n";
  }
  /// `hint` is shown when the pointer rests on the dot.
  void dot(svg_point at, double radius, std::string_view fill, std::string_view hint = {}) {
    body_ += "<circle cx=\"" + number(at.x) + "\" cy=\"" + number(at.y) + "\" r=\"" +
             number(radius) + "\" fill=\"" + std::string{fill} + '"';
    body_ += hint.empty() ? "/>\n" : "><title>" + escaped(hint) + "</title></circle>\n";
  }
  void text(svg_point at, std::string_view words, double size,
            text_anchor anchor = text_anchor::start, bool bold = false,
            std::string_view fill = "#222") {
    constexpr const char* anchors[] = {"start", "middle", "end"};
    body_ += "<text x=\"" + number(at.x) + "\" y=\"" + number(at.y) + "\" font-size=\"" +
             number(size) + "\" text-anchor=\"" + anchors[static_cast<int>(anchor)] + "\" fill=\"" +
             std::string{fill} + (bold ? "\" font-weight=\"bold\">" : "\">") + escaped(words) +
             "</text>\n";
  }

  /// The whole as an element for a page or, with its name space, a file of its own. It shrinks with
  /// what it is shown in. `title` is what is read out in its place.
  [[nodiscard]] std::string finish(std::string_view title) const {
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(width_) + "\" height=\"" +
           number(height_) + "\" viewBox=\"0 0 " + number(width_) + ' ' + number(height_) +
           "\" font-family=\"Helvetica, Arial, sans-serif\" role=\"img\" "
           "style=\"max-width:100%;height:auto\">\n<title>" +
           escaped(title) + "</title>\n" + body_ + "</svg>\n";
  }

 private:
  static std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", std::round(value * 100) / 100);
    return text;
  }
  static std::string list(const std::vector<svg_point>& points) {
    std::string result;
    for (const svg_point& point : points) {
      if (!result.empty()) result += ' ';
      result += number(point.x) + ',' + number(point.y);
    }
    return result;
  }

  double width_;
  double height_;
  std::string body_;
};

}  // namespace bench

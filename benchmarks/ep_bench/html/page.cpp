// SPDX-License-Identifier: MIT
#include "ep_bench/html/page.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/version.hpp>

#include "common/svg.hpp"
#include "ep_bench/figures.hpp"
#include "ep_bench/html/log_chart.hpp"
#include "ep_bench/html/peers.hpp"
#include "ep_bench/html/sweep.hpp"
#include "ep_bench/json_parts.hpp"
#include "ep_bench/machine.hpp"

namespace ep_bench {
namespace {

using bench::escaped;

enum class operation { dispatch, combine };
enum class along { tokens, ranks };

constexpr const char* own_colour = "#1f5fa8";
constexpr const char* floor_colour = "#444";
constexpr std::array peer_colours{"#d9731a", "#2f8f4e", "#a8326e", "#7a5ac2"};

constexpr const char* style = R"(
body { font: 15px/1.5 Helvetica, Arial, sans-serif; color: #222; max-width: 1280px;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.charts { display: flex; flex-wrap: wrap; gap: 16px; }
.charts svg { border: 1px solid #ddd; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 9px; border-bottom: 1px solid #e4e4e4; text-align: right; }
th { border-bottom: 1px solid #999; vertical-align: bottom; } th.group { text-align: center; }
td.words, th.words { text-align: left; vertical-align: top; border-color: #e4e4e4; }
.scroll { overflow-x: auto; margin-top: 1rem; }
code { background: #f3f3f3; padding: 2px 5px; overflow-wrap: anywhere; }
.bad { color: #b00020; font-weight: bold; } .faint { color: #555; }
)";

std::string fixed(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}
/// Microseconds with three digits or more.
std::string in_microseconds(double value) {
  return fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 48> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts);
  return text.data();
}

std::string version() {
  constexpr auto number = peerbus::version;
  return std::to_string(number.major_part) + '.' + std::to_string(number.minor_part) + '.' +
         std::to_string(number.patch_part);
}

/// As a shell takes it.
std::string as_command(const std::vector<std::string>& words) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+";
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char c : word) text += c == '\'' ? std::string{"'\\''"} : std::string{c};
    text += '\'';
  }
  return text;
}

/// Everything that a page shows.
class page {
 public:
  page(const options& chosen, std::vector<sweep_point> points, std::vector<peer_point> peers)
      : chosen_{chosen}, points_{std::move(points)}, peers_{std::move(peers)} {}

  [[nodiscard]] std::string text(const std::vector<std::string>& command) const {
    const std::string size = "hidden " + std::to_string(chosen_.hidden) + ", top-" +
                             std::to_string(chosen_.top_k) + " of " +
                             std::to_string(chosen_.experts) + " experts, " + chosen_.codec + ", " +
                             words_for_layout(chosen_) + ", routing " + chosen_.routing;
    std::string out =
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
        "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>peerbus: "
        "dispatch and combine</title>\n<style>" +
        std::string{style} + "</style>\n</head>\n<body>\n<h1>peerbus: dispatch and combine</h1>\n" +
        "<p class=\"faint\">" + escaped(size) + "; peerbus " + version() + ", " + now() + "</p>\n";
    out += how_to_read();
    out += section(along::tokens, "Over tokens",
                   std::to_string(chosen_.ranks) + (chosen_.ranks == 1 ? " rank" : " ranks"));
    out += section(along::ranks, "Over ranks", std::to_string(chosen_.tokens) + " tokens a rank");
    out += left_out();
    out += about(command);
    return out + "</body>\n</html>\n";
  }

 private:
  [[nodiscard]] bool belongs(std::size_t ranks, std::size_t tokens, along axis) const {
    const auto& wanted = axis == along::tokens ? chosen_.report_tokens : chosen_.report_ranks;
    const std::size_t fixed_one = axis == along::tokens ? ranks : tokens;
    const std::size_t swept = axis == along::tokens ? tokens : ranks;
    return fixed_one == (axis == along::tokens ? chosen_.ranks : chosen_.tokens) &&
           std::find(wanted.begin(), wanted.end(), swept) != wanted.end();
  }
  /// The measured points of a sweep, in its order.
  [[nodiscard]] std::vector<const sweep_point*> measured(along axis) const {
    std::vector<const sweep_point*> result;
    for (const sweep_point& point : points_)
      if (belongs(point.ranks, point.tokens, axis) && point.left_out.empty())
        result.push_back(&point);
    std::sort(result.begin(), result.end(),
              [&](const auto* a, const auto* b) { return swept(*a, axis) < swept(*b, axis); });
    return result;
  }
  template <class Point>
  static std::size_t swept(const Point& point, along axis) noexcept {
    return axis == along::tokens ? point.tokens : point.ranks;
  }
  static const bench::statistics& time(const sweep_point& point, operation what) noexcept {
    return what == operation::dispatch ? point.found.dispatch : point.found.combine;
  }
  static const bench::statistics& floor(const sweep_point& point, operation what) noexcept {
    return what == operation::dispatch ? point.found.dispatch_floor() : point.found.combine_floor();
  }
  static double time(const peer_point& point, operation what) noexcept {
    return what == operation::dispatch ? point.dispatch : point.combine;
  }
  /// Other libraries' points of a sweep, by name.
  [[nodiscard]] std::map<std::string, std::vector<peer_point>> others(along axis) const {
    std::map<std::string, std::vector<peer_point>> result;
    for (const peer_point& point : peers_)
      if (belongs(point.ranks, point.tokens, axis)) result[point.name].push_back(point);
    for (auto& [name, points] : result)
      std::sort(points.begin(), points.end(),
                [&](const auto& a, const auto& b) { return swept(a, axis) < swept(b, axis); });
    return result;
  }

  [[nodiscard]] std::string how_to_read() const {
    const std::string with_peers =
        peers_.empty() ? "" : " Other libraries: medians of runs of their own, as given.";
    return "<p>Solid: median time of the slowest rank, from a barrier that lets all ranks start "
           "together; the band reaches from p10 to p90. Dashed, the floor: the median time of "
           "plainly copying (dispatch) or reading (combine) the same bytes to and from the same "
           "places, in turns with the operations. Where ranks share cores, the floor is the bytes "
           "of all ranks copied by one rank per core." +
           with_peers + "</p>\n";
  }

  [[nodiscard]] std::string chart(along axis, operation what, const std::string& about) const {
    log_chart result;
    const std::string name = what == operation::dispatch ? "Dispatch" : "Combine";
    result.title = name + ", " + about;
    result.x_label = axis == along::tokens ? "tokens a rank" : "ranks";
    result.y_label = "\u00b5s";
    chart_line own{"peerbus, median and p10 to p90", own_colour, line_style::solid, {}};
    chart_line least{"floor: plain copy of the same bytes", floor_colour, line_style::dashed, {}};
    std::size_t cores = 0;
    for (const sweep_point* const point : measured(axis)) {
      const bench::statistics& spent = time(*point, what);
      own.values.push_back({swept(*point, axis), spent.p50, spent.p10, spent.p90});
      const double bound = floor(*point, what).p50;
      least.values.push_back({swept(*point, axis), bound, bound, bound});
      cores = std::max(cores, point->cores);
    }
    result.lines = {own, least};
    std::size_t next = 0;
    for (const auto& [library, points] : others(axis)) {
      chart_line line{library, peer_colours[next++ % peer_colours.size()], line_style::solid, {}};
      for (const peer_point& point : points)
        line.values.push_back(
            {swept(point, axis), time(point, what), time(point, what), time(point, what)});
      result.lines.push_back(line);
    }
    if (axis == along::ranks) {
      result.shaded_above = cores;
      result.shade_label = "more ranks than cores";
    }
    return result.draw();
  }

  [[nodiscard]] std::string section(along axis, const std::string& title,
                                    const std::string& about) const {
    return "<h2>" + title + "</h2>\n<div class=\"charts\">\n" +
           chart(axis, operation::dispatch, about) + chart(axis, operation::combine, about) +
           "</div>\n" + table(axis);
  }

  [[nodiscard]] std::string table(along axis) const {
    const auto rows = measured(axis);
    if (rows.empty()) return {};
    const auto libraries = others(axis);
    const std::size_t columns = 7 + libraries.size();
    std::string out = "<div class=\"scroll\"><table>\n<tr><th></th><th></th>";
    for (const char* const name : {"dispatch", "combine"})
      out += "<th class=\"group\" colspan=\"" + std::to_string(columns) + "\">" + name +
             ", \u00b5s</th>";
    out += "</tr>\n<tr><th>" + std::string{axis == along::tokens ? "tokens" : "ranks"} +
           "</th><th>iterations</th>";
    for (int i = 0; i < 2; ++i) {
      for (const char* const name : {"p10", "p50", "p90", "floor", "ratio", "bytes a rank", "GB/s"})
        out += std::string{"<th>"} + name + "</th>";
      for (const auto& [library, points] : libraries)
        out += "<th>" + escaped(library) + "<br>(times slower)</th>";
    }
    out += "</tr>\n";
    for (const sweep_point* const point : rows) {
      out += "<tr><td>" + std::to_string(swept(*point, axis)) + "</td><td>" +
             std::to_string(point->iterations) + "</td>";
      for (const operation what : {operation::dispatch, operation::combine})
        out += cells(*point, what, axis, libraries);
      out += "</tr>\n";
    }
    return out + "</table></div>\n";
  }

  static std::string cells(const sweep_point& point, operation what, along axis,
                           const std::map<std::string, std::vector<peer_point>>& libraries) {
    const bench::statistics& spent = time(point, what);
    const double bound = floor(point, what).p50;
    const std::size_t bytes =
        what == operation::dispatch ? point.dispatch_bytes : point.combine_bytes;
    std::string out;
    for (const std::string& value :
         {in_microseconds(spent.p10), "<b>" + in_microseconds(spent.p50) + "</b>",
          in_microseconds(spent.p90), in_microseconds(bound), fixed(spent.p50 / bound, 2),
          std::to_string(bytes), fixed(gigabytes_per_second(bytes, spent.p50), 1)})
      out += "<td>" + value + "</td>";
    for (const auto& [library, points] : libraries) {
      std::string value;
      for (const peer_point& theirs : points)
        if (swept(theirs, axis) == swept(point, axis))
          value = in_microseconds(time(theirs, what)) + " (" +
                  fixed(time(theirs, what) / spent.p50, 1) + ")";
      out += "<td>" + value + "</td>";
    }
    return out;
  }

  [[nodiscard]] std::string left_out() const {
    std::string items;
    for (const sweep_point& point : points_)
      if (!point.left_out.empty())
        items += std::string{"<li"} + (point.failed ? " class=\"bad\">" : ">") +
                 std::to_string(point.ranks) + " ranks, " + std::to_string(point.tokens) +
                 " tokens: " + escaped(point.left_out) + "</li>\n";
    return items.empty() ? items : "<h2>Left out</h2>\n<ul>\n" + items + "</ul>\n";
  }

  [[nodiscard]] std::string about(const std::vector<std::string>& command) const {
    const machine where = machine::here();
    std::size_t usable = 0;
    std::map<std::string, std::vector<std::size_t>> placements;
    for (const sweep_point& point : points_) {
      usable = std::max(usable, point.cores);
      auto& sizes = placements[point.placement];
      if (point.left_out.empty() &&
          std::find(sizes.begin(), sizes.end(), point.ranks) == sizes.end())
        sizes.push_back(point.ranks);
    }
    std::string placed;
    for (auto& [placement, sizes] : placements) {
      if (sizes.empty()) continue;
      std::sort(sizes.begin(), sizes.end());
      if (!placed.empty()) placed += "; ";
      placed += placement + " with";
      for (std::size_t i = 0; i < sizes.size(); ++i)
        placed += (i == 0 ? " " : ", ") + std::to_string(sizes[i]);
      placed += " ranks";
    }
    const std::vector<std::pair<std::string, std::string>> rows{
        {"processor", where.cpu + ", " + std::to_string(where.cores) + " cores, " +
                          std::to_string(usable) + " usable"},
        {"system", where.kernel},
        {"compiler", where.compiler},
        {"huge pages", where.huge_pages},
        {"row arithmetic", where.kernel_set},
        {"ranks",
         (chosen_.transport == "ub" ? std::string{"processes, "} : std::string{"threads, "}) +
             placed},
        {"bytes", bytes_formula(chosen_) + "; GB/s of 10^9 bytes at p50"},
        {"checked", std::string{what_is_checked}}};
    std::string out = "<h2>The machine and the run</h2>\n<table>\n";
    for (const auto& [name, value] : rows)
      out += "<tr><th class=\"words\">" + name + "</th><td class=\"words\">" + escaped(value) +
             "</td></tr>\n";
    return out + "</table>\n<p>Made by <code>" + escaped(as_command(command)) + "</code></p>\n";
  }

  const options& chosen_;
  std::vector<sweep_point> points_;
  std::vector<peer_point> peers_;
};

}  // namespace

int write_page(const options& chosen, const std::vector<std::string>& command) {
  // First, so that a bad file is not found after minutes.
  auto peers = read_peers(chosen);
  auto points = sweep(chosen);
  const bool failed = std::any_of(points.begin(), points.end(),
                                  [](const sweep_point& point) { return point.failed; });
  write_text(chosen.report, page{chosen, std::move(points), std::move(peers)}.text(command));
  std::printf("ep_bench  the report is in %s%s\n", chosen.report.c_str(),
              failed ? "; some configurations FAILED" : "");
  return failed ? 1 : 0;
}

}  // namespace ep_bench

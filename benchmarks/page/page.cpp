// SPDX-License-Identifier: MIT
#include "page/page.hpp"

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/version.hpp>

#include "support/json.hpp"

// Puts a file of this folder into the program as a C string.
#define PEERBUS_BENCH_FILE(name, file)                                                         \
  __asm__(".pushsection .rodata\n.global " #name "\n" #name ":\n.incbin \"" PEERBUS_BENCH_PAGE \
          "/" file "\"\n.byte 0\n.popsection\n")

PEERBUS_BENCH_FILE(peerbus_bench_page, "index.html");
PEERBUS_BENCH_FILE(peerbus_bench_licences, "vendor/LICENSES.txt");
PEERBUS_BENCH_FILE(peerbus_bench_d3, "vendor/d3.min.js");
PEERBUS_BENCH_FILE(peerbus_bench_plot, "vendor/plot.umd.min.js");
PEERBUS_BENCH_FILE(peerbus_bench_results, "results.js");
PEERBUS_BENCH_FILE(peerbus_bench_charts, "charts.js");
PEERBUS_BENCH_FILE(peerbus_bench_show, "show.js");

extern "C" {
extern const char peerbus_bench_page[];
extern const char peerbus_bench_licences[];
extern const char peerbus_bench_d3[];
extern const char peerbus_bench_plot[];
extern const char peerbus_bench_results[];
extern const char peerbus_bench_charts[];
extern const char peerbus_bench_show[];
}

namespace bench {
namespace {

void replace_once(std::string& text, std::string_view what, const std::string& with) {
  text.replace(text.find(what), what.size(), with);
}

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

std::string version() {
  constexpr auto number = peerbus::version;
  return std::to_string(number.major_part) + '.' + std::to_string(number.minor_part) + '.' +
         std::to_string(number.patch_part);
}

}  // namespace

json report_head(const std::vector<std::string>& command) {
  return {{"peerbus", version()}, {"time", now()}, {"command", command}};
}

void write_page(const std::string& path, std::string_view results) {
  std::string page = peerbus_bench_page;
  for (const auto& [file, script] : {std::pair{"vendor/d3.min.js", peerbus_bench_d3},
                                     {"vendor/plot.umd.min.js", peerbus_bench_plot},
                                     {"results.js", peerbus_bench_results},
                                     {"charts.js", peerbus_bench_charts},
                                     {"show.js", peerbus_bench_show}})
    replace_once(page, std::string{" src=\""} + file + "\">", std::string{">\n"} + script);
  replace_once(page, "<!--licences-->", std::string{"<!--\n"} + peerbus_bench_licences + "-->");

  // A "<" occurs within strings only, where it could end the element.
  std::string data;
  for (const char c : results)
    if (c == '<')
      data += "\\u003c";
    else
      data += c;
  constexpr std::string_view element = "type=\"application/json\">";
  replace_once(page, element, std::string{element} + data);
  write_text(path, page);
}

}  // namespace bench

// SPDX-License-Identifier: MIT
#include "results.hpp"

#include <cmath>
#include <fstream>
#include <stdexcept>

#if EP_PREDICT_PAGE
#include "page/page.hpp"
#endif

namespace ep_predict {

namespace {

using nlohmann::ordered_json;

double to_three_digits(double us) { return std::round(us * 1000) / 1000; }

ordered_json json_of(const times& found) {
  return {{"min", to_three_digits(found.least)},  {"p10", to_three_digits(found.p10)},
          {"p50", to_three_digits(found.median)}, {"p90", to_three_digits(found.p90)},
          {"p99", to_three_digits(found.p99)},    {"max", to_three_digits(found.most)},
          {"mean", to_three_digits(found.mean)},  {"slowest", to_three_digits(found.slowest)}};
}

}  // namespace

bool has_page() noexcept { return EP_PREDICT_PAGE; }

results::results(const load& usual, const platform_file& given, const std::string& engine,
                 const std::vector<std::string>& command) {
#if EP_PREDICT_PAGE
  all_ = bench::report_head(command);
#else
  all_["command"] = command;
#endif
  all_["program"] = "ep_predict";
  all_["platform"] = given.platform.name;
  all_["sources"] = given.sources;
  all_["engine"] = engine;
  all_["config"] = {{"hidden", usual.hidden}, {"top_k", usual.top_k},   {"experts", usual.experts},
                    {"codec", usual.codec},   {"layout", usual.layout}, {"relay", usual.relay},
                    {"rounds", usual.rounds}};
  all_["results"] = ordered_json::array();
}

void results::add(const load& batch, const prediction& found) {
  all_["results"].push_back({{"config", {{"ranks", batch.ranks}, {"tokens", batch.tokens}}},
                             {"dispatch_us", json_of(found.dispatch)},
                             {"combine_us", json_of(found.combine)},
                             {"bytes", found.bytes},
                             {"messages", found.messages},
                             {"window_bytes", found.window_bytes}});
}

void results::add(const std::vector<bound>& bounds) {
  ordered_json& shares = all_["results"].back()["bounds"];
  for (const bound& each : bounds)
    shares.push_back({{"cost", each.cost}, {"dispatch", each.dispatch}, {"combine", each.combine}});
}

void results::add(const std::vector<std::string>& advice) {
  all_["results"].back()["advice"] = advice;
}

void results::write(const std::string& json_path, const std::string& page_path) const {
  if (!json_path.empty()) {
    std::ofstream file{json_path};
    file << all_.dump(2) << '\n';
    file.close();
    if (!file) throw std::runtime_error{json_path + ": the results cannot be written"};
  }
#if EP_PREDICT_PAGE
  if (!page_path.empty()) bench::write_page(page_path, all_.dump());
#else
  static_cast<void>(page_path);
#endif
}

}  // namespace ep_predict

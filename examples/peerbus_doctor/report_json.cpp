// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "checks/show_facts.hpp"
#include "report.hpp"

namespace peerbus_doctor {
namespace {

using json = nlohmann::ordered_json;

template <class Range, class Convert>
json array_json(const Range& range, Convert&& convert) {
  json array = json::array();
  for (const auto& each : range) array.push_back(convert(each));
  return array;
}

json finding_json(const finding& found) {
  return {{"level", to_string(found.grade)},
          {"topic", found.topic},
          {"text", found.text},
          {"remedy", found.remedy},
          {"ranks", found.ranks}};
}

finding finding_of(const json& text) {
  finding found{.topic = text["topic"], .text = text["text"], .remedy = text["remedy"]};
  for (const level each : {level::ok, level::note, level::warning, level::problem})
    if (text["level"] == to_string(each)) found.grade = each;
  return found;
}

json pairs_json(const report& known) {
  const pair_matrix& pairs = *known.pairs;
  json latency = json::array();
  json bandwidth = json::array();
  json failures = json::array();
  for (std::size_t from = 0; from < pairs.ranks; ++from) {
    json latency_row = json::array();
    json bandwidth_row = json::array();
    for (std::size_t to = 0; to < pairs.ranks; ++to) {
      const pair_result& pair = pairs.at(from, to);
      const bool is_good = pair.is_tried && pair.error.empty();
      latency_row.push_back(is_good ? json(pair.latency_us) : json(nullptr));
      bandwidth_row.push_back(is_good ? json(pair.put_bytes_per_second) : json(nullptr));
      if (!pair.error.empty())
        failures.push_back({{"from", from}, {"to", to}, {"error", pair.error}});
    }
    latency.push_back(latency_row);
    bandwidth.push_back(bandwidth_row);
  }
  return {{"rounds", known.chosen.tries.rounds},
          {"put_bytes", known.chosen.tries.put_bytes},
          {"signal_us", latency},
          {"put_bytes_per_second", bandwidth},
          {"failures", failures},
          {"ended_by", pairs.ended_by}};
}

/// Returns the text of `value`. Environment variables may hold bytes that are no UTF-8, which are
/// replaced.
std::string dump(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string report_json(const report& known) {
  json ranks = json::array();
  for (const rank_message& each : known.ranks) ranks.push_back(json::parse(each.json));
  if (known.ranks.empty()) ranks.push_back(show(known.own).values);
  const json result{{"arguments", known.chosen.arguments},
                    {"transport", known.chosen.transport},
                    {"met", !known.ranks.empty()},
                    {"meeting_ms", known.meeting_ms},
                    {"ranks", ranks},
                    {"pairs", known.pairs ? pairs_json(known) : json(nullptr)},
                    {"findings", array_json(known.findings, finding_json)},
                    {"worst", to_string(known.worst())}};
  return dump(result, 2) + "\n";
}

std::string encode(const facts& own, const std::vector<finding>& findings) {
  return dump({{"facts", show(own).values}, {"findings", array_json(findings, finding_json)}}, -1);
}

rank_message decode(const std::string& text) {
  const json told = json::parse(text);
  const json& of_rank = told["facts"];
  const json& processor = of_rank["processor"];
  rank_message message{.self = {.host = of_rank["host"]["name"],
                                .process = of_rank["process"],
                                .cores = processor["usable_cores"],
                                .quota = {}},
                       .findings = {},
                       .json = dump(of_rank, -1)};
  if (!processor["quota"].is_null()) message.self.quota = processor["quota"].get<double>();
  for (const json& each : told["findings"]) message.findings.push_back(finding_of(each));
  return message;
}

}  // namespace peerbus_doctor

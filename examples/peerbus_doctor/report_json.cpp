// SPDX-License-Identifier: MIT
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "report.hpp"

namespace peerbus_doctor {
namespace {

using json = nlohmann::ordered_json;

/// Returns null for a limit that the system does not set.
json limit_json(std::uint64_t value) { return value == unlimited ? json(nullptr) : json(value); }

template <class T>
json optional_json(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

template <class Range, class Convert>
json array_json(const Range& range, Convert&& convert) {
  json array = json::array();
  for (const auto& each : range) array.push_back(convert(each));
  return array;
}

json launcher_json(const launcher_facts& launcher) {
  json variables = json::object();
  for (const variable& each : launcher.variables) variables[each.name] = each.value;
  return {{"rank_variable", launcher.rank_variable},
          {"rank", optional_json(launcher.rank)},
          {"variables", variables},
          {"trouble", launcher.trouble},
          {"other_hosts", launcher.other_hosts}};
}

json processor_json(const processor_facts& processor) {
  const auto node = [](const numa_node& n) {
    return json{{"number", n.number}, {"usable_cores", n.cores}};
  };
  const auto cache_of_core = [](const cache& c) {
    return json{{"level", c.level}, {"type", c.type}, {"size", c.size}, {"cores", c.cores}};
  };
  return {{"model", processor.model},
          {"architecture", processor.architecture},
          {"cores", processor.cores},
          {"usable_cores", processor.usable_cores},
          {"quota", optional_json(processor.quota)},
          {"numa_nodes", array_json(processor.nodes, node)},
          {"caches", array_json(processor.caches, cache_of_core)},
          {"kernels", processor.kernels}};
}

json memory_json(const memory_facts& memory) {
  return {{"total", memory.total},
          {"available", memory.available},
          {"cgroup_limit", limit_json(memory.cgroup_limit)},
          {"huge_pages_of_windows", memory.huge_pages_of_windows},
          {"huge_pages_of_process", memory.huge_pages_of_process},
          {"reserved_huge_pages", memory.reserved_huge_pages},
          {"free_huge_pages", memory.free_huge_pages},
          {"dev_shm", optional_json(memory.dev_shm)}};
}

json limits_json(const limit_facts& limits) {
  const auto both = [](const soft_and_hard& limit) {
    return json{{"soft", limit_json(limit.soft)}, {"hard", limit_json(limit.hard)}};
  };
  return {{"locked_memory", both(limits.locked_memory)},
          {"may_exceed_locked_memory", limits.may_exceed_locked_memory},
          {"open_files", both(limits.open_files)},
          {"file_size", both(limits.file_size)},
          {"memory_file_trouble", limits.memory_file_trouble},
          {"pidfd_trouble", limits.pidfd_trouble}};
}

json rdma_json(const rdma_facts& rdma) {
  const auto gid_json = [](const gid& g) {
    return json{{"index", g.index}, {"address", g.address}, {"type", g.type}};
  };
  const auto port_json = [&](const port& p) {
    return json{{"number", p.number},
                {"state", p.state},
                {"link_layer", p.is_ethernet ? "Ethernet" : "InfiniBand"},
                {"mtu", p.mtu},
                {"gids", array_json(p.gids, gid_json)}};
  };
  const auto device_json = [&](const device& d) {
    return json{{"name", d.name},
                {"trouble", d.trouble},
                {"largest_region", d.largest_region},
                {"atomics", d.has_atomics},
                {"ports", array_json(d.ports, port_json)}};
  };
  return {{"built", rdma.is_built},
          {"listed", rdma.listed},
          {"devices", array_json(rdma.devices, device_json)}};
}

json facts_json(const facts& own) {
  return {
      {"process", own.process},
      {"build",
       {{"library", own.build.library},
        {"compiler", own.build.compiler},
        {"parts", own.build.parts}}},
      {"launcher", launcher_json(own.launcher)},
      {"host",
       {{"name", own.host.name}, {"kernel", own.host.kernel}, {"container", own.host.container}}},
      {"processor", processor_json(own.processor)},
      {"memory", memory_json(own.memory)},
      {"limits", limits_json(own.limits)},
      {"rdma", rdma_json(own.rdma)}};
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
  if (known.ranks.empty()) ranks.push_back(facts_json(known.own));
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
  return dump({{"facts", facts_json(own)}, {"findings", array_json(findings, finding_json)}}, -1);
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

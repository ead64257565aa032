// SPDX-License-Identifier: MIT
#include "platform_file.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <fstream>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace ep_predict {

namespace {

using json = nlohmann::json;

/// An object of the file, whose members are taken by name.
class object {
 public:
  object(std::string where, const json& value, std::initializer_list<std::string_view> members)
      : where_{std::move(where)}, value_{value} {
    if (!value.is_object()) refuse("is no object");
    for (const auto& [name, ignored] : value.items())
      if (std::ranges::find(members, std::string_view{name}) == members.end()) {
        std::string expected;
        for (const std::string_view member : members)
          expected += (expected.empty() ? "" : ", ") + std::string{member};
        refuse("has the member '" + name + "', expected one of: " + expected);
      }
  }

  [[nodiscard]] bool has(const char* name) const { return value_.contains(name); }
  [[nodiscard]] const json& member(const char* name) const {
    if (!has(name)) refuse("lacks '" + std::string{name} + "'");
    return value_.at(name);
  }
  [[nodiscard]] double number(const char* name) const {
    const json& found = member(name);
    if (!found.is_number())
      refuse(std::string{name} + " is " + found.dump() + ", expected a number");
    return found.get<double>();
  }
  [[nodiscard]] std::size_t count(const char* name) const {
    const json& found = member(name);
    if (!found.is_number_unsigned() || found.get<std::size_t>() == 0 ||
        found.get<std::size_t>() > 1'000'000)
      refuse(std::string{name} + " is " + found.dump() + ", expected a whole number, 1 to 1000000");
    return found.get<std::size_t>();
  }
  [[nodiscard]] std::string text(const char* name) const {
    const json& found = member(name);
    if (!found.is_string()) refuse(std::string{name} + " is " + found.dump() + ", expected a text");
    return found.get<std::string>();
  }
  [[nodiscard]] const json& list(const char* name) const {
    const json& found = member(name);
    if (!found.is_array()) refuse(std::string{name} + " is " + found.dump() + ", expected a list");
    return found;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw std::runtime_error{where_ + ": " + what};
  }

 private:
  std::string where_;
  const json& value_;
};

void read_ports(const std::string& where, const object& file,
                peerbus::simulated_platform& platform) {
  platform.ports.clear();
  for (const json& each : file.list("ports")) {
    const object port{where + ": ports", each, {"name", "ranks"}};
    if (std::ranges::count(platform.ports, port.text("name"), &peerbus::simulated_port::name) != 0)
      port.refuse("name is '" + port.text("name") + "', which another has");
    platform.ports.push_back({port.text("name"), port.count("ranks")});
  }
}

void read_levels(const std::string& where, const object& file,
                 peerbus::simulated_platform& platform) {
  platform.levels.clear();
  for (const json& each : file.list("levels")) {
    const object level{where + ": levels",
                       each,
                       {"name", "ranks", "latency_ns", "gb_per_s", "message_ns", "port"}};
    const std::string port = level.text("port");
    const auto found = std::ranges::find(platform.ports, port, &peerbus::simulated_port::name);
    if (found == platform.ports.end()) level.refuse("port is '" + port + "', which ports lacks");
    platform.levels.push_back({level.text("name"), level.has("ranks") ? level.count("ranks") : 0,
                               level.number("latency_ns"), level.number("gb_per_s"),
                               level.number("message_ns"),
                               static_cast<std::size_t>(found - platform.ports.begin())});
  }
}

published_row read_row(const std::string& where, const json& value) {
  const object row{
      where + ": published",
      value,
      {"ranks", "tokens", "hidden", "top_k", "experts", "layout", "codec", "visit_groups_of",
       "dispatch_us", "dispatch_fitted", "combine_us", "combine_fitted"}};
  published_row read;
  load& batch = read.batch;
  batch.ranks = row.count("ranks");
  batch.tokens = row.count("tokens");
  batch.hidden = row.count("hidden");
  batch.top_k = row.count("top_k");
  batch.experts = row.count("experts");
  batch.layout = row.text("layout");
  batch.codec = row.text("codec");
  if (row.has("visit_groups_of")) batch.visit_groups_of = row.count("visit_groups_of");
  if (const auto found = complaint_about(batch); !found.empty()) row.refuse(found);
  const auto read_operation = [&](const char* time, const char* fitted, published_time& into) {
    if (row.has(time)) into.us = row.number(time);
    if (into.us && *into.us <= 0)
      row.refuse(std::string{time} + " is " + row.member(time).dump() + ", expected more than 0");
    if (row.has(fitted)) into.fitted = row.text(fitted);
  };
  read_operation("dispatch_us", "dispatch_fitted", read.dispatch);
  read_operation("combine_us", "combine_fitted", read.combine);
  return read;
}

platform_file read(const std::string& path, const json& value) {
  const object file{path, value, {"name", "sources", "ports", "levels", "costs", "published"}};
  platform_file given;
  given.platform.name = file.text("name");
  for (const json& source : file.list("sources")) {
    if (!source.is_string()) file.refuse("sources has " + source.dump() + ", expected texts");
    given.sources.push_back(source.get<std::string>());
  }
  read_ports(path, file, given.platform);
  read_levels(path, file, given.platform);
  const object costs{
      path + ": costs",
      file.member("costs"),
      {"dispatch_ns", "combine_ns", "put_ns", "signal_ns", "poll_ns", "token_ns", "sum_ns"}};
  given.platform.costs = {costs.number("put_ns"), costs.number("signal_ns"),
                          costs.number("poll_ns"), costs.number("token_ns")};
  given.own = {costs.number("dispatch_ns"), costs.number("combine_ns"), costs.number("sum_ns")};
  for (const char* const name : {"dispatch_ns", "combine_ns", "sum_ns"})
    if (!(costs.number(name) >= 0 && costs.number(name) <= 1e9))
      costs.refuse(std::string{name} + " is " + costs.member(name).dump() + ", expected 0 to 1e9");
  if (file.has("published"))
    for (const json& row : file.list("published")) given.published.push_back(read_row(path, row));
  return given;
}

}  // namespace

platform_file read_platform(const std::string& path) {
  std::ifstream stream{path};
  if (!stream) throw std::runtime_error{path + ": cannot be read"};
  try {
    return read(path, json::parse(stream));
  } catch (const json::exception& problem) {
    throw std::runtime_error{path + ": " + problem.what()};
  } catch (const std::ios_base::failure& problem) {  // A folder, for one.
    throw std::runtime_error{path + ": cannot be read: " + problem.what()};
  }
}

}  // namespace ep_predict

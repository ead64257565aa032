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
        std::string text = "has the member '";
        text.append(name).append("', expected one of: ");
        const std::size_t begin = text.size();
        for (const std::string_view member : members)
          text.append(text.size() == begin ? "" : ", ").append(member);
        refuse(text);
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
  [[nodiscard]] std::size_t count(const char* name, std::size_t least = 1,
                                  std::size_t most = 1'000'000) const {
    const json& found = member(name);
    if (!found.is_number_unsigned() || found.get<std::size_t>() < least ||
        found.get<std::size_t>() > most)
      refuse(std::string{name} + " is " + found.dump() + ", expected a whole number, " +
             std::to_string(least) + " to " + std::to_string(most));
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

/// Reads the members of `value` that say how ranks begin; the others keep their values.
void read_arrival(const std::string& where, const json& value, arrival_spread& spread) {
  const object given{
      where, value, {"skew_us", "skew_shape", "straggler_share", "straggler_factor"}};
  if (given.has("skew_us")) spread.skew_us = given.number("skew_us");
  if (given.has("skew_shape")) spread.skew_shape = given.text("skew_shape");
  if (given.has("straggler_share")) spread.straggler_share = given.number("straggler_share");
  if (given.has("straggler_factor")) spread.straggler_factor = given.number("straggler_factor");
  if (const auto found = complaint_about(spread); !found.empty()) given.refuse(found);
}

/// Reads the published times of `row`, such as "combine_us" or "dispatch_max_us".
std::vector<published_time> read_times(const object& row) {
  std::vector<published_time> times;
  for (const char* const operation : {"dispatch", "combine", "total"})
    for (const char* const statistic : {"median", "mean", "min", "max"}) {
      std::string name = operation;
      if (std::string_view{statistic} != "median") name.append("_").append(statistic);
      const std::string us = name + "_us";
      const std::string fitted = name + "_fitted";
      if (row.has(fitted.c_str()) && !row.has(us.c_str()))
        row.refuse(std::string{"has "}.append(fitted).append(" without ").append(us));
      if (!row.has(us.c_str())) continue;
      const double given = row.number(us.c_str());
      if (!(given > 0)) row.refuse(us + " is " + std::to_string(given) + ", expected more than 0");
      times.push_back({operation, statistic, given,
                       row.has(fitted.c_str()) ? row.text(fitted.c_str()) : std::string{}});
    }
  if (times.empty()) row.refuse("lacks a time, expected one such as dispatch_us");
  const auto time_of = [&](const published_time& of, const char* statistic) {
    const auto found = std::ranges::find_if(times, [&](const published_time& each) {
      return each.operation == of.operation && each.statistic == statistic;
    });
    return found == times.end() ? of.us : found->us;
  };
  for (const published_time& each : times)
    if (each.us < time_of(each, "min") || each.us > time_of(each, "max"))
      row.refuse(each.operation + ": " + each.statistic + " is " + std::to_string(each.us) +
                 ", expected from the min to the max of the row");
  return times;
}

/// Returns a cost that is no transport's.
double own_cost(const object& costs, const char* name) {
  const double found = costs.number(name);
  if (!(found >= 0 && found <= 1e9))
    costs.refuse(std::string{name} + " is " + costs.member(name).dump() + ", expected 0 to 1e9");
  return found;
}

published_row read_row(const std::string& where, const json& value, const platform_file& given) {
  const object row{where + ": published",
                   value,
                   {"library",
                    "mechanism",
                    "costs",
                    "relay",
                    "ranks",
                    "tokens",
                    "hidden",
                    "top_k",
                    "experts",
                    "layout",
                    "codec",
                    "rounds",
                    "arrival",
                    "dispatch_us",
                    "dispatch_fitted",
                    "dispatch_mean_us",
                    "dispatch_mean_fitted",
                    "dispatch_min_us",
                    "dispatch_min_fitted",
                    "dispatch_max_us",
                    "dispatch_max_fitted",
                    "combine_us",
                    "combine_fitted",
                    "combine_mean_us",
                    "combine_mean_fitted",
                    "combine_min_us",
                    "combine_min_fitted",
                    "combine_max_us",
                    "combine_max_fitted",
                    "total_us",
                    "total_fitted"}};
  published_row read;
  load& batch = read.batch;
  batch.ranks = row.count("ranks");
  batch.tokens = row.count("tokens");
  batch.hidden = row.count("hidden");
  batch.top_k = row.count("top_k");
  batch.experts = row.count("experts");
  batch.layout = row.text("layout");
  batch.codec = row.text("codec");
  batch.arrival = given.arrival;
  read.own = given.own;
  if (row.has("library")) read.library = row.text("library");
  if (row.has("mechanism")) read.mechanism = row.text("mechanism");
  if (row.has("costs")) {
    const object costs{
        where + ": published: costs", row.member("costs"), {"dispatch_ns", "combine_ns"}};
    read.own.dispatch_ns = own_cost(costs, "dispatch_ns");
    read.own.combine_ns = own_cost(costs, "combine_ns");
  }
  if (row.has("relay")) batch.relay = row.text("relay");
  if (row.has("rounds")) batch.rounds = row.count("rounds");
  if (row.has("arrival"))
    read_arrival(where + ": published: arrival", row.member("arrival"), batch.arrival);
  if (const auto found = complaint_about(batch); !found.empty()) row.refuse(found);
  read.times = read_times(row);
  return read;
}

platform_file read(const std::string& path, const json& value) {
  const object file{path,
                    value,
                    {"name", "sources", "ports", "levels", "near_levels", "costs", "arrival",
                     "most_ranks", "published"}};
  platform_file given;
  given.platform.name = file.text("name");
  for (const json& source : file.list("sources")) {
    if (!source.is_string()) file.refuse("sources has " + source.dump() + ", expected texts");
    given.sources.push_back(source.get<std::string>());
  }
  read_ports(path, file, given.platform);
  read_levels(path, file, given.platform);
  if (file.has("near_levels"))
    given.platform.near_levels = file.count("near_levels", 0, given.platform.levels.size());
  const object costs{path + ": costs",
                     file.member("costs"),
                     {"dispatch_ns", "combine_ns", "put_ns", "signal_ns", "poll_ns", "token_ns",
                      "sum_ns", "copy_gb_per_s"}};
  given.platform.costs = {costs.number("put_ns"), costs.number("signal_ns"),
                          costs.number("poll_ns"), costs.number("token_ns"),
                          costs.has("copy_gb_per_s") ? costs.number("copy_gb_per_s") : 0};
  given.own = {own_cost(costs, "dispatch_ns"), own_cost(costs, "combine_ns"),
               own_cost(costs, "sum_ns")};
  if (file.has("arrival")) read_arrival(path + ": arrival", file.member("arrival"), given.arrival);
  if (file.has("most_ranks")) given.most_ranks = file.count("most_ranks");
  if (!file.has("published")) return given;
  for (const json& row : file.list("published")) {
    given.published.push_back(read_row(path, row, given));
    check_ranks(given, given.published.back().batch.ranks);
  }
  return given;
}

}  // namespace

void check_ranks(const platform_file& given, std::size_t ranks) {
  if (ranks > given.most_ranks)
    throw std::runtime_error{"platform '" + given.platform.name + "': " + std::to_string(ranks) +
                             " ranks, expected at most " + std::to_string(given.most_ranks)};
}

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

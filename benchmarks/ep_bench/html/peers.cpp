// SPDX-License-Identifier: MIT
#include "ep_bench/html/peers.hpp"

#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <peerbus/core/error.hpp>

namespace ep_bench {
namespace {

using json = nlohmann::json;

const json* at(const json& from, std::initializer_list<const char*> path) {
  const json* here = &from;
  for (const char* const name : path) {
    if (!here->is_object()) return nullptr;
    const auto found = here->find(name);
    if (found == here->end()) return nullptr;
    here = &*found;
  }
  return here;
}

bool is_number(const json& result, const char* name, std::size_t expected) {
  const json* const value = at(result, {"config", name});
  return value != nullptr && value->is_number_unsigned() && value->get<std::size_t>() == expected;
}

std::string text(const json& result, const char* name) {
  const json* const value = at(result, {"config", name});
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string{};
}

class collector {
 public:
  explicit collector(const options& chosen) : chosen_{&chosen} {}

  void walk(const json& here) {
    if (at(here, {"config"}) != nullptr) take(here);
    if (here.is_structured())
      for (const auto& inner : here) walk(inner);
  }
  [[nodiscard]] std::vector<peer_point> points() && { return std::move(points_); }
  /// How many results there were, of any kind.
  [[nodiscard]] std::size_t seen() const noexcept { return seen_; }

 private:
  void take(const json& result) {
    const json* const dispatch = at(result, {"dispatch_us", "p50"});
    const json* const combine = at(result, {"combine_us", "p50"});
    const json* const ranks = at(result, {"config", "ranks"});
    const json* const tokens = at(result, {"config", "tokens"});
    for (const json* const value : {dispatch, combine, ranks, tokens})
      if (value == nullptr || !value->is_number() || value->get<double>() <= 0) return;
    ++seen_;
    const std::string library = text(result, "transport");
    if (library == "ub" || library == "loopback") return;
    if (!is_number(result, "hidden", chosen_->hidden) ||
        !is_number(result, "top_k", chosen_->top_k) ||
        !is_number(result, "experts", chosen_->experts) || text(result, "codec") != chosen_->codec)
      return;
    const std::string rows = text(result, "rows");
    if (!rows.empty() && (rows == "rank") != (chosen_->layout == "rank")) return;
    points_.push_back({(library.empty() ? "another library" : library) +
                           (rows.empty() ? "" : ", a row per (token, " + rows + ")"),
                       ranks->get<std::size_t>(), tokens->get<std::size_t>(),
                       dispatch->get<double>(), combine->get<double>()});
  }

  const options* chosen_;
  std::vector<peer_point> points_;
  std::size_t seen_ = 0;
};

}  // namespace

std::vector<peer_point> read_peers(const options& chosen) {
  collector found{chosen};
  for (const std::string& path : chosen.peers) {
    std::ifstream file{path};
    const json all = json::parse(file, nullptr, false);
    const std::size_t before = found.seen();
    if (!all.is_discarded()) found.walk(all);
    if (found.seen() == before)
      throw peerbus::error{peerbus::errc::invalid_argument,
                           "--peers: " + path +
                               (all.is_discarded() ? " is no JSON" : " has no results") +
                               ", expected what a benchmark of another library wrote with --json"};
  }
  return std::move(found).points();
}

}  // namespace ep_bench

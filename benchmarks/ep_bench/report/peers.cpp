// SPDX-License-Identifier: MIT
#include "ep_bench/report/peers.hpp"

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include <peerbus/core/error.hpp>

namespace ep_bench {
namespace {

using bench::json;

bool has_results(const json& value) {
  const auto has_number = [&](const char* path) {
    const json::json_pointer place{path};
    return value.contains(place) && value[place].is_number();
  };
  return (has_number("/config/ranks") && has_number("/config/tokens") &&
          has_number("/dispatch_us/p50") && has_number("/combine_us/p50")) ||
         (value.is_structured() && std::any_of(value.begin(), value.end(), has_results));
}

}  // namespace

json read_peers(const options& chosen) {
  json all = json::array();
  for (const std::string& path : chosen.peers) {
    std::ifstream file{path};
    json document = json::parse(file, nullptr, false);
    if (!has_results(document))
      throw peerbus::error{peerbus::errc::invalid_argument,
                           "--peers: " + path +
                               (document.is_discarded() ? " is no JSON" : " has no results") +
                               ", expected what a benchmark of another library wrote with --json"};
    all.push_back(std::move(document));
  }
  return all;
}

}  // namespace ep_bench

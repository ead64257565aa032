// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include <peerbus/core/error.hpp>

#include "common/statistics.hpp"

namespace peers {

/// In the form of ep_bench's results, with three digits after the point.
inline nlohmann::ordered_json as_json(const bench::statistics& time) {
  const auto rounded = [](double value) { return std::round(value * 1000) / 1000; };
  return {{"min", rounded(time.min)},
          {"p50", rounded(time.p50)},
          {"p90", rounded(time.p90)},
          {"p99", rounded(time.p99)},
          {"max", rounded(time.max)}};
}

/// Throws: `peerbus::error` system if the file cannot be written.
inline void write_json(const std::string& path, const nlohmann::ordered_json& value) {
  std::ofstream file{path};
  file << value.dump(2) << '\n';
  file.close();
  if (!file)
    throw peerbus::error{peerbus::errc::system, "the results cannot be written to " + path};
}

}  // namespace peers

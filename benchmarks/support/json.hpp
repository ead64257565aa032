// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <fstream>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <peerbus/core/error.hpp>

#include "support/machine.hpp"
#include "support/noise.hpp"
#include "support/statistics.hpp"

namespace bench {

using json = nlohmann::ordered_json;

/// Rounds to three digits after the point. More would only pretend.
inline double rounded(double value) { return std::round(value * 1000) / 1000; }

inline json statistics_json(const statistics& time) {
  return {{"min", rounded(time.min)}, {"p10", rounded(time.p10)}, {"p50", rounded(time.p50)},
          {"p90", rounded(time.p90)}, {"p99", rounded(time.p99)}, {"max", rounded(time.max)}};
}

/// The outcome of a program's own check. `wrong`: what it found, empty if all was right; `checked`:
/// what it compared.
inline json check_json(const std::string& wrong, std::string_view checked) {
  return {{"passed", wrong.empty()}, {"what", wrong.empty() ? std::string{checked} : wrong}};
}

inline json noise_json(const noise_options& seen, const std::string& signs) {
  return {{"busy_cores", rounded(seen.busy_cores)}, {"signs", signs}};
}

inline json machine_json(const machine& where) {
  return {{"cpu", where.cpu},
          {"cores", where.cores},
          {"kernel", where.kernel},
          {"compiler", where.compiler},
          {"huge_pages", where.huge_pages},
          {"kernel_set", where.kernel_set}};
}

/// Creates or replaces `path`.
/// Throws: `peerbus::error` system if it cannot be written.
inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream file{path, std::ios::binary};
  file << text;
  file.close();
  if (!file)
    throw peerbus::error{peerbus::errc::system, "the results cannot be written to " + path};
}

/// As `write_text`, of the JSON on lines of its own.
inline void write_json(const std::string& path, const json& value) {
  write_text(path, value.dump(2) + "\n");
}

}  // namespace bench

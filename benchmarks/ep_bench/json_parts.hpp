// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <peerbus/core/error.hpp>

#include "common/statistics.hpp"
#include "ep_bench/machine.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/report.hpp"

namespace ep_bench {

using json = nlohmann::ordered_json;

/// More digits than three would only pretend.
inline double rounded(double value) { return std::round(value * 1000) / 1000; }

inline json statistics_json(const bench::statistics& time) {
  return {{"min", rounded(time.min)}, {"p10", rounded(time.p10)}, {"p50", rounded(time.p50)},
          {"p90", rounded(time.p90)}, {"p99", rounded(time.p99)}, {"max", rounded(time.max)}};
}

inline json config_json(const options& chosen, const group& who, std::size_t iterations) {
  return {
      {"transport", chosen.transport}, {"ranks", who.ranks},        {"tokens", chosen.tokens},
      {"hidden", chosen.hidden},       {"top_k", chosen.top_k},     {"experts", chosen.experts},
      {"codec", chosen.codec},         {"layout", chosen.layout},   {"outputs", chosen.outputs},
      {"lanes", chosen.lanes},         {"routing", chosen.routing}, {"iters", iterations},
      {"warmup", chosen.warmup},       {"seed", chosen.seed},       {"placement", who.placement}};
}

inline json machine_json(const machine& where, std::size_t usable_cores) {
  return {{"cpu", where.cpu},
          {"cores", where.cores},
          {"usable_cores", usable_cores},
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

}  // namespace ep_bench

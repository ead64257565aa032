// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include <peerbus/collective/team.hpp>

#include "coll_bench/operation.hpp"
#include "support/network_options.hpp"
#include "support/noise.hpp"

namespace coll_bench {

/// What the command line asks for, checked.
struct options : bench::network_options {
  std::vector<operation> operations{operation::all_reduce};
  std::size_t least_bytes = 8;
  std::size_t most_bytes = std::size_t{16} << 20U;
  std::size_t factor = 4;
  std::string type = "f32";
  std::string reduction = "sum";
  std::size_t root = 0;
  std::size_t iterations = 20;
  std::size_t warmup = 5;
  std::size_t turns = 9;
  bool check = true;
  std::size_t ranks = 2;
  bool ranks_given = false;
  std::string transport = "ub";
  /// Returns whether ranks may be on several hosts.
  [[nodiscard]] bool has_network() const noexcept {
    return transport == "verbs" || transport == "fabric" || transport == "planes";
  }
  bool in_window = false;
  bool with_mpi = false;
  double compute_us = 0;  ///< that a rank computes now and then; 0: `uneven` is not timed
  peerbus::collective::team_options team;
  std::string costs_to;  ///< the file that takes measured costs; empty: nothing is measured
  std::string json;
  std::string report;                ///< the page that shows the results; empty: none is written
  std::vector<std::string> command;  ///< how the program was called
  std::string trace;  ///< the file that takes the events of all ranks; empty: none are recorded
  bench::noise_options noise;
};

/// Returns: the options, or the exit status after the help (0) or a complaint (2).
[[nodiscard]] std::variant<options, int> parse(int argc, char** argv);

}  // namespace coll_bench

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <peerbus/transport/simulated/platform.hpp>

#include "prediction.hpp"

namespace ep_predict {

/// A published time.
struct published_time {
  std::string operation;  ///< "dispatch", "combine", or "total" for their sum
  std::string statistic;  ///< "median", "mean", "min" or "max", over ranks and rounds
  double us = 0;          ///< in microseconds
  std::string fitted;     ///< the values of the file that were chosen so that this fits, if any
};

/// What was published for a load.
struct published_row {
  std::string library;    ///< whose times they are; empty: the library that `sources` name
  std::string mechanism;  ///< why the model misses them, if it does
  work own;               ///< of this library
  load batch;
  std::vector<published_time> times;
};

/// A platform as its file describes it.
struct platform_file {
  peerbus::simulated_platform platform;
  work own;
  arrival_spread arrival;                ///< of loads that do not name another
  std::vector<std::string> sources;      ///< where the values come from
  std::vector<published_row> published;  ///< to compare with
  std::size_t most_ranks = 1'000'000;    ///< that the machine has, as far as the file describes it
};

/// Reads a file. Its members have the names of `peerbus::simulated_platform`, `simulated_costs` and
/// the structures above; `near_levels` and the cost `copy_gb_per_s` are 0 unless given.
/// Throws: std::runtime_error that names the file and the member, what it has and what was
/// expected; unknown members are refused, too.
[[nodiscard]] platform_file read_platform(const std::string& path);

/// Checks that the machine has so many ranks.
/// Throws: std::runtime_error that names the platform and both numbers.
void check_ranks(const platform_file& given, std::size_t ranks);

}  // namespace ep_predict

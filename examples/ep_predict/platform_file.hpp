// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <peerbus/transport/simulated/platform.hpp>

#include "prediction.hpp"

namespace ep_predict {

/// A published time of an operation, in microseconds.
struct published_time {
  std::optional<double> us;
  std::string fitted;  ///< the values of the file that were chosen so that this fits, if any
};

/// What was published for a load.
struct published_row {
  load batch;
  published_time dispatch;
  published_time combine;
};

/// A platform as its file describes it.
struct platform_file {
  peerbus::simulated_platform platform;
  work own;
  std::vector<std::string> sources;      ///< where the values come from
  std::vector<published_row> published;  ///< to compare with
};

/// Reads a file.
/// Throws: std::runtime_error that names the file and the member, what it has and what was
/// expected; unknown members are refused, too.
[[nodiscard]] platform_file read_platform(const std::string& path);

}  // namespace ep_predict

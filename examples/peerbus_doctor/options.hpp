// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tries.hpp"

namespace peerbus_doctor {

struct options {
  std::size_t ranks = 0;  ///< 0 if a launcher says how many
  std::string transport = "unified_bus";
  std::string json;  ///< the file for JSON, "-" for stdout; empty if none is wanted
  try_options tries;
  std::vector<std::string> arguments;  ///< the command line as it was given
};

/// Reads the command line. After --help, ends the process with status 0. If something is wrong,
/// prints an error and ends the process with status 2. `is_launched` says whether a launcher has
/// started this process.
options parse(int argc, char** argv, bool is_launched);

}  // namespace peerbus_doctor

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>

namespace deep_ep_check {

struct options {
  bool low_latency = true;
  /// Its `what` is not set: dispatch and combine of the mode are both checked.
  peerbus::deep_ep::call call;
  std::size_t in_flight = 2;
  std::vector<peerbus::deep_ep::profile> profiles;  ///< those to report
  bool selected = false;                            ///< whether the user named them
  bool json = false;
  std::vector<std::string> arguments;  ///< as given
};

/// Reads the command line. Ends the process with status 0 after --help, and 2, after an error text,
/// if something is wrong.
options parse(int argc, char** argv);

}  // namespace deep_ep_check

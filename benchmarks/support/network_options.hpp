// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace bench {

/// The command-line options of transports that reach some ranks over a network.
struct network_options {
  std::string device;  ///< of verbs, several by commas, or of fabric's domain; empty: the first
  std::string provider = "tcp";          ///< of fabric
  std::optional<std::size_t> gid_index;  ///< of verbs; empty: the best of the port
  std::size_t queue_pairs = 1;           ///< of verbs, to each peer
  std::string far = "verbs";             ///< between the hosts of planes
  std::size_t groups = 0;                ///< pretended hosts of planes; 0: the real ones
};

}  // namespace bench

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace bench {

/// The command-line options of transports that reach some ranks over a network.
struct network_options {
  std::string device;    ///< of verbs, several by commas, or of fabric's domain; empty: the first
  std::string provider;  ///< of fabric; empty: tcp
  std::optional<std::size_t> gid_index;    ///< of verbs; empty: the best of the port
  std::optional<std::size_t> queue_pairs;  ///< of verbs, to each peer; empty: 1
  std::string far;                         ///< between the hosts of planes; empty: verbs
  std::size_t groups = 0;                  ///< pretended hosts of planes; 0: the real ones

  /// Returns the transport between the hosts of planes.
  [[nodiscard]] std::string between_hosts() const { return far.empty() ? "verbs" : far; }
};

}  // namespace bench

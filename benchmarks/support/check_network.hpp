// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include <peerbus/bootstrap/environment.hpp>

#include "examples/support/command_line.hpp"
#include "support/network_options.hpp"

namespace bench {

/// A benchmark and the networks that it was built with.
struct network_build {
  std::string program;
  bool has_verbs;
  bool has_fabric;
  std::string others;  ///< its transports without a network, such as "ub or loopback"
};

/// Refuses an option, of which `given` was given, because of the transport.
[[noreturn]] inline void refuse_with(const std::string& transport, const std::string& option,
                                     const std::string& given, const std::string& expected) {
  programs::refuse(option, (given.empty() ? "" : given + " ") + "given with --transport " +
                               transport + ", expected " + expected);
}

/// Returns whether a transport uses libfabric: itself, or between the hosts of planes.
[[nodiscard]] inline bool uses_fabric(const network_options& chosen, const std::string& transport) {
  return (transport == "planes" ? chosen.far : transport) == "fabric";
}

/// Checks the options of `transport`, which reaches some of `ranks` ranks over a network. Refuses
/// what is wrong.
inline void check_network(const network_options& chosen, const std::string& transport,
                          std::size_t ranks, const network_build& build) {
  const bool planes = transport == "planes";
  const bool fabric = uses_fabric(chosen, transport);
  if (fabric ? !build.has_fabric : !build.has_verbs)
    programs::refuse(
        "--transport",
        (planes ? "planes over " + chosen.far : transport) + " given, but this " + build.program +
            " was built without " +
            (fabric ? "libfabric (Debian: libfabric-dev)" : "libibverbs (Debian: libibverbs-dev)") +
            ", expected " + build.others);
  if (fabric && (chosen.gid_index || chosen.queue_pairs != 1))
    refuse_with(transport, "--gid-index, --qps", "", "verbs");
  if (!planes && chosen.groups != 0)
    refuse_with(transport, "--groups", std::to_string(chosen.groups), "--transport planes");
  // The ranks of a launcher are not known yet.
  if (chosen.groups > ranks && !peerbus::environment_bootstrap::launched())
    refuse_with(transport, "--groups", std::to_string(chosen.groups), "no more than --ranks");
}

}  // namespace bench

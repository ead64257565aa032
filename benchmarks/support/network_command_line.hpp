// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include <peerbus/bootstrap/environment.hpp>

#include "examples/support/command_line.hpp"
#include "support/network_options.hpp"

namespace bench {

/// Adds the options of networks to a command line, for at most `most_ranks` ranks.
inline void add_network_options(programs::command_line& line, network_options& chosen,
                                std::size_t most_ranks) {
  line.add("--far", chosen.far, "what connects hosts, for planes [verbs]")
      .one_of({"verbs", "fabric"});
  line.add("--provider", chosen.provider, "libfabric's provider, for fabric [tcp]");
  line.add("--groups", chosen.groups,
           "pretended hosts, for planes: consecutive ranks share one [the real hosts]")
      .whole_number(1, most_ranks);
  line.add("--device", chosen.device,
           "name of the RDMA device [the first with an active port], several by commas, or of the "
           "provider's domain");
  line.add("--gid-index", chosen.gid_index,
           "which address of its port [the first of RoCE v2, IPv4 if there is one]")
      .whole_number(0, 255);
  line.add("--qps", chosen.queue_pairs, "queue pairs to each peer, for verbs [1]")
      .whole_number(1, 9);
}

/// Refuses an option, of which `given` was given, because of the transport.
[[noreturn]] inline void refuse_with(const std::string& transport, const std::string& option,
                                     const std::string& given, const std::string& expected) {
  programs::refuse(option, (given.empty() ? "" : given + " ") + "given with --transport " +
                               transport + ", expected " + expected);
}

/// Refuses the options of networks that were given with a `transport` without a network.
inline void refuse_network_options(const network_options& chosen, const std::string& transport) {
  if (!chosen.device.empty())
    refuse_with(transport, "--device", chosen.device, "--transport verbs, fabric or planes");
  if (chosen.gid_index)
    refuse_with(transport, "--gid-index", std::to_string(*chosen.gid_index),
                "--transport verbs or planes");
  if (chosen.queue_pairs)
    refuse_with(transport, "--qps", std::to_string(*chosen.queue_pairs),
                "--transport verbs or planes");
  if (!chosen.provider.empty())
    refuse_with(transport, "--provider", chosen.provider, "--transport fabric or planes");
  if (!chosen.far.empty()) refuse_with(transport, "--far", chosen.far, "--transport planes");
  if (chosen.groups != 0)
    refuse_with(transport, "--groups", std::to_string(chosen.groups), "--transport planes");
}

/// Returns whether a transport uses libfabric: itself, or between the hosts of planes.
[[nodiscard]] inline bool uses_fabric(const network_options& chosen, const std::string& transport) {
  return (transport == "planes" ? chosen.between_hosts() : transport) == "fabric";
}

/// Refuses the options of other networks that were given with a `transport` that has a network.
inline void refuse_options_of_others(const network_options& chosen, const std::string& transport) {
  const bool planes = transport == "planes";
  const bool fabric = uses_fabric(chosen, transport);
  if (fabric && chosen.gid_index)
    refuse_with(transport, "--gid-index", std::to_string(*chosen.gid_index), "verbs");
  if (fabric && chosen.queue_pairs)
    refuse_with(transport, "--qps", std::to_string(*chosen.queue_pairs), "verbs");
  if (!fabric && !chosen.provider.empty())
    refuse_with(transport, "--provider", chosen.provider,
                planes ? "--far fabric as well" : "--transport fabric or planes");
  if (!planes && !chosen.far.empty())
    refuse_with(transport, "--far", chosen.far, "--transport planes");
  if (!planes && chosen.groups != 0)
    refuse_with(transport, "--groups", std::to_string(chosen.groups), "--transport planes");
}

/// Checks the options of `transport`, which reaches some of `ranks` ranks over a network. Refuses
/// what is wrong, and a network that `program` was built without. `others`: its transports that
/// have none, such as "ub or loopback".
inline void check_network(const network_options& chosen, const std::string& transport,
                          std::size_t ranks, const std::string& program,
                          const std::string& others) {
  const bool planes = transport == "planes";
  const bool fabric = uses_fabric(chosen, transport);
  if (fabric ? PEERBUS_BENCH_FABRIC == 0 : PEERBUS_BENCH_VERBS == 0)
    programs::refuse("--transport", (planes ? "planes over " + chosen.between_hosts() : transport) +
                                        " given, but this " + program + " was built without " +
                                        (fabric ? "libfabric (Debian: libfabric-dev)"
                                                : "libibverbs (Debian: libibverbs-dev)") +
                                        ", expected " + others);
  refuse_options_of_others(chosen, transport);
  // The ranks of a launcher are not known yet.
  if (chosen.groups > ranks && !peerbus::environment_bootstrap::launched())
    refuse_with(transport, "--groups", std::to_string(chosen.groups), "no more than --ranks");
}

}  // namespace bench

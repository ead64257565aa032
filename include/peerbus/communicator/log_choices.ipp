// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include <peerbus/communicator/log_choices.hpp>
#include <peerbus/core/huge_pages.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// Describes the pages of windows: memory files where processes share them, otherwise memory of the
/// process.
inline std::string describe_pages(bool are_files) {
  const std::string rule = are_files ? huge_pages_of_files() : huge_pages_of_process();
  const std::string_view name = are_files ? "shmem_enabled" : "enabled";
  const bool has_none = rule.empty() || rule == "never" || rule == "deny";
  return concat("huge pages: ", has_none ? "none" : "asked for", ", as ", name, " is '",
                rule.empty() ? "not known" : rule, "'; windows of ", huge_page_bytes >> 20U,
                " MiB and more can have them; /sys/kernel/mm/transparent_hugepage/", name,
                " changes it");
}

PEERBUS_INLINE void log_group(const bootstrap& boot, peer_reach reach, bool shares_files,
                              log_sink sink) {
  const std::size_t near = boot.near_ranks().size();
  switch (reach) {
    case peer_reach::all:
      sink(log_level::info,
           concat("reach: loads and stores reach the windows of all ranks, ", boot.size()));
      break;
    case peer_reach::near:
      sink(log_level::info,
           concat("reach: loads and stores reach the windows of near ranks, requests those of the "
                  "others; ",
                  near, " of ", boot.size(), " ranks share memory with this one"));
      break;
    case peer_reach::none:
      sink(log_level::info,
           concat("reach: requests reach the windows of all ranks, ", boot.size()));
      break;
  }
  sink(log_level::info, describe_pages(shares_files));
  sink(log_level::debug,
       concat("waits: ", boot.shares_cores() ? "ranks take turns" : "each rank has a core", ", as ",
              boot.ranks_here(), " ranks run on ", boot.cores_here(), " cores of this host"));
}

}  // namespace peerbus::detail

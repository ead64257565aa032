// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include <peerbus/bootstrap/observed_group.hpp>

#include "chain.hpp"

namespace peerbus_inspect {

/// A group with what its ranks do at one moment.
struct group_view {
  std::size_t size = 0;  ///< the ranks of the group, whether they are seen or not
  std::vector<peerbus::observed_rank> ranks{};
  std::vector<std::string> hosts{};  ///< of all ranks of the group; empty where it is not known
  std::string here{};                ///< this host, as `hosts` have it
  diagnosis answer{};
};

/// Reads all ranks and finds out whom they wait for. Parts of one group become one view. The group
/// with the worst finding comes first.
std::vector<group_view> look_at(const std::vector<peerbus::observed_group>& parts,
                                std::chrono::nanoseconds patience);

/// Returns the report as text for people: the answer, what to do, and a table of each group.
std::string report_text(const std::vector<group_view>& groups);
/// Returns the report as JSON for programs. docs/errors.md has the keys. `gone` are the processes
/// that were asked about and have ended.
std::string report_json(const std::vector<group_view>& groups,
                        const std::vector<std::size_t>& gone);

}  // namespace peerbus_inspect

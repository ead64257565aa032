// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/core/error.hpp>

#include "facts.hpp"
#include "finding.hpp"
#include "pair_matrix.hpp"

namespace peerbus_doctor {

/// What the ranks are about to do with the machine.
struct purpose {
  std::string transport;
  std::size_t ranks = 1;
  bool is_launched = false;  ///< a launcher starts the ranks, which may have other limits
};

/// A rank of the group that has met.
struct member {
  std::string host;
  int process = 0;
  std::vector<std::uint32_t> cores;  ///< that it may use
  std::optional<double> quota;       ///< as `processor_facts::quota`
};

///@{
/// Returns the findings about facts, in the order in which a report shows them. These functions
/// read nothing but their arguments.
std::vector<finding> diagnose(const facts& found, const purpose& wanted);
std::vector<finding> diagnose_group(const std::vector<member>& members, const purpose& wanted);
std::vector<finding> diagnose_pairs(const pair_matrix& pairs);
///@}

/// Returns the finding for ranks that could not meet or make a window, from the error.
finding diagnose_failure(peerbus::errc code, std::string_view text);

/// Returns the findings of all ranks. Equal findings of several ranks become one that names them.
std::vector<finding> merge(const std::vector<std::vector<finding>>& of_ranks);

}  // namespace peerbus_doctor

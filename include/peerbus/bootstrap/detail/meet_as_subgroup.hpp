// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// Returns the bootstrap that `meet` makes of `ranks`. An error of `meet` numbers the ranks of the
/// subgroup from 0. It is thrown again with the ranks of the parent at its beginning.
template <class Meet>
[[nodiscard]] std::unique_ptr<bootstrap> meet_as_subgroup(const std::vector<rank_id>& ranks,
                                                          Meet meet) {
  try {
    return meet();
  } catch (const error& problem) {
    throw error{problem.code(), concat("subgroup of ", describe_ranks(ranks),
                                       ", counted from 0: ", problem.text())};
  }
}

}  // namespace peerbus::detail

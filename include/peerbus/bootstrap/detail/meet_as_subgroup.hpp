// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// Describes which ranks of `group` have ended. Waits until one has, for `slowest_exit` at most.
inline std::string await_missing(const membership& group) {
  const auto until = deadline::after(slowest_exit);
  std::string gone = group.describe_missing();
  while (gone.empty() && !until.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    gone = group.describe_missing();
  }
  return gone;
}

/// Returns the bootstrap that `meet` makes of `ranks` of `parent`. An error of `meet` numbers the
/// ranks of the subgroup from 0. It is thrown again with their numbers in the parent at its
/// beginning. If a rank is gone, those of the parent that have ended are named at its end, because
/// a member may have given up as one died that is not in the subgroup.
template <class Meet>
[[nodiscard]] std::unique_ptr<bootstrap> meet_as_subgroup(const std::vector<rank_id>& ranks,
                                                          const membership& parent, Meet meet) {
  try {
    return meet();
  } catch (const error& problem) {
    const std::string gone =
        problem.code() == errc::peer_dead ? await_missing(parent) : std::string{};
    throw error{problem.code(),
                concat("subgroup of ", describe_ranks(ranks), ", counted from 0: ", problem.text(),
                       gone.empty() ? "" : "; in the whole group: ", gone)};
  }
}

}  // namespace peerbus::detail

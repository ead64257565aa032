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

/// Describes which ranks of `group` have ended. First waits until one has, but no longer than
/// `slowest_exit`.
inline std::string await_missing(const membership& group) {
  const auto until = deadline::after(slowest_exit);
  std::string gone = group.describe_missing();
  while (gone.empty() && !until.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    gone = group.describe_missing();
  }
  return gone;
}

/// Returns the bootstrap that `meet` makes of `ranks` of `parent`.
/// Throws: the errors of `meet`, which number the ranks of the subgroup from 0. The numbers in the
/// parent are put before the text. If a rank is gone, the ranks of the parent that have ended are
/// named behind it, because a member may have given up when a rank outside the subgroup died.
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

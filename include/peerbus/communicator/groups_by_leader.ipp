// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/communicator/groups_by_leader.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::detail {

PEERBUS_INLINE std::vector<std::vector<rank_id>> groups_by_leader(rank_group& group,
                                                                  bootstrap& boot,
                                                                  std::string_view doing,
                                                                  rank_id leader, deadline until) {
  const auto own_leader = static_cast<std::uint32_t>(leader.index());
  bootstrap::contribution own;
  append_bytes(own.bytes, &own_leader, sizeof own_leader);
  std::vector<bootstrap::contribution> all;
  try {
    all = gather_or_refuse(boot, doing, std::move(own), std::nullopt, until);
  } catch (const agreed_error&) {
    throw;
  } catch (const error& problem) {
    group.fail(problem.code(), problem.text());
  }
  std::vector<std::vector<rank_id>> by_leader(boot.size());
  for (const rank_id rank : all_ranks{boot.size()}) {
    std::uint32_t given = 0;
    std::memcpy(&given, all[rank.index()].bytes.data(), sizeof given);
    by_leader[given].push_back(rank);
  }
  std::vector<std::vector<rank_id>> found;
  for (auto& ranks : by_leader)
    if (!ranks.empty()) found.push_back(std::move(ranks));
  return found;
}

}  // namespace peerbus::detail

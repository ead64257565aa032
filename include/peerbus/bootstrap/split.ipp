// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/split.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

PEERBUS_INLINE std::unique_ptr<bootstrap> split(bootstrap& boot, std::uint64_t color,
                                                std::uint64_t key, deadline until) {
  using choice = std::array<std::uint64_t, 2>;  // Color and key.
  const choice own{color, key};
  bootstrap::contribution given;
  const auto bytes = std::as_bytes(std::span{own});
  given.bytes.assign(bytes.begin(), bytes.end());
  const auto gathered = boot.allgather(std::move(given), until, "split");

  std::vector<std::uint64_t> keys(boot.size());
  std::vector<rank_id> members;
  for (const rank_id rank : all_ranks{boot.size()}) {
    if (boot.members()->is_excluded(rank)) continue;
    choice theirs{};
    const auto& choice_bytes = gathered[rank.index()].bytes;
    if (choice_bytes.size() != sizeof theirs)
      throw agreed_error{errc::mismatch,
                         detail::concat("split: ", rank, " gave ", choice_bytes.size(),
                                        " bytes, expected ", sizeof theirs)};
    std::memcpy(theirs.data(), choice_bytes.data(), sizeof theirs);
    keys[rank.index()] = theirs[1];
    if (theirs[0] == color) members.push_back(rank);
  }
  std::sort(members.begin(), members.end(), [&](rank_id a, rank_id b) {
    return std::pair{keys[a.index()], a} < std::pair{keys[b.index()], b};
  });
  return boot.subgroup(members, until);
}

}  // namespace peerbus

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include <peerbus/communicator/verdict.hpp>
#include <peerbus/core/object_bytes.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

PEERBUS_INLINE verdict::verdict(const std::optional<error>& objection) {
  if (!objection) return;
  code_ = objection->code();
  std::copy_n(objection->text().begin(), std::min(objection->text().size(), text_.size() - 1),
              text_.begin());
}

PEERBUS_INLINE std::string verdict::describe(rank_id member) const {
  const std::string_view text{text_.data(), text_.size()};  // It may lack its end.
  return concat(member, ": ", to_string(code_), ": ", text.substr(0, text.find('\0')));
}

PEERBUS_INLINE std::optional<error> gather_objections(rank_group& group, std::string_view doing,
                                                      const std::optional<error>& own,
                                                      deadline until) {
  // Another member may fail only when its own calls have timed out.
  constexpr std::chrono::seconds grace{5};
  const deadline patience = postponed(later(until, group.default_deadline()), grace);
  const verdict mine{own};
  std::vector<std::byte> all;
  try {
    all = group.gather_in_view(doing, object_bytes(mine), patience);
  } catch (const error& problem) {
    // `own` is why the group is unusable, and tells the caller more.
    if (own && problem.code() == errc::poisoned) throw error{*own};
    throw;
  }
  std::optional<error> found;
  for (std::size_t i = 0; i < group.view().members().size(); ++i) {
    verdict theirs;
    std::memcpy(&theirs, &all[i * sizeof theirs], sizeof theirs);
    const bool is_follower = theirs.code() == errc::peer_dead || theirs.code() == errc::poisoned;
    if (theirs.code() == errc::ok || (found && is_follower)) continue;
    found = error{theirs.code(), theirs.describe(group.view().members()[i])};
    if (!is_follower) break;
  }
  return found;
}

}  // namespace peerbus::detail

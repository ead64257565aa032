// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/text.hpp>

// The words of a membership about ranks, for messages.

namespace peerbus {

PEERBUS_ERROR_PATH const char* membership::ending_of(rank_id peer) const noexcept {
  switch (state(peer)) {
    case rank_state::running: return is_given_up(peer) ? " was given up by another" : " runs";
    case rank_state::left: return " left";
    default:
      return said_by(peer) == rank_state::failed ? " failed"
             : said_by(peer) == rank_state::lost ? " is out of reach"
             : followed(peer)                    ? " ended with another"
                                                 : " died";
  }
}

PEERBUS_ERROR_PATH std::string membership::fate(rank_id peer) const {
  std::string text = detail::concat(peer, ending_of(peer));
  if (memory_ && state(peer) == rank_state::failed) text += memory_->describe();
  return text;
}

PEERBUS_ERROR_PATH std::string membership::describe_last_seen(rank_id peer) const {
  if (peer.index() >= lines_.size()) return {};
  const auto seen = last_seen(peer);
  if (!seen) return told_ ? "" : "not heard yet";  // It may wait, but not for long.
  return detail::concat("last heard ", detail::describe_span(deadline::saturated(seen->heard)),
                        " ago, ", peerbus::describe(*seen));
}

PEERBUS_ERROR_PATH std::string membership::describe_awaited(
    std::span<const rank_id> awaited, detail::function_ref<std::string(rank_id)> what) const {
  std::string text;
  for (const rank_id peer : awaited.first(std::min(awaited.size(), detail::most_listed))) {
    text += detail::concat(text.empty() ? "" : ", ", peer, " (", what(peer));
    if (const auto seen = describe_last_seen(peer); !seen.empty()) text += "; " + seen;
    text += ")";
  }
  if (awaited.size() > detail::most_listed)
    text += detail::concat(" and ", awaited.size() - detail::most_listed, " more");
  return text;
}

PEERBUS_ERROR_PATH std::string membership::describe_missing() const {
  std::string causes = describe(false);
  return causes.empty() ? describe(true) : causes;
}

PEERBUS_ERROR_PATH std::string membership::describe(bool followers_too) const {
  std::string text;
  std::size_t missing = 0;
  for (const rank_id peer : all_ranks{size_}) {
    const bool has_ended = peer != rank_ && !is_excluded(peer) &&
                           state(peer) != rank_state::running && (followers_too || !followed(peer));
    if (!has_ended && !is_given_up(peer)) continue;
    if (++missing > detail::most_listed) continue;
    if (missing > 1) text += ", ";
    text += detail::concat(peer, ending_of(peer));
  }
  if (missing > detail::most_listed)
    text += detail::concat(" and ", missing - detail::most_listed, " more");
  if (memory_ && missing != 0) text += memory_->describe();
  return text;
}

}  // namespace peerbus

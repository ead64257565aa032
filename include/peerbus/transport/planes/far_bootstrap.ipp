// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <peerbus/core/text.hpp>
#include <peerbus/transport/planes/far_bootstrap.hpp>

namespace peerbus::detail {

PEERBUS_INLINE far_bootstrap::far_bootstrap(bootstrap& whole) : whole_{&whole} {
  set_members(whole.members());
  set_neighbours(whole.near_ranks(), whole.ranks_here(), whole.cores_here());
  set_rendezvous_address(whole.rendezvous_address());
  set_idle(whole.idle());
}

PEERBUS_INLINE std::vector<bootstrap::contribution> far_bootstrap::allgather(
    contribution own_part, deadline until, std::string_view doing) {
  if (is_finished_) return whole_->allgather(std::move(own_part), until, doing);
  if (end_) throw agreed_error{*end_};
  return gather(std::move(own_part), std::nullopt, until, doing);
}

PEERBUS_INLINE void far_bootstrap::finish(const std::optional<error>& objection, deadline until) {
  if (end_) throw agreed_error{*end_};
  try {
    static_cast<void>(gather({}, objection, until, "the end"));
  } catch (const error&) {
    if (!objection) throw;
  }
  if (objection) throw agreed_error{*objection};
  is_finished_ = true;
}

PEERBUS_INLINE std::vector<bootstrap::contribution> far_bootstrap::gather(
    contribution own_part, const std::optional<error>& objection, deadline until,
    std::string_view doing) {
  // Wire form: the caller's bytes, then what they are for, then the length of that, 4 bytes.
  const auto length = static_cast<std::uint32_t>(doing.size());
  append_bytes(own_part.bytes, doing.data(), doing.size());
  append_bytes(own_part.bytes, &length, sizeof length);
  std::vector<contribution> all;
  try {
    all = gather_or_refuse(*whole_, "planes: far", std::move(own_part), objection, until);
  } catch (const agreed_error& refusal) {
    end_ = refusal;
    throw;
  }
  std::optional<std::pair<rank_id, std::string>> first;
  for (const rank_id rank : all_ranks{all.size()}) {
    if (members()->is_excluded(rank)) continue;
    auto& bytes = all[rank.index()].bytes;
    std::string purpose = "a malformed message";
    std::uint32_t count = 0;
    if (bytes.size() >= sizeof count) {
      const std::size_t before_count = bytes.size() - sizeof count;
      std::memcpy(&count, bytes.data() + before_count, sizeof count);
      if (count <= before_count) {
        const std::size_t rest = before_count - count;
        purpose.assign(reinterpret_cast<const char*>(bytes.data() + rest), count);
        bytes.resize(rest);
      }
    }
    if (!first) first.emplace(rank, purpose);
    if (purpose == first->second) continue;
    end_ =
        agreed_error{errc::mismatch, concat("planes: far: ", first->first, " is in '",
                                            first->second, "' but ", rank, " in '", purpose, "'")};
    throw agreed_error{*end_};
  }
  return all;
}

PEERBUS_INLINE std::unique_ptr<bootstrap> far_bootstrap::make_subgroup(
    const std::vector<rank_id>& ranks, rank_id /*member*/, deadline until) {
  return whole_->subgroup(ranks, until);
}

}  // namespace peerbus::detail

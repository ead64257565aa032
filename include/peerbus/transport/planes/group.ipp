// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/planes/group.hpp>

namespace peerbus::detail {

PEERBUS_INLINE plane_group::plane_group(bootstrap& boot, const planes_options& options,
                                        deadline until)
    : boot_{&boot}, name_{options.group}, numbers_(boot.size(), none) {
  bootstrap::contribution own;
  const auto name = std::as_bytes(std::span{name_});
  own.bytes.assign(name.begin(), name.end());
  const auto names = boot.allgather(std::move(own), until, "planes");
  for (const rank_id rank : all_ranks{boot.size()}) {
    const auto& theirs = names[rank.index()].bytes;
    if (theirs.empty() != names[0].bytes.empty())
      throw agreed_error{
          errc::mismatch,
          concat("planes: ", theirs.empty() ? rank_id{0} : rank, " names its group of near ranks, ",
                 theirs.empty() ? rank : rank_id{0},
                 " does not; expected planes_options::group on all ranks or on none")};
    const bool is_member = name_.empty() ? boot.is_near(rank) : std::ranges::equal(theirs, name);
    if (!is_member) continue;
    numbers_[rank.index()] = static_cast<std::uint32_t>(members_.size());
    members_.push_back(rank);
  }
  // Near ranks pass each other the descriptors of their memory.
  if (is_everyone() && boot.passes_descriptors()) return;
  try {
    subgroup_ = boot.subgroup(members_, until);
  } catch (const agreed_error&) {
    throw;
  } catch (const error& problem) {
    if (problem.code() != errc::peer_dead) throw;
    unmet_ = problem;
  }
}

PEERBUS_INLINE void plane_group::agree_on_near(const std::optional<error>& objection,
                                               deadline until) {
  std::optional<error> own;
  bootstrap::contribution own_part;
  if (objection) {
    own = explain(*objection);
    // The members wait in the subgroup for this rank, and would do so until their deadline.
    if (subgroup_ != nullptr) subgroup_->members()->announce(rank_state::failed);
    subgroup_.reset();
    // That rank states the reason, unless its process has died.
    if (objection->code() == errc::peer_dead) {
      append_bytes(own_part.bytes, own->text().data(), own->text().size());
      own.reset();
    }
  }
  const auto all = [&] {
    try {
      return gather_or_refuse(*boot_, "planes: near", std::move(own_part), own, until);
    } catch (const error& problem) {
      // A death that all ranks were told of while they met has ended the bootstrap.
      if (!unmet_ || problem.code() != errc::poisoned) throw;
      throw error{*unmet_};
    }
  }();
  for (const rank_id rank : all_ranks{boot_->size()}) {
    const auto& bytes = all[rank.index()].bytes;
    if (bytes.empty()) continue;
    const std::string_view text{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    throw agreed_error{errc::peer_dead, concat("planes: near: ", rank, " could not: ", text)};
  }
}

PEERBUS_ERROR_PATH error plane_group::explain(const error& problem) const {
  return error{problem.code(),
               concat("planes: no near plane of ", describe_ranks(members_),
                      name_.empty() ? ", the ranks of a host" : concat(", group '", name_, "'"),
                      ": ", problem.text())};
}

}  // namespace peerbus::detail

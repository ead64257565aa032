// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The outcome on one member of a step that all members of a view take, in the form in which it
/// tells the others.
class verdict {
 public:
  verdict() = default;
  /// Takes the objection, if any. Cuts a long text.
  explicit verdict(const std::optional<error>& objection);

  [[nodiscard]] errc code() const noexcept { return code_; }
  /// Returns a text such as "rank 3: out of memory: ...".
  [[nodiscard]] std::string describe(rank_id member) const;

 private:
  static constexpr std::size_t most_text_bytes = 200;

  errc code_ = errc::ok;
  std::array<char, most_text_bytes> text_{};
};

/// Returns the objection of a member of the view of `group` to a step that all have taken, or
/// nothing if no member objects. The result is the same on all. Prefers the objection of a member
/// that did not only follow others (peer_dead or poisoned). Collective among the members.
/// Throws: `error` as `rank_group::gather_in_view`, but `own` instead of poisoned.
[[nodiscard]] std::optional<error> gather_objections(rank_group& group, std::string_view doing,
                                                     const std::optional<error>& own,
                                                     deadline until);

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/verdict.ipp>  // IWYU pragma: keep
#endif

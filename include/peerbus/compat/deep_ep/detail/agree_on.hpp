// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::deep_ep::detail {

/// Waits until all ranks have called it, and requires that `check()` returns the same text on all
/// ranks. Collective. For calls that set something up. `call` is the name of the call, and `what`
/// the name of the text.
/// Cost: one agreement between the ranks.
/// Throws: the `error` of `check()` on this rank, and refused on the other ranks; on all ranks
/// mismatch if texts differ; or as `rank_group::agree`.
template <class Check>
void agree_on(rank_group& group, std::string_view call, std::string_view what, deadline until,
              Check&& check) {
  std::string text;
  const auto own = objection_of(call, [&] { text = std::forward<Check>(check)(); });
  std::optional<error> refusal;
  if (own) refusal.emplace(errc::refused, own->text());
  try {
    group.agree(call, std::array{declared{what, std::string_view{text}}}, until, refusal);
  } catch (const agreed_error&) {
    if (own) throw error{*own};
    throw;
  }
}

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

/// Collective: calls `make()` on every rank and returns this rank's result, once all ranks have a
/// result. `what` names the result in error texts.
/// Cost: one agreement between the ranks.
/// Throws, on all ranks: `error` out_of_memory if `make()` threw `std::bad_alloc` on any rank, or
/// as `rank_group::agree`. Throws, on one rank: any other exception of `make()` there, while the
/// other ranks still wait for it.
template <class Make>
[[nodiscard]] auto make_together(rank_group& group, std::string_view what, deadline until,
                                 Make&& make) {
  return detail::make_and_agree(
      what, std::forward<Make>(make),
      [&](const std::optional<error>& objection) { group.agree(what, {}, until, objection); });
}

}  // namespace peerbus

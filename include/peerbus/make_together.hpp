// SPDX-License-Identifier: MIT
#pragma once

#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/rank_group.hpp>

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
  std::optional<std::invoke_result_t<Make>> made;
  std::optional<error> objection;
  try {
    made.emplace(std::forward<Make>(make)());
  } catch (const std::bad_alloc&) {
    objection = error{errc::out_of_memory, std::string{"no memory for "} + std::string{what}};
  }
  group.agree(what, {}, until, objection);
  return std::move(*made);
}

}  // namespace peerbus

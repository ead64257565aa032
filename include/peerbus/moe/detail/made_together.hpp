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

namespace peerbus::moe::detail {

/// Collective. What `make()` returns, if every rank has the memory for it. `what` is for people.
/// Throws, on all ranks: `error` out_of_memory, or as `agree`.
template <class Make>
[[nodiscard]] auto made_together(rank_group& group, std::string_view what, deadline until,
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

}  // namespace peerbus::moe::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe::detail {

/// Collective. What `make()` returns, if every rank has the memory for it. `what` is for people.
/// Throws, on all ranks: `error` out_of_memory, or as `agree`.
template <transport Transport, class Make>
[[nodiscard]] auto made_together(communicator<Transport>& comm, std::string_view what,
                                 deadline until, Make&& make) {
  std::optional<std::invoke_result_t<Make>> made;
  std::optional<error> objection;
  try {
    made.emplace(std::forward<Make>(make)());
  } catch (const std::bad_alloc&) {
    objection = error{errc::out_of_memory, std::string{"no memory for "} + std::string{what}};
  }
  comm.agree(what, {}, until, objection);
  return std::move(*made);
}

}  // namespace peerbus::moe::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// The largest number of lanes of a rank.
inline constexpr std::size_t max_lanes = 64;

/// One of several threads that together carry out an operation of a rank. All `count` lanes call
/// the same function with the same arguments and their own index, from threads of the caller. The
/// library starts no threads. Lane 0 communicates with the other ranks, and all lanes move data. If
/// an operation fails, all lanes throw its error. The number of lanes may change after the call has
/// returned on all lanes of the operation.
///
/// Errors: if lanes make different calls or give different counts, or if two threads give one
/// index, the call throws invalid_argument and poisons the communicator, because the rank is then
/// in the middle of an operation. Other arguments are not compared. One mistake is found late: if
/// lane 0 gives a count of 1 before the other lanes have called, it does the operation alone, and
/// the other lanes time out.
struct lane {
  std::size_t index = 0;  ///< the number of this lane, below `count`
  std::size_t count = 1;  ///< the number of all lanes, 1 to `max_lanes`

  /// The items from `begin` to the item before `end`.
  struct range {
    std::size_t begin;  ///< the first item
    std::size_t end;    ///< the item after the last
  };
  /// Returns the part of `all` items that this lane handles.
  [[nodiscard]] constexpr range share(std::size_t all) const noexcept {
    return {all * index / count, all * (index + 1) / count};
  }
};

}  // namespace peerbus

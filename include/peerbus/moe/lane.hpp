// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

namespace peerbus::moe {

inline constexpr std::size_t max_lanes = 64;

/// Which of several threads of a rank that carry one operation together. All `count` lanes call the
/// same function with the same arguments and their own index, from threads of the caller's; the
/// library starts none. Lane 0 speaks with the other ranks, all move rows. What one lane throws all
/// of them throw. The next operation may have another number of lanes once the call has returned on
/// all of this one's.
///
/// Counts that differ and an index that comes twice are errors, and poison the communicator, as the
/// rank is then in the middle of a call. One case shows late: a lane 0 that says it is alone does
/// the operation alone if the others have not come yet, and those time out waiting for it.
struct lane {
  std::size_t index = 0;
  std::size_t count = 1;

  struct range {
    std::size_t begin;
    std::size_t end;
  };
  /// This lane's part of `all` items.
  [[nodiscard]] constexpr range share(std::size_t all) const noexcept {
    return {all * index / count, all * (index + 1) / count};
  }
};

}  // namespace peerbus::moe

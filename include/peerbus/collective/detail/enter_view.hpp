// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::collective::detail {

/// Moves `what`, which was made or resumed in view `from`, to the present view of `group`. Raises
/// each of `numbers` to the highest number that a member of the view gives. Collective among the
/// members: when it returns, no member is in an operation of `what` in an earlier view.
/// Returns: the number of the present view.
/// Throws: `error` invalid_argument if the view is `from`; as `rank_group::gather_in_view`.
std::uint64_t enter_view(rank_group& group, std::string_view what, std::uint64_t from,
                         std::span<std::uint64_t> numbers, std::optional<deadline> until);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/enter_view.ipp>  // IWYU pragma: keep
#endif

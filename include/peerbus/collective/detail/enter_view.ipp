// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include <peerbus/collective/detail/enter_view.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE std::uint64_t enter_view(rank_group& group, std::string_view what,
                                        std::uint64_t from, std::span<std::uint64_t> numbers,
                                        std::optional<deadline> until) {
  const std::uint64_t view = group.view().number();
  const std::string doing = peerbus::detail::concat("resume of ", what);
  group.require_healthy(doing, view);
  if (view == from)
    throw error{errc::invalid_argument,
                peerbus::detail::concat(doing, " in view ", view, ", expected a later one")};
  const auto given =
      group.gather_in_view(doing, std::as_bytes(numbers), until.value_or(group.default_deadline()));
  for (std::size_t i = 0; i < given.size() / sizeof(std::uint64_t); ++i) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, &given[i * sizeof theirs], sizeof theirs);
    std::uint64_t& highest = numbers[i % numbers.size()];
    highest = std::max(highest, theirs);
  }
  return view;
}

}  // namespace peerbus::collective::detail

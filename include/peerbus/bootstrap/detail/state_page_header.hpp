// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

namespace peerbus::detail {

/// The first line of a page of rank states, by which a process outside the group recognises it.
struct state_page_header {
  static constexpr std::array<char, 8> expected_magic{'p', 'e', 'e', 'r', 'b', 'u', 's', 'S'};
  /// The number of this layout of the page, of `activity_line` and of the numbers in it.
  static constexpr std::uint32_t expected_layout = 2;

  std::array<char, 8> magic = expected_magic;
  std::uint32_t layout = expected_layout;
  std::uint32_t group_size = 0;  ///< the number of ranks of the group
  std::uint32_t first = 0;       ///< the lowest rank that has a line in this page
  std::uint32_t ranks = 0;       ///< the number of ranks, from `first` on, that have a line in this
                                 ///< page
  std::uint32_t hosts = 0;       ///< the number of ranks, from 0 on, whose hosts have a name in
                                 ///< this page
  std::uint64_t group = 0;       ///< the same in all pages of a group; 0 if the group has only this
                                 ///< page
};

}  // namespace peerbus::detail

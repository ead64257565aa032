// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/request.hpp>

namespace peerbus::collective::detail {

/// The ranks that contribute and receive in an operation, and their rows. An operand without rows
/// is one block for all ranks.
struct pattern {
  const char* name;                                  ///< the name of the function, as in errors
  bool one_gives = false;                            ///< the root alone contributes, else all ranks
  bool one_takes = false;                            ///< the root alone receives, else all ranks
  bool input_rows = false;                           ///< an input has a row for each rank
  bool output_rows = false;                          ///< an output has a row from each rank
  bool reduces = false;                              ///< the bytes that a rank receives are reduced
  bool varies = false;                               ///< rows differ in size
  short_text<16> operation{std::string_view{name}};  ///< the name, as ranks compare it

  /// Returns whether the operation has a root.
  [[nodiscard]] constexpr bool has_root() const noexcept { return one_gives || one_takes; }
  ///@{
  /// Returns whether a rank contributes or receives. `is_root` is whether it is the root.
  [[nodiscard]] constexpr bool gives(bool is_root) const noexcept { return !one_gives || is_root; }
  [[nodiscard]] constexpr bool takes(bool is_root) const noexcept { return !one_takes || is_root; }
  ///@}
};

/// The pattern of each `operation_kind`, in the order of its values.
inline constexpr std::array<pattern, 14> patterns{{
    {.name = "broadcast", .one_gives = true},
    {.name = "gather", .one_takes = true, .output_rows = true},
    {.name = "gather_v", .one_takes = true, .output_rows = true, .varies = true},
    {.name = "scatter", .one_gives = true, .input_rows = true},
    {.name = "scatter_v", .one_gives = true, .input_rows = true, .varies = true},
    {.name = "all_gather", .output_rows = true},
    {.name = "all_gather_v", .output_rows = true, .varies = true},
    {.name = "all_to_all", .input_rows = true, .output_rows = true},
    {.name = "all_to_all_v", .input_rows = true, .output_rows = true, .varies = true},
    {.name = "reduce", .one_takes = true, .reduces = true},
    {.name = "all_reduce", .reduces = true},
    // Ranks compare it by the name of its reduction.
    {.name = "all_reduce_add",
     .reduces = true,
     .operation = short_text<16>{std::string_view{"all_reduce"}}},
    {.name = "reduce_scatter", .input_rows = true, .reduces = true},
    {.name = "reduce_scatter_v", .input_rows = true, .reduces = true, .varies = true},
}};

/// Returns the pattern of an operation.
[[nodiscard]] constexpr const pattern& pattern_of(operation_kind what) noexcept {
  return patterns[static_cast<std::size_t>(what)];
}

/// Returns the operation in the form that a rank shows to others while it waits in it.
[[nodiscard]] constexpr group_operation shown_as(operation_kind what) noexcept {
  return static_cast<group_operation>(static_cast<std::size_t>(group_operation::broadcast) +
                                      static_cast<std::size_t>(what));
}
static_assert(shown_as(operation_kind::reduce_scatter_v) == group_operation::reduce_scatter_v);

/// Returns the size in bytes of a row, or of an operand without rows. The rows of the operation
/// must be equal in size.
[[nodiscard]] constexpr std::size_t block_bytes(const pattern& kind, const request& given,
                                                std::size_t ranks) noexcept {
  if (!kind.input_rows) return given.input.size();
  return kind.output_rows ? given.input.size() / ranks : given.output.size();
}

}  // namespace peerbus::collective::detail

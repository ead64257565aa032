// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/in_window.hpp>
#include <peerbus/collective/part_layout.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

/// The type of an operand's elements, as ranks compare it: a name of at most 8 characters and a
/// size. `element_type::of<T>()` is the type for operations on ranges of `T`.
using element_type = detail::element_type;

/// Returns the type named `name`, such as "f32", with elements of `bytes` bytes. Use the name
/// "bytes" for elements that are only moved.
[[nodiscard]] constexpr element_type element_named(std::string_view name,
                                                   std::uint32_t bytes) noexcept {
  return {detail::short_text<8>{name}, bytes};
}

/// The operations that a `request` may ask for.
enum class operation_kind : std::uint8_t {
  broadcast,         ///< `collective::broadcast`
  gather,            ///< `collective::gather`
  gather_v,          ///< `collective::gather_v`
  scatter,           ///< `collective::scatter`
  scatter_v,         ///< `collective::scatter_v`
  all_gather,        ///< `collective::all_gather`
  all_gather_v,      ///< `collective::all_gather_v`
  all_to_all,        ///< `collective::all_to_all`
  all_to_all_v,      ///< `collective::all_to_all_v`
  reduce,            ///< `collective::reduce`
  all_reduce,        ///< `collective::all_reduce`
  all_reduce_add,    ///< `collective::all_reduce_add`
  reduce_scatter,    ///< `collective::reduce_scatter`
  reduce_scatter_v,  ///< `collective::reduce_scatter_v`
};

/// The reductions that a `request` may ask for.
enum class reduction_kind : std::uint8_t {
  sum,      ///< `collective::sum`
  product,  ///< `collective::product`
  minimum,  ///< `collective::minimum`
  maximum,  ///< `collective::maximum`
};

/// A collective operation as data. Programs that know the type of elements only at run time, such
/// as bindings of other languages, pass a request to `run` or `start`. Functions such as
/// `all_reduce` make one from their ranges. Operands are bytes, and their sizes must be whole
/// elements. Members that the operation does not use are not read.
struct request {
  operation_kind what = operation_kind::broadcast;  ///< the operation
  element_type element{};                           ///< the type of all operands' elements
  std::span<const std::byte> input{};               ///< this rank's contribution
  std::span<std::byte> output{};  ///< this rank's result; for broadcast, the same as the input
  /// The place of an input in a window: `in_window(memory, input).place()`. By default the input is
  /// treated as memory outside windows.
  detail::window_place input_in{};
  std::optional<std::span<const std::byte>> residual{};  ///< the last term of all_reduce_add
  rank_id root{0};                                       ///< the root, where there is one
  reduction_kind reduction = reduction_kind::sum;        ///< the reduction that `run` does
  part_layout parts{};           ///< the parts; for all_to_all_v, of the input
  part_layout received_parts{};  ///< for all_to_all_v, the parts of the output

  /// Returns whether both operands begin at the same address.
  [[nodiscard]] bool is_in_place() const noexcept { return input.data() == output.data(); }
  /// Returns the input's number of elements.
  [[nodiscard]] std::size_t input_count() const noexcept { return input.size() / element.bytes; }
  /// Returns the output's number of elements.
  [[nodiscard]] std::size_t output_count() const noexcept { return output.size() / element.bytes; }
};

}  // namespace peerbus::collective

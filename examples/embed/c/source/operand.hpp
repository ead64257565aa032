// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include <peerbus/collective/request.hpp>
#include <peerbus/core/rank.hpp>

#include "failure.hpp"

/// Element types, sizes and ranks of the collective operations, which are known at run time only.
namespace peerbus::c_library {

/// The most bytes of an operand. Below this, no sum of an address and a size wraps around.
inline constexpr std::uint64_t most_operand_bytes = std::numeric_limits<std::int64_t>::max() / 2;

/// Returns the type of elements as ranks compare it, with the name that C++ gives it if it has the
/// type. It has 0 bytes if there is no such type.
collective::element_type element_of(peerbus_dtype dtype);

/// Says that there is no such type of elements: "a dtype of 519, expected ...".
std::string wrong_dtype(peerbus_dtype dtype);

/// Returns a type of elements in words, such as "f32", for errors.
std::string name_of(peerbus_dtype dtype);

/// Returns the bytes of `count` x `rows` elements of `each` bytes, or nothing if memory cannot have
/// so many. `rows` and `each` are not 0.
constexpr std::optional<std::size_t> bytes_of(std::uint64_t count, std::uint64_t rows,
                                              std::uint64_t each) noexcept {
  if (count > most_operand_bytes / rows / each) return std::nullopt;
  return static_cast<std::size_t>(count * rows * each);
}

/// Returns the rank `number`. A number that no rank has stays one, which operations refuse.
constexpr rank_id rank_of(std::uint64_t number) noexcept {
  constexpr std::uint64_t none = std::numeric_limits<std::uint32_t>::max();
  return rank_id{number < none ? number : none};
}

}  // namespace peerbus::c_library

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

///@{
/// Returns the bytes of `object`, which must outlive them. A span of `object` would have them too,
/// but takes a compiler more than many a function, for every type.
template <class T>
  requires std::is_trivially_copyable_v<T>
[[nodiscard]] std::span<const std::byte> object_bytes(const T& object) noexcept {
  return {reinterpret_cast<const std::byte*>(&object), sizeof object};
}
template <class T>
  requires std::is_trivially_copyable_v<T>
[[nodiscard]] std::span<std::byte> writable_object_bytes(T& object) noexcept {
  return {reinterpret_cast<std::byte*>(&object), sizeof object};
}
///@}

}  // namespace peerbus::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

///@{
/// Returns the `T` at `place`. `place` is aligned for `T`, because memory layouts keep their
/// offsets at multiples of the size of their elements. The compiler is told of the alignment, and a
/// build with -fsanitize=alignment checks it. It would not check a plain cast before the pointer is
/// used.
template <class T>
[[nodiscard]] T* placed(std::byte* place) noexcept {
  return static_cast<T*>(__builtin_assume_aligned(place, alignof(T)));
}
template <class T>
[[nodiscard]] const T* placed(const std::byte* place) noexcept {
  return static_cast<const T*>(__builtin_assume_aligned(place, alignof(T)));
}
///@}

}  // namespace peerbus::detail

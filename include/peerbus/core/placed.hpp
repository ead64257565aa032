// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

///@{
/// Returns the `T` that lies at `place`, which is aligned for it: the maps of memory keep their
/// offsets at multiples of what they hold. The compiler is told so, and a build with
/// -fsanitize=alignment checks it, where a plain cast would be believed until its use.
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

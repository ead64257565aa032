// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// Copies `bytes` bytes. The ranges are equal or do not overlap. If `bytes` is 0, the pointers may
/// be null.
///
/// Unlike std::memcpy, this avoids a slow case. From 2 or 4 KiB on, glibc before 2.40 copies by
/// `rep movsb`. Zen 3 and Zen 4 take 14 times as long for that if the target begins 1 to 31 bytes
/// after the source within a page (glibc bug 30994), and memory of malloc often begins 16 bytes
/// into a page. This function copies pieces that are too short for `rep movsb`. The last piece
/// comes first, because a load that follows a store to the same place of another page waits for it.
/// Cost: one pass.
inline void copy_bytes(std::byte* target, const std::byte* source, std::size_t bytes) noexcept {
  constexpr std::size_t least = 2048;
  constexpr std::size_t piece = 256;
  constexpr std::uintptr_t page = 4096;
  constexpr std::uintptr_t slow_end = 32;
  const std::uintptr_t shift =
      (reinterpret_cast<std::uintptr_t>(target) - reinterpret_cast<std::uintptr_t>(source)) % page;
  std::size_t left = bytes;
  if (left >= least && shift != 0 && shift < slow_end)
    for (; left >= piece; left -= piece)
      std::memcpy(target + left - piece, source + left - piece, piece);
  if (left != 0 && target != source) std::memcpy(target, source, left);
}

}  // namespace peerbus::detail

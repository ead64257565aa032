// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <peerbus/core/align.hpp>
#include <peerbus/kernel/kernel_set.hpp>

namespace peerbus::kernel {

/// Copies `bytes` bytes. Writes whole cache lines of `out` by streaming stores
/// (`kernel_set::stream_lines`), and the bytes before and after them by plain stores. `source` and
/// `out` do not overlap and need no alignment. Call `fence_streams` before other threads are told
/// of the bytes.
/// Cost: one pass.
inline void stream(const kernel_set& kernels, std::byte* out, const std::byte* source,
                   std::size_t bytes) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(out);
  const std::size_t head = std::min(bytes, align_up(address, cache_line_bytes) - address);
  const std::size_t lines = (bytes - head) / cache_line_bytes;
  const std::size_t tail = head + lines * cache_line_bytes;
  if (head != 0) std::memcpy(out, source, head);
  kernels.stream_lines(source + head, lines, out + head);
  if (tail != bytes) std::memcpy(out + tail, source + tail, bytes - tail);
}

/// Orders the streaming stores of this thread before its later stores, so that a release by this
/// thread covers them. On x86-64 a release alone does not, because it is a plain store, which may
/// overtake streaming stores. On AArch64 a release suffices, because STNP is ordered as any other
/// store.
inline void fence_streams() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace peerbus::kernel

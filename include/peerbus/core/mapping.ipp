// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <limits>

#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

namespace detail {

PEERBUS_INLINE std::size_t page_bytes() noexcept {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

PEERBUS_ERROR_PATH error cannot_map(std::size_t bytes, int reason) {
  return error{errc::out_of_memory,
               concat("cannot map ", bytes, " bytes: ", describe_errno(reason),
                      reason == ENOMEM ? "; see `ulimit -v` and /proc/sys/vm/max_map_count" : "")};
}

}  // namespace detail

PEERBUS_INLINE mapping::~mapping() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

PEERBUS_INLINE mapping mapping::anonymous(std::size_t bytes) {
  return map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, std::array{-1});
}

PEERBUS_INLINE mapping mapping::shared_file(int fd, std::size_t bytes) {
  return map(bytes, MAP_SHARED, std::array{fd});
}

PEERBUS_INLINE mapping mapping::shared_files(std::span<const int> fds, std::size_t bytes) {
  return map(bytes, MAP_SHARED, fds);
}

PEERBUS_INLINE mapping mapping::map(std::size_t wanted, int flags, std::span<const int> fds) {
  const bool is_large = wanted >= huge_page_bytes;
  const std::size_t part = align_up(wanted, is_large ? huge_page_bytes : detail::page_bytes());
  if (part > std::numeric_limits<std::size_t>::max() / 2 / fds.size())
    throw detail::cannot_map(part, ENOMEM);
  const std::size_t bytes = part * fds.size();
  // Reserves more than needed, so that the mapping can start at a boundary. The surplus is unmapped
  // below.
  const std::size_t slack = is_large ? huge_page_bytes : 0;
  void* reserved =
      ::mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw detail::cannot_map(bytes, errno);
  auto* const start = static_cast<std::byte*>(reserved);
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t lead = is_large ? align_up(address, huge_page_bytes) - address : 0;
  std::byte* const base = start + lead;
  for (std::size_t i = 0; i < fds.size(); ++i) {
    // Without a file, memory of this process alone.
    const int own_flags = fds[i] < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : flags;
    if (::mmap(base + i * part, part, PROT_READ | PROT_WRITE, own_flags | MAP_FIXED, fds[i], 0) !=
        MAP_FAILED)
      continue;
    const int reason = errno;
    ::munmap(start, bytes + slack);
    throw detail::cannot_map(part, reason);
  }
  if (lead != 0) ::munmap(start, lead);
  if (lead != slack) ::munmap(base + bytes, slack - lead);
  if (is_large) ::madvise(base, bytes, MADV_HUGEPAGE);
  mapping result;
  result.base_ = base;
  result.bytes_ = bytes;
  return result;
}

}  // namespace peerbus

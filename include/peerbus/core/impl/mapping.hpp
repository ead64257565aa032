// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
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
               concat("cannot map ", bytes, " bytes: ", describe_errno(reason))};
}

}  // namespace detail

PEERBUS_INLINE mapping::~mapping() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

PEERBUS_INLINE mapping mapping::anonymous(std::size_t bytes) {
  return map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

PEERBUS_INLINE mapping mapping::shared_file(int fd, std::size_t bytes) {
  return map(bytes, MAP_SHARED, fd);
}

PEERBUS_INLINE mapping mapping::map(std::size_t wanted, int flags, int fd) {
  const bool is_large = wanted >= huge_page_bytes;
  const std::size_t bytes = align_up(wanted, is_large ? huge_page_bytes : detail::page_bytes());
  // Reserves more than needed, so that the mapping can start at a boundary. The surplus is unmapped
  // below.
  const std::size_t slack = is_large ? huge_page_bytes : 0;
  void* reserved =
      ::mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw detail::cannot_map(bytes, errno);
  auto* const start = static_cast<std::byte*>(reserved);
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t lead = is_large ? align_up(address, huge_page_bytes) - address : 0;
  void* placed = ::mmap(start + lead, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
  if (placed == MAP_FAILED) {
    const int reason = errno;
    ::munmap(start, bytes + slack);
    throw detail::cannot_map(bytes, reason);
  }
  if (lead != 0) ::munmap(start, lead);
  if (lead != slack) ::munmap(start + lead + bytes, slack - lead);
  if (is_large) ::madvise(placed, bytes, MADV_HUGEPAGE);
  mapping result;
  result.base_ = static_cast<std::byte*>(placed);
  result.bytes_ = bytes;
  return result;
}

}  // namespace peerbus

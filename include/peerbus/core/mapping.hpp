// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>

namespace peerbus {

inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

/// Owns a range of mapped memory. Large mappings begin at a huge-page boundary and ask for huge
/// pages; whether the kernel gives them changes speed only. Sizes are rounded up to whole pages.
class mapping {
 public:
  mapping() = default;
  mapping(mapping&& other) noexcept
      : base_{std::exchange(other.base_, nullptr)}, bytes_{std::exchange(other.bytes_, 0)} {}
  mapping& operator=(mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  ~mapping() {
    if (base_ != nullptr) ::munmap(base_, bytes_);
  }

  /// Zeroed memory of this process. Pages are taken at first touch.
  /// Throws: `error` out_of_memory.
  [[nodiscard]] static mapping anonymous(std::size_t bytes) {
    return map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  }

  /// The first `bytes` of the file `fd`, shared with whoever else maps it; `fd` may be closed
  /// afterwards.
  /// Throws: `error` out_of_memory.
  [[nodiscard]] static mapping shared_file(int fd, std::size_t bytes) {
    return map(bytes, MAP_SHARED, fd);
  }

  [[nodiscard]] std::byte* data() const noexcept { return base_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

 private:
  static mapping map(std::size_t wanted, int flags, int fd) {
    const bool large = wanted >= huge_page_bytes;
    const std::size_t bytes = align_up(wanted, large ? huge_page_bytes : page_bytes());
    // Reserving more than needed leaves room to start at a boundary; the surplus is given back.
    const std::size_t slack = large ? huge_page_bytes : 0;
    void* reserved = ::mmap(nullptr, bytes + slack, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) throw refused(bytes, errno);
    auto* const start = static_cast<std::byte*>(reserved);
    const auto address = reinterpret_cast<std::uintptr_t>(start);
    const std::size_t lead = large ? align_up(address, huge_page_bytes) - address : 0;
    void* placed = ::mmap(start + lead, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
    if (placed == MAP_FAILED) {
      const int reason = errno;
      ::munmap(start, bytes + slack);
      throw refused(bytes, reason);
    }
    if (lead != 0) ::munmap(start, lead);
    if (lead != slack) ::munmap(start + lead + bytes, slack - lead);
    if (large) ::madvise(placed, bytes, MADV_HUGEPAGE);
    mapping result;
    result.base_ = static_cast<std::byte*>(placed);
    result.bytes_ = bytes;
    return result;
  }

  static std::size_t page_bytes() noexcept {
    return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  }

  static error refused(std::size_t bytes, int reason) {
    return error{errc::out_of_memory,
                 detail::concat("cannot map ", bytes, " bytes: ", detail::describe_errno(reason))};
  }

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace peerbus

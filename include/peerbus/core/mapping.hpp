// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// The size of the huge pages that large mappings ask for.
inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

/// Owns a range of mapped memory, which it unmaps when it is destroyed. A mapping of at least
/// `huge_page_bytes` begins at a huge-page boundary and asks for huge pages. Whether the kernel
/// grants them affects speed only. `size()` is rounded up to whole huge pages for such a mapping,
/// and to whole pages for a smaller one.
class mapping {
 public:
  mapping() = default;
  /// Takes over the memory of `other`, which is empty afterwards.
  mapping(mapping&& other) noexcept
      : base_{std::exchange(other.base_, nullptr)}, bytes_{std::exchange(other.bytes_, 0)} {}
  mapping& operator=(mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  ~mapping();

  /// Maps zeroed memory of this process. The kernel commits its pages at the first touch.
  /// Cost: two system calls, and up to three more for a large mapping.
  /// Throws: `error` out_of_memory.
  [[nodiscard]] static mapping anonymous(std::size_t bytes);

  /// Maps the first `bytes` of the file `fd`, shared with every other process that maps it. The
  /// caller may close `fd` afterwards. Pages beyond the end of the file must not be touched: they
  /// raise SIGBUS.
  /// Cost: as `anonymous`.
  /// Throws: `error` out_of_memory.
  [[nodiscard]] static mapping shared_file(int fd, std::size_t bytes);
  /// Maps the first `bytes` of each of the files `fds`, one file after the other, shared as by
  /// `shared_file`. File i begins at byte i x size() / fds.size(). `fds` is not empty. An entry of
  /// -1 stands for memory of this process, as from `anonymous`.
  /// Cost: a system call for each file and up to four more. Unmapping all files takes one system
  /// call. One call for each file would interrupt the other cores of the process each time.
  /// Throws: `error` out_of_memory.
  [[nodiscard]] static mapping shared_files(std::span<const int> fds, std::size_t bytes);

  /// Returns the first byte, or nullptr if the mapping is empty.
  [[nodiscard]] std::byte* data() const noexcept { return base_; }
  /// Returns the size of the mapping in bytes, rounded up as described above. 0 if it is empty.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

 private:
  static mapping map(std::size_t wanted, int flags, std::span<const int> fds);

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/mapping.ipp>  // IWYU pragma: keep
#endif

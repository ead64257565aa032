// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <utility>

#include <peerbus/core/compiled.hpp>

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
  ~mapping();

  /// Zeroed memory of this process. Pages are taken at first touch.
  /// Throws: `error` out_of_memory.
  [[nodiscard]] static mapping anonymous(std::size_t bytes);

  /// The first `bytes` of the file `fd`, shared with whoever else maps it; `fd` may be closed
  /// afterwards.
  /// Throws: `error` out_of_memory.
  [[nodiscard]] static mapping shared_file(int fd, std::size_t bytes);

  [[nodiscard]] std::byte* data() const noexcept { return base_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

 private:
  static mapping map(std::size_t wanted, int flags, int fd);

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/impl/mapping.hpp>  // IWYU pragma: keep
#endif

// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <span>

namespace peerbus::test {

/// The side of its pages at which a guarded array lies. An access outside the array faults at once
/// on that side. On the other side `untouched()` detects a write.
enum class edge { front, back };

/// An array with an unmapped page on each side.
template <class T>
class guarded {
 public:
  guarded(std::size_t count, edge side) : count_{count} {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    inner_bytes_ = (count * sizeof(T) + 2 * page - 1) / page * page;
    outer_bytes_ = inner_bytes_ + 2 * page;
    outer_ = ::mmap(nullptr, outer_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (outer_ == MAP_FAILED) throw std::bad_alloc{};
    inner_ = static_cast<std::byte*>(outer_) + page;
    ::mprotect(inner_, inner_bytes_, PROT_READ | PROT_WRITE);
    std::memset(inner_, canary, inner_bytes_);
    skipped_ = side == edge::front ? 0 : inner_bytes_ - count * sizeof(T);
  }
  guarded(const guarded&) = delete;
  guarded& operator=(const guarded&) = delete;
  ~guarded() { ::munmap(outer_, outer_bytes_); }

  [[nodiscard]] T* data() const noexcept { return reinterpret_cast<T*>(inner_ + skipped_); }
  [[nodiscard]] std::span<T> all() const noexcept { return {data(), count_}; }

  [[nodiscard]] bool untouched() const noexcept {
    const std::size_t end = skipped_ + count_ * sizeof(T);
    for (std::size_t i = 0; i < inner_bytes_; ++i)
      if ((i < skipped_ || i >= end) && inner_[i] != std::byte{canary}) return false;
    return true;
  }

 private:
  static constexpr unsigned char canary = 0xa5;

  std::size_t count_;
  std::size_t inner_bytes_ = 0;
  std::size_t outer_bytes_ = 0;
  std::size_t skipped_ = 0;
  void* outer_ = nullptr;
  std::byte* inner_ = nullptr;
};

}  // namespace peerbus::test

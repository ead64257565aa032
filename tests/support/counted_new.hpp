// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

/// Replaces every operator new of the program by one that counts: for one source file of a program.
namespace test {

/// How often this thread has called any operator new.
inline thread_local std::uint64_t allocations = 0;

namespace detail {

// Not inlined: g++ would take free for the wrong end of an inlined new.
[[gnu::noinline]] inline void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc{};
  return memory;
}
[[gnu::noinline]] inline void release(void* memory) noexcept { std::free(memory); }
}  // namespace detail

}  // namespace test

// The array forms of the standard library call these, and so do the nothrow ones, but not those of
// a sanitizer.
void* operator new(std::size_t bytes) {
  return test::detail::counted(bytes, alignof(std::max_align_t));
}
void* operator new[](std::size_t bytes) {
  return test::detail::counted(bytes, alignof(std::max_align_t));
}
// `std::stable_sort` takes its memory by this one, and gives it back by the plain operator delete.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return test::detail::counted(bytes, alignof(std::max_align_t));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes, const std::nothrow_t& without) noexcept {
  return operator new(bytes, without);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return test::detail::counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return test::detail::counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { test::detail::release(memory); }
void operator delete[](void* memory) noexcept { test::detail::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { test::detail::release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { test::detail::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { test::detail::release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { test::detail::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  test::detail::release(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  test::detail::release(memory);
}

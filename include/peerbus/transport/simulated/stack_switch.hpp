// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

#ifdef __SANITIZE_ADDRESS__
#define PEERBUS_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PEERBUS_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef PEERBUS_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace peerbus::detail {

/// Tells AddressSanitizer when a thread switches between its stack and a fibre's, so that it does
/// not mix up frames of the two stacks. Without AddressSanitizer, does nothing.
class stack_switch {
 public:
#ifdef PEERBUS_ADDRESS_SANITIZER
  /// Describes the fibre's stack: `bytes` bytes from `bottom` on.
  stack_switch(const void* bottom, std::size_t bytes) noexcept : inner_{bottom, bytes} {}
  /// Announces that the thread is about to switch to the fibre.
  void enter() noexcept {
    __sanitizer_start_switch_fiber(&outer_frames_, inner_.bottom, inner_.bytes);
  }
  /// Notes that the thread is back from the fibre.
  void entered() noexcept { __sanitizer_finish_switch_fiber(outer_frames_, nullptr, nullptr); }
  /// Announces that the fibre is about to switch to the thread.
  void leave() noexcept {
    __sanitizer_start_switch_fiber(&inner_frames_, outer_.bottom, outer_.bytes);
  }
  /// Notes that the fibre has begun or is back.
  void left() noexcept {
    __sanitizer_finish_switch_fiber(inner_frames_, &outer_.bottom, &outer_.bytes);
  }
  /// Lets AddressSanitizer forget the frames of the stack, for a later mapping there. Call it after
  /// the fibre has ended and its stack is unmapped.
  void ended() noexcept { __asan_unpoison_memory_region(inner_.bottom, inner_.bytes); }
  /// Announces that the fibre is about to switch to the thread for the last time.
  void end() noexcept { __sanitizer_start_switch_fiber(nullptr, outer_.bottom, outer_.bytes); }

 private:
  struct stack {
    const void* bottom = nullptr;
    std::size_t bytes = 0;
  };
  stack inner_;
  stack outer_;
  void* inner_frames_ = nullptr;
  void* outer_frames_ = nullptr;
#else
  stack_switch(const void* /*bottom*/, std::size_t /*bytes*/) noexcept {}
  void enter() noexcept {}
  void entered() noexcept {}
  void ended() noexcept {}
  void leave() noexcept {}
  void left() noexcept {}
  void end() noexcept {}
#endif
};

}  // namespace peerbus::detail

#undef PEERBUS_ADDRESS_SANITIZER

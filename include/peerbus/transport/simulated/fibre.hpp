// SPDX-License-Identifier: MIT
#pragma once

#include <cxxabi.h>

#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <boost/context/stack_context.hpp>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include <peerbus/transport/simulated/stack_switch.hpp>

#ifdef _LIBCPP_VERSION  // Its cxxabi.h leaves this out.
namespace __cxxabiv1 {
struct __cxa_eh_globals;
extern "C" __cxa_eh_globals* __cxa_get_globals() noexcept;
}  // namespace __cxxabiv1
#endif

namespace peerbus::detail {

/// The exceptions of a fibre: the ones being handled and the ones in flight. The C++ runtime keeps
/// them by thread. A fibre that waits in a `catch` must find its own exceptions when it continues.
class exceptions_in_flight {
 public:
  /// Exchanges the held exceptions with the thread's.
  void swap() noexcept {
    void* const of_thread = abi::__cxa_get_globals();
    globals other;
    std::memcpy(&other, of_thread, sizeof other);
    std::memcpy(of_thread, &held_, sizeof held_);
    held_ = other;
  }

 private:
  /// The runtime's state, laid out as in the Itanium C++ ABI.
  struct globals {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  };
  globals held_;
};

/// A function with its own stack, which can be left in the middle and entered again. It must have
/// ended when it is destroyed. One thread makes all calls.
class fibre {
 public:
  /// Makes a fibre with a stack of `stack_bytes` bytes. `body` begins with the first `enter`, and
  /// must not throw.
  /// Throws: std::bad_alloc.
  template <class Body>
  fibre(std::size_t stack_bytes, Body body)
      : fibre{boost::context::protected_fixedsize_stack{stack_bytes}, std::move(body)} {}
  fibre(const fibre&) = delete;
  fibre& operator=(const fibre&) = delete;
  ~fibre() = default;

  /// Continues the fibre until it calls `leave` or ends.
  void enter() {
    exceptions_.swap();
    switch_.enter();
    inside_ = std::move(inside_).resume();
    switch_.entered();
    if (!inside_) switch_.ended();
    exceptions_.swap();
  }
  /// Returns to the caller of `enter`. Only the fibre itself may call it.
  void leave() {
    switch_.leave();
    outside_ = std::move(outside_).resume();
    switch_.left();
  }

 private:
  using stacks = boost::context::protected_fixedsize_stack;

  template <class Body>
  fibre(stacks allocator, Body body) : fibre{allocator, allocator.allocate(), std::move(body)} {}
  template <class Body>
  fibre(stacks allocator, boost::context::stack_context stack, Body body)
      : switch_{static_cast<std::byte*>(stack.sp) - stack.size, stack.size},
        inside_{std::allocator_arg, boost::context::preallocated{stack.sp, stack.size, stack},
                allocator, [this, body = std::move(body)](boost::context::fiber&& outside) mutable {
                  switch_.left();
                  outside_ = std::move(outside);
                  body();
                  switch_.end();
                  return std::move(outside_);
                }} {}

  stack_switch switch_;
  boost::context::fiber inside_;
  boost::context::fiber outside_;
  exceptions_in_flight exceptions_;
};

}  // namespace peerbus::detail

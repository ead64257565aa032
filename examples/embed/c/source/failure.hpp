// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

/// The way of errors from C++ to C: codes, and a text per thread.
namespace peerbus::c_library {

/// Keeps `text` and `text_end` as the error of this thread, as much of them as there is room for,
/// and returns `code`.
peerbus_code fail(peerbus_code code, std::string_view text,
                  std::string_view text_end = {}) noexcept;

/// Returns the code of C for a code of C++.
constexpr peerbus_code code_of(errc code) noexcept { return static_cast<peerbus_code>(code); }

/// The waits of a thread since its present call began.
struct waits {
  bool are_ended = false;                 ///< an interrupt function has ended one, and so the call
  bool are_of_parent = false;             ///< or has made this process a child by fork
  std::optional<deadline> next_question;  ///< when to ask the function next; empty before any wait
};
/// Returns the waits of this thread.
waits& own_waits() noexcept;

/// The code of a wait that an interrupt function has ended. It is not `timed_out`, after which
/// loops of short waits go on.
inline constexpr errc wait_ended = static_cast<errc>(PEERBUS_INTERRUPTED);

/// Keeps the exception that is being handled as the error of this thread.
/// Returns: its code.
peerbus_code fail_by_exception() noexcept;

/// An object that the program has destroyed.
struct destructible {
  destructible* next = nullptr;                        ///< that has been destroyed as well
  bool (*end)(destructible* self) noexcept = nullptr;  ///< frees it, unless a call uses it
};

/// The objects that a call of this thread uses. It frees them when the call ends.
///
/// An object serves one call at a time. A call that meets another thread's call is refused, because
/// the threads would corrupt it silently.
class claims {
 public:
  claims() noexcept : first_{held().count} {}
  ~claims() {
    list& of_thread = held();
    while (of_thread.count > first_)
      of_thread.flags[--of_thread.count]->clear(std::memory_order_release);
    // order: relaxed; what it misses, the end of the next call finds.
    if (destroyed.load(std::memory_order_relaxed) != nullptr) free_destroyed();
  }
  claims(const claims&) = delete;
  claims& operator=(const claims&) = delete;
  claims(claims&&) = delete;
  claims& operator=(claims&&) = delete;

  /// Takes an object for the present call of this thread, which is within `guarded`. Returns false
  /// if a call has it.
  static bool take(std::atomic_flag& in_call) noexcept {
    list& of_thread = held();
    if (of_thread.count == of_thread.flags.size()) return true;
    if (in_call.test_and_set(std::memory_order_acquire)) return false;
    of_thread.flags[of_thread.count++] = &in_call;
    return true;
  }

  /// Frees an object that the program destroys: now, or if a call uses it, of another thread or
  /// around an interrupt function, at the end of that call or of the next one.
  static void free(destructible* object) noexcept {
    if (!object->end(object)) keep(object);
  }

  /// Frees the objects that the program has destroyed and no call uses any more, and waits for
  /// other threads that are doing so at the end of their calls.
  static void settle() noexcept;

 private:
  /// The objects that the calls of a thread use. A call may be made within another.
  struct list {
    std::array<std::atomic_flag*, 16> flags{};
    std::size_t count = 0;
  };
  static list& held() noexcept;
  static void keep(destructible* object) noexcept;
  static void free_destroyed() noexcept;

  /// Objects that calls used when the program destroyed them, the latest first.
  static std::atomic<destructible*> destroyed;
  static std::atomic<std::uint32_t> freeing;  ///< threads within `free_destroyed`

  std::size_t first_;  ///< objects of the calls around this one
};

/// Calls `body`. No exception leaves it.
/// Returns: PEERBUS_OK, or the code of what `body` threw.
template <class Body>
peerbus_code guarded(Body&& body) noexcept {
  own_waits() = {};
  const claims taken;
  try {
    body();
    return PEERBUS_OK;
  } catch (...) {
    return fail_by_exception();
  }
}

/// Requires that a condition holds. Throws: `error` invalid_argument with `text`.
inline void require(bool holds, std::string_view text) {
  if (!holds) throw error{errc::invalid_argument, text};
}

/// Returns the structure that `given` points to, with members that the caller's version did not
/// have as zeros. `least` is its size in the first version.
/// Throws: `error` invalid_argument if `given` is null or its `struct_bytes` is too small,
/// unsupported if it sets members that this version does not have.
template <class Struct>
Struct read_struct(const Struct* given, std::string_view name, std::size_t least = sizeof(Struct)) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  if (given == nullptr) throw error{errc::invalid_argument, concat(name, " is NULL")};
  const std::size_t bytes = given->struct_bytes;
  if (bytes < least)
    throw error{errc::invalid_argument,
                concat(name, ".struct_bytes is ", bytes, ", expected sizeof: ", least, " or more")};
  const auto* const all = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(Struct); i < bytes; ++i)
    if (all[i] != 0)
      throw error{errc::unsupported, concat(name, " sets a member at byte ", i,
                                            " that this version of libpeerbus does not have")};
  Struct values{};
  std::memcpy(&values, given, bytes < sizeof(Struct) ? bytes : sizeof(Struct));
  return values;
}

/// Returns the structure that `given` points to, as `read_struct` does, or zeros if it is null.
template <class Struct>
Struct read_options(const Struct* given, std::string_view name,
                    std::size_t least = sizeof(Struct)) {
  return given == nullptr ? Struct{} : read_struct(given, name, least);
}

/// Requires that `result` can be written by `write_struct`.
/// Throws: as `read_struct`.
template <class Struct>
void require_struct(const Struct* result, std::string_view name,
                    std::size_t least = sizeof(Struct)) {
  if (result == nullptr) throw error{errc::invalid_argument, concat(name, " is NULL")};
  if (result->struct_bytes < least)
    throw error{errc::invalid_argument, concat(name, ".struct_bytes is ", result->struct_bytes,
                                               ", expected sizeof: ", least, " or more")};
}

/// Copies as much of `values` as the caller's version of the structure has.
template <class Struct>
void write_struct(Struct* result, Struct values) noexcept {
  values.struct_bytes = result->struct_bytes;
  std::memcpy(static_cast<void*>(result), &values,
              values.struct_bytes < sizeof(Struct) ? values.struct_bytes : sizeof(Struct));
}

}  // namespace peerbus::c_library

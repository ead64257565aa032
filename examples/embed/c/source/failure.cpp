// SPDX-License-Identifier: MIT
#include "failure.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include <peerbus/core/process_memory.hpp>
#include <peerbus/version.hpp>

namespace peerbus::c_library {

namespace {

// A plain array, so that keeping an error cannot fail, and a thread needs no destructor.
thread_local std::array<char, 2048> latest_text;

}  // namespace

claims::list& claims::held() noexcept {
  static thread_local list of_thread;
  return of_thread;
}

constinit std::atomic<destructible*> claims::destroyed{nullptr};
constinit std::atomic<std::uint32_t> claims::freeing{0};

void claims::keep(destructible* object) noexcept {
  // order: release; pairs with the acquire in `free_destroyed`.
  object->next = destroyed.load(std::memory_order_relaxed);
  while (!destroyed.compare_exchange_weak(object->next, object, std::memory_order_release,
                                          std::memory_order_relaxed)) {
  }
}

void claims::free_destroyed() noexcept {
  // order: seq_cst, as the exchange, so that `settle` sees this thread or finds the objects.
  freeing.fetch_add(1);
  // It also acquires what the release in `keep` has published.
  destructible* object = destroyed.exchange(nullptr);
  while (object != nullptr) free(std::exchange(object, object->next));
  // order: release; pairs with the acquire in `settle`, which then finds what was kept again.
  freeing.fetch_sub(1, std::memory_order_release);
}

void claims::settle() noexcept {
  do {
    while (freeing.load() != 0) std::this_thread::yield();
    free_destroyed();  // A thread may have kept again what a call used when it looked.
  } while (freeing.load() != 0);
}

waits& own_waits() noexcept {
  static thread_local waits of_thread;
  return of_thread;
}

peerbus_code fail(peerbus_code code, std::string_view text, std::string_view text_end) noexcept {
  std::size_t length = 0;
  for (const std::string_view part : {text, text_end}) {
    const std::size_t added = std::min(part.size(), latest_text.size() - 1 - length);
    std::copy_n(part.begin(), added, latest_text.begin() + length);
    length += added;
  }
  latest_text[length] = '\0';
  return code;
}

peerbus_code fail_by_exception() noexcept {
  try {
    throw;
  } catch (const error& problem) {
    if (own_waits().are_of_parent)
      return fail(PEERBUS_INVALID_ARGUMENT,
                  "peerbus: the call began before this process became a child by fork; expected "
                  "the child to make its own objects [invalid argument]");
    if (!own_waits().are_ended) return fail(code_of(problem.code()), problem.what());
    // C++ has no text for the code.
    std::string_view text = problem.what();
    if (problem.code() == wait_ended) text.remove_suffix(to_string(wait_ended).size() + 2);
    return fail(PEERBUS_INTERRUPTED, text,
                problem.code() == wait_ended ? "[interrupted]" : std::string_view{});
  } catch (const std::bad_alloc&) {
    return fail(PEERBUS_OUT_OF_MEMORY, "peerbus: no memory [out of memory]");
  } catch (const std::exception& problem) {
    return fail(PEERBUS_INTERNAL, problem.what());
  } catch (...) {
    return fail(PEERBUS_INTERNAL, "an exception of an unknown type");
  }
}

}  // namespace peerbus::c_library

using peerbus::errc;

static_assert(PEERBUS_C_MAJOR == PEERBUS_VERSION_MAJOR &&
              PEERBUS_C_MINOR == PEERBUS_VERSION_MINOR && PEERBUS_C_PATCH == PEERBUS_VERSION_PATCH);
static_assert(static_cast<peerbus_code>(errc::ok) == PEERBUS_OK &&
              static_cast<peerbus_code>(errc::invalid_argument) == PEERBUS_INVALID_ARGUMENT &&
              static_cast<peerbus_code>(errc::out_of_range) == PEERBUS_OUT_OF_RANGE &&
              static_cast<peerbus_code>(errc::mismatch) == PEERBUS_MISMATCH &&
              static_cast<peerbus_code>(errc::out_of_memory) == PEERBUS_OUT_OF_MEMORY &&
              static_cast<peerbus_code>(errc::timed_out) == PEERBUS_TIMED_OUT &&
              static_cast<peerbus_code>(errc::peer_dead) == PEERBUS_PEER_DEAD &&
              static_cast<peerbus_code>(errc::poisoned) == PEERBUS_POISONED &&
              static_cast<peerbus_code>(errc::refused) == PEERBUS_REFUSED &&
              static_cast<peerbus_code>(errc::unsupported) == PEERBUS_UNSUPPORTED &&
              static_cast<peerbus_code>(errc::system) == PEERBUS_SYSTEM &&
              static_cast<peerbus_code>(errc::unreachable) == PEERBUS_UNREACHABLE &&
              static_cast<peerbus_code>(errc::view_changed) == PEERBUS_VIEW_CHANGED);

uint32_t peerbus_version() {
  return (std::uint32_t{PEERBUS_C_MAJOR} << 16U) | (std::uint32_t{PEERBUS_C_MINOR} << 8U) |
         std::uint32_t{PEERBUS_C_PATCH};
}

int32_t peerbus_permit_private_reads() { return peerbus::permit_private_reads() ? 1 : 0; }

const char* peerbus_code_text(peerbus_code code) {
  if (code == PEERBUS_INTERRUPTED) return "interrupted";
  if (code == PEERBUS_INTERNAL) return "internal error";
  return peerbus::to_string(static_cast<errc>(code)).data();  // A string literal.
}

const char* peerbus_last_error() { return peerbus::c_library::latest_text.data(); }

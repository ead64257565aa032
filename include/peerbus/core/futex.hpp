// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::detail {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 &&
              std::atomic<std::uint32_t>::is_always_lock_free);

/// Sleeps while `word` holds `expected`, until a wake-up or until the deadline. Callers must check
/// their condition again, because the call may return at any time without a reason. It does not use
/// FUTEX_PRIVATE, because processes may share the memory of the word.
/// Cost: one system call.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, deadline until) noexcept;

/// Wakes every thread that sleeps on `word`, in all processes.
/// Cost: one system call.
void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept;

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/futex.ipp>  // IWYU pragma: keep
#endif

// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::detail {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 &&
              std::atomic<std::uint32_t>::is_always_lock_free);

/// Sleeps while `word` holds `expected`, until woken or `until`. May return at any time without a
/// reason: callers look again. Not FUTEX_PRIVATE: the word may lie in memory shared by processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, deadline until) noexcept;

/// Wakes everybody who sleeps on `word`, in whichever process.
void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept;

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/impl/futex.hpp>  // IWYU pragma: keep
#endif

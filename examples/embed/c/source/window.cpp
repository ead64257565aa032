// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>

#include "objects.hpp"

namespace peerbus::c_library {

namespace {

/// Returns `code`. If it is a failure, keeps it with what the call was about as the error of this
/// thread.
peerbus_code finish(errc code, std::string_view call, const peerbus_window& window,
                    std::initializer_list<std::pair<std::string_view, std::uint64_t>> arguments) {
  if (code == errc::ok) return PEERBUS_OK;
  return guarded([&] {
    std::string text{call};
    for (const auto& [name, value] : arguments) text += concat(", ", name, " ", value);
    const window_shape shape = window.memory.shape();
    text += concat("; the window has ", window.members->comm.size(), " parts of ", shape.bytes,
                   " bytes and ", shape.signals, " signals");
    throw error{code, text};
  });
}

/// Calls `body` for a usable window and a rank that fits into a `rank_id`, without an exception on
/// the way. Returns the code of `body`, or why it was not called.
template <class Body>
peerbus_code with_window(
    peerbus_window* window, std::string_view call, std::uint64_t peer,
    std::initializer_list<std::pair<std::string_view, std::uint64_t>> arguments,
    Body&& body) noexcept {
  if (!problem_of(window).empty()) return guarded([&] { shared(window, "window"); });
  own_waits() = {};
  const bool exists = peer < window->members->comm.size();
  const errc code = exists ? body(*window, rank_id{peer}) : errc::out_of_range;
  return finish(code, call, *window, arguments);
}

/// Returns whether a call that ended with `code` has to take the stage: its place exists, and the
/// transport does not take the program's own memory.
bool needs_stage(const peerbus_window& window, errc code) noexcept {
  return code == errc::invalid_argument && window.staged_by != nullptr;
}

errc put(peerbus_window& to, rank_id peer, std::uint64_t offset,
         std::span<const std::byte> source) noexcept {
  const errc code = to.memory.put(peer, offset, source);
  return needs_stage(to, code) ? to.staged_by->put(to.memory, peer, offset, source) : code;
}

bool is_null(const void* memory, std::uint64_t bytes) noexcept {
  return memory == nullptr && bytes != 0;
}

peerbus_code fail_null(std::string_view what) noexcept {
  return guarded([&] { require(false, what); });
}

signal_id id_of(std::uint64_t id) noexcept {
  return static_cast<signal_id>(std::min<std::uint64_t>(id, UINT32_MAX));
}

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_window_create(peerbus_comm* comm, uint64_t bytes, uint64_t signals,
                                   int64_t timeout_ns, peerbus_window** window) {
  return guarded([&] {
    require_result(window, "window");
    const auto& members = usable(comm, "communicator").members;
    const auto until = deadline_of(members->comm, timeout_ns);
    auto made = members->comm.make_window(bytes, signals, until);
    *window = std::make_unique<peerbus_window>(members, std::move(made), members->make_stage(until))
                  .release();
  });
}

void peerbus_window_destroy(peerbus_window** window) { destroy(window); }

uint64_t peerbus_window_bytes(const peerbus_window* window) {
  return window == nullptr ? 0 : window->memory.shape().bytes;
}

void* peerbus_window_part(const peerbus_window* window, uint64_t rank) {
  if (window == nullptr || rank >= window->members->comm.size()) return nullptr;
  return window->memory.find_peer(peerbus::rank_id{rank}).data();
}

peerbus_code peerbus_window_put(peerbus_window* window, uint64_t peer, uint64_t offset,
                                const void* source, uint64_t bytes) {
  if (is_null(source, bytes)) return fail_null("put: source is NULL");
  const std::span data{static_cast<const std::byte*>(source), bytes};
  return with_window(window, "put", peer, {{"peer", peer}, {"offset", offset}, {"bytes", bytes}},
                     [&](auto& to, auto rank) { return put(to, rank, offset, data); });
}

peerbus_code peerbus_window_signal(peerbus_window* window, uint64_t peer, uint64_t id,
                                   uint64_t value) {
  return with_window(window, "signal", peer, {{"peer", peer}, {"signal", id}},
                     [&](auto& to, auto rank) { return to.memory.signal(rank, id_of(id), value); });
}

peerbus_code peerbus_window_put_signal(peerbus_window* window, uint64_t peer, uint64_t offset,
                                       const void* source, uint64_t bytes, uint64_t id,
                                       uint64_t value) {
  if (is_null(source, bytes)) return fail_null("put_signal: source is NULL");
  const std::span data{static_cast<const std::byte*>(source), bytes};
  return with_window(
      window, "put_signal", peer,
      {{"peer", peer}, {"offset", offset}, {"bytes", bytes}, {"signal", id}},
      [&](auto& to, auto rank) {
        const peerbus::errc code = to.memory.put_signal(rank, offset, data, id_of(id), value);
        if (!needs_stage(to, code)) return code;
        const peerbus::errc written = to.staged_by->put(to.memory, rank, offset, data);
        return written == peerbus::errc::ok ? to.memory.signal(rank, id_of(id), value) : written;
      });
}

peerbus_code peerbus_window_get(peerbus_window* window, uint64_t peer, uint64_t offset,
                                void* target, uint64_t bytes) {
  if (is_null(target, bytes)) return fail_null("get: target is NULL");
  const std::span data{static_cast<std::byte*>(target), bytes};
  return with_window(window, "get", peer, {{"peer", peer}, {"offset", offset}, {"bytes", bytes}},
                     [&](auto& from, auto rank) {
                       const peerbus::errc code = from.memory.get(rank, offset, data);
                       return needs_stage(from, code)
                                  ? from.staged_by->get(from.memory, rank, offset, data)
                                  : code;
                     });
}

peerbus_code peerbus_window_fetch_add(peerbus_window* window, uint64_t peer, uint64_t offset,
                                      uint64_t addend, uint64_t* before) {
  if (before == nullptr) return fail_null("fetch_add: before is NULL");
  return with_window(
      window, "fetch_add", peer, {{"peer", peer}, {"offset", offset}},
      [&](auto& at, auto rank) { return at.memory.fetch_add(rank, offset, addend, *before); });
}

peerbus_code peerbus_window_flush(peerbus_window* window, uint64_t peer) {
  return with_window(window, "flush", peer, {{"peer", peer}},
                     [](auto& to, auto rank) { return to.memory.flush(rank); });
}

peerbus_code peerbus_window_wait(peerbus_window* window, uint64_t id, uint64_t value,
                                 uint64_t awaited, int64_t timeout_ns) {
  const bool any = awaited == PEERBUS_ANY_RANK;
  return guarded([&] {
    // An interrupt function or another thread may destroy the window meanwhile.
    const auto members = shared(window, "window").members;
    const auto kept = window->kept;
    auto& memory = *kept;
    const auto& comm = members->comm;
    peerbus::check(any || awaited < comm.size() ? peerbus::errc::ok : peerbus::errc::out_of_range,
                   "wait: there is no rank `awaited`");
    const auto until = deadline_of(comm, timeout_ns);
    const std::optional<peerbus::rank_id> rank =
        any ? std::nullopt : std::optional{peerbus::rank_id{awaited}};
    // `await` reads the signal for its text, so that one that does not exist must not reach it.
    peerbus::check(id < memory.shape().signals ? peerbus::errc::ok : peerbus::errc::out_of_range,
                   "wait: there is no such signal");
    memory.await(id_of(id), value, until, rank);
  });
}

uint64_t peerbus_window_signal_value(const peerbus_window* window, uint64_t id) {
  if (window == nullptr || id >= window->memory.shape().signals) return 0;
  return window->memory.value(id_of(id));
}

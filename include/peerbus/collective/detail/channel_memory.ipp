// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include <peerbus/collective/detail/channel_memory.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/signal.hpp>

namespace peerbus::collective::detail {

/// Returns the signal `kind` of `raiser` at each of its peers.
constexpr signal_id signal_of(rank_id raiser, channel_signal kind) noexcept {
  return static_cast<signal_id>(3 * raiser.index() + static_cast<std::size_t>(kind));
}

PEERBUS_INLINE channel_memory::channel_memory(std::unique_ptr<any_window> memory,
                                              const channel_map& map)
    : memory_{std::move(memory)},
      map_{map},
      own_{memory_->local()},
      out_(group().size()),
      in_(group().size()) {}

PEERBUS_INLINE errc channel_memory::raise(rank_id peer, channel_signal kind,
                                          std::uint64_t value) noexcept {
  return memory_->signal(peer, signal_of(group().rank(), kind), value);
}

PEERBUS_INLINE errc channel_memory::await(rank_id peer, channel_signal kind, std::uint64_t value,
                                          deadline until) noexcept {
  return memory_->wait_at(group().rank(), signal_of(peer, kind), value, until, peer);
}

PEERBUS_INLINE std::uint64_t channel_memory::value(rank_id peer,
                                                   channel_signal kind) const noexcept {
  return memory_->value_at(group().rank(), signal_of(peer, kind));
}

PEERBUS_INLINE std::uint64_t channel_memory::latest() const noexcept {
  std::uint64_t number = 0;
  for (const auto* const ends : {&out_, &in_})
    for (const channel_end& end : *ends)
      number = std::max({number, end.messages + 1, end.slices});  // It may be expected already.
  return number;
}

PEERBUS_INLINE errc channel_memory::go_on(std::uint64_t number) noexcept {
  for (const rank_id peer : group().peers()) {
    out(peer) = in(peer) = {.messages = number, .slices = number};
    for (const auto kind : {channel_signal::sent, channel_signal::taken, channel_signal::expected})
      if (const errc code = raise(peer, kind, number); code != errc::ok) return code;
  }
  return errc::ok;
}

PEERBUS_INLINE errc channel_memory::write(rank_id peer, std::size_t offset, std::size_t staging,
                                          const message_line* line,
                                          std::span<const std::byte> payload) noexcept {
  std::byte* const near = memory_->part(peer);
  std::byte* const target = near != nullptr ? near + offset : own_ + staging;
  if (line != nullptr) std::memcpy(target, line, sizeof *line);
  peerbus::detail::copy_bytes(target + channel_map::header_bytes, payload.data(), payload.size());
  if (near != nullptr) return errc::ok;
  const std::size_t skipped = line != nullptr ? 0 : channel_map::header_bytes;
  return memory_->put(peer, offset + skipped,
                      {target + skipped, channel_map::header_bytes - skipped + payload.size()});
}

PEERBUS_INLINE void channel_memory::store_word(rank_id peer, std::size_t offset,
                                               std::uint64_t value) noexcept {
  std::byte* const place = memory_->part(peer) + offset + channel_map::word_at;
  std::atomic_ref{*peerbus::detail::placed<std::uint64_t>(place)}.store(value,
                                                                        std::memory_order_relaxed);
}

PEERBUS_INLINE std::uint64_t channel_memory::word(std::size_t offset) const noexcept {
  std::byte* const place = own_ + offset + channel_map::word_at;
  return std::atomic_ref{*peerbus::detail::placed<std::uint64_t>(place)}.load(
      std::memory_order_relaxed);
}

PEERBUS_INLINE std::unique_ptr<channel_memory> make_channel_memory(rank_group& group,
                                                                   window_source make_window,
                                                                   const channel_map& map,
                                                                   deadline until) {
  return group.collective_on_all_ranks("the tables of channels", until, [&] {
    return std::make_unique<channel_memory>(
        make_window({.bytes = map.window_bytes(), .signals = map.signals()}, until), map);
  });
}

}  // namespace peerbus::collective::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::detail::registered {

/// The part of the data path that uses no device: checks arguments, and serves puts and signals of
/// this rank to itself.
template <class Network>
class own_part {
 public:
  using part_type = typename Network::window_part;
  using local_key = typename part_type::local_key;

  own_part(Network& net, const part_type& part) noexcept : net_{&net}, part_{&part} {}

  /// Returns whether `peer` exists and its part has `length` bytes at `offset`.
  [[nodiscard]] bool holds(rank_id peer, std::size_t offset, std::size_t length) const noexcept {
    const std::size_t bytes = part_->shape.bytes;
    return peer.index() < net_->size() && offset <= bytes && length <= bytes - offset;
  }
  /// Returns whether `peer` and signal `id` exist.
  [[nodiscard]] bool has(rank_id peer, signal_id id) const noexcept {
    return peer.index() < net_->size() && index(id) < part_->shape.signals;
  }
  /// Returns the local key of memory in this part, the usual place, or in another window of the
  /// transport. Empty if the memory is in no window.
  [[nodiscard]] std::optional<local_key> key_of(std::span<const std::byte> memory) const noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    if (begin >= part_->address() && begin - part_->address() < part_->shape.bytes &&
        memory.size() <= part_->shape.bytes - (begin - part_->address()))
      return part_->registration.local_key();
    return std::as_const(*net_).key_of(memory);
  }

  /// Returns the number of the window, which is the same on all ranks.
  [[nodiscard]] std::uint32_t number() const noexcept { return part_->number; }
  /// Returns the remote place of byte `offset` in the part of `peer`.
  [[nodiscard]] auto place(rank_id peer, std::size_t offset) const noexcept {
    return part_->place(peer, offset);
  }

  /// Returns ok if all of `pieces` can be put to `peer`, out_of_range if a piece does not fit into
  /// its part, or invalid_argument if a source lies in no window. Must be called before any piece
  /// is written.
  [[nodiscard]] errc check_pieces(rank_id peer, std::span<const put_piece> pieces) const noexcept {
    for (const auto& [offset, source] : pieces) {
      if (!holds(peer, offset, source.size())) return errc::out_of_range;
      if (!source.empty() && !key_of(source)) return errc::invalid_argument;
    }
    return errc::ok;
  }
  /// Copies `pieces`, which `check_pieces` has accepted, to this rank's part.
  void copy(std::span<const put_piece> pieces) const noexcept {
    for (const auto& [offset, source] : pieces)
      if (!source.empty())
        std::memmove(part_->memory.data.data() + offset, source.data(), source.size());
  }
  /// Raises signal `id` of this rank to at least `value`. Returns ok.
  [[nodiscard]] errc raise(signal_id id, std::uint64_t value) const noexcept {
    // Arrivals may raise it too. A thread that sleeps on the network finds out when it next wakes.
    net_->exclude_arrivals([&]() noexcept { part_->signal(id).raise_at_least(value); });
    return errc::ok;
  }

 private:
  Network* net_;
  const part_type* part_;
};

}  // namespace peerbus::detail::registered

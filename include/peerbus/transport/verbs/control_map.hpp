// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <peerbus/core/align.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/result_entries.hpp>
#include <peerbus/transport/verbs/send_queue.hpp>

namespace peerbus::detail::rdma {

/// The number of receive requests on each queue pair. This is also the number of one peer's signals
/// that the device holds while this rank does not poll. The peer's device retries further signals
/// until there is room.
inline constexpr std::uint32_t receive_depth = 31;

/// The layout of the registered memory of a rank that is in no window, in bytes from its start.
/// First comes a word for each rank, to which the `quiet` of that rank adds. Then, per rank, come
/// receive buffers and scratch memory: notices in flight, results of atomics, and a place that no
/// call reads.
struct control_map {
  static constexpr std::size_t entry_bytes = sizeof(rdma::notice);  ///< size of the longest entry

  std::size_t ranks;
  std::uint32_t queue_depth;

  [[nodiscard]] constexpr std::size_t bytes() const noexcept {
    return receive_buffer(rank_id{ranks}, 0);
  }
  [[nodiscard]] constexpr std::size_t bytes_per_peer() const noexcept {
    return sizeof(std::uint64_t) + entries_per_peer() * entry_bytes;
  }

  [[nodiscard]] constexpr std::size_t quiet_word(rank_id source) const noexcept {
    return source.index() * sizeof(std::uint64_t);
  }
  [[nodiscard]] constexpr std::size_t receive_buffer(rank_id peer,
                                                     std::size_t slot) const noexcept {
    return align_up(ranks * sizeof(std::uint64_t), cache_line_bytes) +
           (peer.index() * entries_per_peer() + slot) * entry_bytes;
  }
  [[nodiscard]] constexpr std::size_t scratch(rank_id peer) const noexcept {
    return receive_buffer(peer, receive_depth);
  }

  // From the start of a peer's scratch memory. A notice goes where its request stands among those
  // of the first queue.
  [[nodiscard]] static constexpr std::size_t notice(std::uint32_t place) noexcept {
    return place * entry_bytes;
  }
  [[nodiscard]] constexpr std::size_t result(std::size_t entry) const noexcept {
    return (send_queue::places(queue_depth) + entry) * entry_bytes;
  }
  [[nodiscard]] constexpr std::size_t unread() const noexcept {
    return result(result_entries::count);
  }

 private:
  [[nodiscard]] constexpr std::size_t entries_per_peer() const noexcept {
    return receive_depth + send_queue::places(queue_depth) + result_entries::count + 1;
  }
};

}  // namespace peerbus::detail::rdma

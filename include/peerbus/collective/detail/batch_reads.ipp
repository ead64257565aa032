// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>

#include <peerbus/collective/channel_map.hpp>
#include <peerbus/collective/detail/batch.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/process_memory.hpp>

// The messages of a batch that their receivers read in private memory, and those of them that they
// cannot read.
namespace peerbus::collective::detail {

PEERBUS_INLINE bool batch::may_read(rank_id peer, const channel_end& end) const noexcept {
  // The sender of a shorter message does not wait until it is received, only until it is expected.
  const std::size_t bytes = messages_[end.transfer].bytes().size();
  return memory_.is_near(peer) && bytes >= channels_.options_.private_bytes &&
         bytes > channel_map::generations * memory_.map().slot_bytes;
}

PEERBUS_INLINE void batch::read_rest(rank_id peer, channel_end& end, std::size_t slot) {
  const std::span<std::byte> left = messages_[end.transfer].output().subspan(end.done);
  const std::uint64_t address = memory_.word(slot);
  const errc code =
      address == 0 ? errc::peer_dead : memory_.get_private(peer, address + end.done, left);
  std::atomic_thread_fence(std::memory_order_acquire);  // order: see `take_back`.
  ++end.slices;
  end.is_read = false;
  if (code == errc::ok && memory_.word(slot) != 0) {
    end.done += left.size();
    return;
  }
  // Memory that cannot be read may be that of this message alone, as that of some devices.
  end.is_unreadable = true;
  end.unreadable += code == errc::out_of_range ? 1 : most_unreadable;
  memory_.store_word(peer, memory_.map().line_at(channels_.rank(), end.messages), end.messages + 1);
}

PEERBUS_ERROR_PATH void batch::refuse_unmapped(rank_id peer, channel_end& end) {
  if (peerbus::detail::is_mapped(messages_[end.transfer].input().subspan(end.done))) return;
  // The slot is free, because the receiver has taken all slices, and is its next one to look at.
  memory_.store_word(peer, memory_.map().slot_at(channels_.rank(), end.slices),
                     channel_map::unmapped(end.messages));
  leave_unmoved(end, {channels_.rank(), peer, end.messages, header_of(end), header_of(end),
                      errc::invalid_argument});
  require(memory_.raise(peer, channel_signal::sent, ++end.slices));
}

PEERBUS_ERROR_PATH void batch::note_unmapped(rank_id peer, channel_end& end) noexcept {
  leave_unmoved(
      end, {peer, channels_.rank(), end.messages, header_of(end), header_of(end), errc::refused});
  --end.unreadable;  // Memory that is not there is no reason to read no other.
}

PEERBUS_ERROR_PATH void batch::take_back() noexcept {
  for (const rank_id peer : memory_.group().peers()) {
    const channel_end& end = memory_.out(peer);
    if (has_message(end) && end.has_begun && end.done < messages_[end.transfer].bytes().size() &&
        (!end.is_matched || end.is_read) && may_read(peer, end))
      memory_.store_word(peer, memory_.map().slot_at(channels_.rank(), end.slices - 1), 0);
  }
  // order: seq_cst, before whatever the caller does to its messages next; pairs with the fence in
  // `read_rest`, which follows the read.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace peerbus::collective::detail

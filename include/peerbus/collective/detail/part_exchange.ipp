// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>
#include <string>

#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/part_exchange.hpp>
#include <peerbus/collective/detail/pattern.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE part_exchange::part_exchange(call_rounds& moves, const request& given,
                                            page_layout pages, std::size_t step) noexcept
    : moves_{moves},
      given_{given},
      sends_{moves.sends()},
      receives_{moves.receives()},
      pages_{pages},
      step_{step},
      step_of_pages_{moves.slice_bytes(moves.ranks())} {}

PEERBUS_INLINE void part_exchange::find_largest() noexcept {
  // The own part travels in no slices. A rank that is alone reduces it in slices all the same.
  if (moves_.peers().empty()) largest_ = sends_[moves_.self().index()].bytes;
  for (const rank_id peer : moves_.peers())
    largest_ = std::max(largest_, sends_[peer.index()].bytes);
}

PEERBUS_INLINE void part_exchange::announce() {
  for (const rank_id peer : moves_.peers()) {
    const byte_range& part = sends_[peer.index()];
    const announcement announced{part.bytes, part.offset, largest_};
    std::memcpy(moves_.page() + peer.index() * sizeof announced, &announced, sizeof announced);
  }
  moves_.put([](rank_id peer) noexcept {
    return byte_range{peer.index() * sizeof(announcement), sizeof(announcement)};
  });
}

PEERBUS_INLINE bool part_exchange::compare() {
  find_largest();
  if (!moves_.first_round([this] { announce(); })) return false;
  const rank_id self = moves_.self();
  std::string objection;
  for (const rank_id sender : all_ranks{moves_.ranks()}) {
    announcement announced{sends_[sender.index()].bytes, 0, 0};
    if (sender != self)
      std::memcpy(&announced, moves_.payload(sender, self.index() * sizeof announced),
                  sizeof announced);
    largest_ = std::max<std::size_t>(largest_, announced.largest);
    if (moves_.reads_operands())
      moves_.sources()[sender.index()] = moves_.operand(sender) + announced.offset;
    const std::size_t expected = receives_[sender.index()].bytes;
    if (announced.bytes != expected && objection.empty())
      objection = peerbus::detail::concat(sender, " sends ", announced.bytes / given_.element.bytes,
                                          " elements to ", self, ", which expects ",
                                          expected / given_.element.bytes);
  }
  moves_.choose_way(largest_);
  moves_.confirm(errc::mismatch, objection);
  return true;
}

PEERBUS_INLINE void part_exchange::offer(std::size_t done) noexcept {
  for (const rank_id peer : moves_.peers()) {
    const std::size_t bytes = rest_of(sends_, peer, done);
    if (bytes == 0) continue;
    moves_.offer(place_of(peer), sends_[peer.index()].offset + done, bytes);
    if (pages_ == page_layout::shared) return;
  }
}

PEERBUS_INLINE void part_exchange::copy_all() {
  in_slices([&](std::size_t done) {
    for (const rank_id peer : moves_.peers())
      if (const std::size_t bytes = bytes_from(peer, done); bytes != 0)  // Else it may be null.
        moves_.read(given_.output.data() + receives_[peer.index()].offset + done, peer,
                    from(peer, done), bytes);
  });
  const byte_range& own = receives_[moves_.self().index()];
  if (own.bytes == 0) return;
  moves_.copy(given_.output.data() + own.offset,
              given_.input.data() + sends_[moves_.self().index()].offset, own.bytes);
}

PEERBUS_INLINE void copy_shared_parts(call_rounds& moves, const request& given, const reducer&) {
  part_exchange parts{moves, given, page_layout::shared, moves.slice_bytes(1)};
  if (parts.compare()) parts.copy_all();
}

PEERBUS_INLINE void copy_own_parts(call_rounds& moves, const request& given, const reducer&) {
  part_exchange parts{moves, given, page_layout::parts, moves.slice_bytes(moves.ranks())};
  if (parts.compare()) parts.copy_all();
}

PEERBUS_INLINE void reduce_parts(call_rounds& moves, const request& given, const reducer& reduce) {
  const std::size_t step = whole_elements(moves.slice_bytes(moves.ranks()), given.element);
  part_exchange scatter{moves, given, page_layout::parts, step};
  if (!scatter.compare()) return;
  const rank_id self = moves.self();
  const std::size_t own_at = moves.sends()[self.index()].offset;
  const std::span<const std::byte*> sources = moves.sources();
  scatter.in_slices([&](std::size_t done) {
    const std::size_t bytes = scatter.bytes_from(self, done);
    if (bytes == 0) return;  // The output may be null.
    for (const rank_id peer : moves.peers()) sources[peer.index()] = scatter.from(peer, done);
    sources[self.index()] = given.input.data() + own_at + done;
    reduce_by_lanes(moves, given, reduce, given.output.data() + done, sources, bytes);
  });
}

}  // namespace peerbus::collective::detail

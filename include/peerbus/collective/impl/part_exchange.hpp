// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/part_exchange.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE part_exchange::part_exchange(team& on, const call_header& header,
                                            const operands& given, const call_options& options,
                                            std::string objection, page_layout pages,
                                            std::size_t step)
    : moves_{on, header, given, options, std::move(objection)},
      given_{given},
      sends_{call::sends(on)},
      receives_{call::receives(on)},
      pages_{pages},
      step_{step},
      step_of_pages_{moves_.slice_bytes(on.size())} {
  moves_.require_accepted();
  announce();
  compare();
}

PEERBUS_INLINE void part_exchange::announce() {
  // The own part travels in no slices. A rank that is alone reduces it in slices all the same.
  if (moves_.peers().empty()) largest_ = sends_[moves_.self().index()].bytes;
  for (const rank_id peer : moves_.peers())
    largest_ = std::max(largest_, sends_[peer.index()].bytes);
  for (const rank_id peer : moves_.peers()) {
    const byte_range& part = sends_[peer.index()];
    const announcement told{part.bytes, part.offset, largest_};
    std::memcpy(moves_.page() + peer.index() * sizeof told, &told, sizeof told);
  }
  moves_.meet([](rank_id peer) noexcept {
    return byte_range{peer.index() * sizeof(announcement), sizeof(announcement)};
  });
}

PEERBUS_INLINE void part_exchange::compare() {
  const rank_id self = moves_.self();
  std::string objection;
  for (const rank_id sender : all_ranks{moves_.ranks()}) {
    announcement told{sends_[sender.index()].bytes, 0, 0};
    if (sender != self)
      std::memcpy(&told, moves_.payload(sender, self.index() * sizeof told), sizeof told);
    largest_ = std::max<std::size_t>(largest_, told.largest);
    if (moves_.is_in_window())
      moves_.sources()[sender.index()] = moves_.operand(sender) + told.offset;
    const std::size_t expected = receives_[sender.index()].bytes;
    if (told.bytes != expected && objection.empty())
      objection = peerbus::detail::concat(sender, " sends ", told.bytes / given_.element.bytes,
                                          " elements to ", self, ", which expects ",
                                          expected / given_.element.bytes);
  }
  moves_.confirm(objection);
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
        copy_bytes(given_.output.data() + receives_[peer.index()].offset + done, from(peer, done),
                   bytes);
  });
  const byte_range& own = receives_[moves_.self().index()];
  if (own.bytes == 0) return;
  copy_bytes(given_.output.data() + own.offset,
             given_.input.data() + sends_[moves_.self().index()].offset, own.bytes);
}

}  // namespace peerbus::collective::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstring>

#include <peerbus/core/text.hpp>
#include <peerbus/moe/detail/two_levels.hpp>

namespace peerbus::moe::detail {

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
std::span<const std::byte> two_levels<Transport, Codec, Layout>::notes_of(
    const batch_state& state) {
  if (note_bytes_ == 0) return {};
  bool any = false;
  std::ranges::fill(notes_, std::byte{0});
  for (const rank_id source : far_->comm.ranks()) {
    const auto note = far_->rows.note({state.number, &far_->rows}, source);
    if (note.empty()) continue;
    any = true;
    const std::uint64_t bytes = note.size();
    std::byte* const place = notes_.data() + source.index() * handed_note_bytes_;
    std::memcpy(place, &bytes, sizeof bytes);
    std::memcpy(place + sizeof bytes, note.data(), note.size());
  }
  return any ? std::span<const std::byte>{notes_} : std::span<const std::byte>{};
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
auto two_levels<Transport, Codec, Layout>::received_state(std::string_view doing,
                                                          moe::ticket ticket) -> batch_state& {
  batch_state& state = states_.of(ticket.number);
  if ((ticket.exchange != &far_->rows && ticket.exchange != &near_->rows) || ticket.number == 0 ||
      state.number != ticket.number || state.reached != progress::received)
    throw error{errc::invalid_argument,
                peerbus::detail::concat(doing, " was given ticket ", ticket.number,
                                        ", expected that of one of the latest ", states_.size(),
                                        " dispatches, which must be received")};
  return state;
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
std::span<const std::byte> two_levels<Transport, Codec, Layout>::note(moe::ticket ticket,
                                                                      rank_id source) {
  const batch_state& state = received_state("note", ticket);
  const note_place& place = note_places_[source.index()];
  const auto notes = near_->rows.note({state.number, &near_->rows}, place.hands_on);
  if (notes.empty()) return {};
  const auto own = notes.subspan(place.in_column * handed_note_bytes_, handed_note_bytes_);
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, own.data(), sizeof bytes);
  return own.subspan(sizeof bytes, bytes);
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
row_traffic two_levels<Transport, Codec, Layout>::traffic(moe::ticket ticket) {
  const batch_state& state = received_state("traffic", ticket);
  row_traffic found = far_->rows.traffic({state.number, &far_->rows});
  return found += near_->rows.traffic({state.number, &near_->rows});
}

}  // namespace peerbus::moe::detail

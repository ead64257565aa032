// SPDX-License-Identifier: MIT
#include "erased_exchange.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/token_index.hpp>

namespace peerbus::c_library {

static_assert(sizeof(peerbus_origin) == sizeof(moe::wire_origin) &&
              offsetof(peerbus_origin, rank) == offsetof(moe::wire_origin, rank) &&
              offsetof(peerbus_origin, slot) == offsetof(moe::wire_origin, slot));
static_assert(PEERBUS_ATTACHMENTS == moe::max_attachments);

row_places& erased_exchange::received_places(std::uint64_t ticket, std::string_view call) {
  row_places& places = places_.of(ticket);
  if (ticket == 0 || places.ticket != ticket)
    throw error{errc::invalid_argument,
                concat(call, ": ticket ", ticket, " is not of a dispatch among the latest ",
                       places_.size(), " that was received here")};
  return places;
}

moe::set_view erased_exchange::set_in(std::uint64_t ticket, std::byte* part) {
  const auto begin = first_row(ticket) - memory().local().data();  // The same at all ranks.
  const moe::set_view set{map(), part + begin - map().rows, 0};
  require(static_cast<bool>(set), "the rank's memory has no address here");
  return set;
}

moe::set_view erased_exchange::set_of(std::uint64_t ticket) {
  return set_in(ticket, memory().local().data());
}

moe::set_view erased_exchange::home_of(std::uint64_t ticket, const moe::wire_origin& home) {
  const auto part = memory().find_peer(rank_id{home.rank});
  return part.empty() ? moe::set_view{} : set_in(ticket, part.data());
}

void erased_exchange::require_row(std::uint64_t ticket, std::uint64_t row) {
  const row_places& places = received_places(ticket, "row");
  // First rows ascend, and of those that are equal the last has the rows.
  const auto& first_rows = places.first_rows;
  const auto after = std::upper_bound(first_rows.begin(), first_rows.end(), row);
  const auto i = static_cast<std::size_t>(after - first_rows.begin());
  if (i == 0 || row - first_rows[i - 1] >= places.counts[i - 1])
    throw error{errc::invalid_argument, concat("no row ", row, " has arrived")};
}

void* erased_exchange::output(std::uint64_t ticket, std::uint64_t row) {
  require_row(ticket, row);
  const moe::set_view set = set_of(ticket);
  if (!map().outputs_home) return set.output(row);
  const moe::wire_origin& home = *set.origin(row);
  return home_of(ticket, home).home_slot(home.token, home.slot);
}

void* erased_exchange::output_attachment(std::uint64_t ticket, std::uint64_t row) {
  require_row(ticket, row);
  require(map().output_attachment_bytes != 0, "output_attachment of the exchange is 0");
  const moe::set_view set = set_of(ticket);
  const moe::wire_origin& home = *set.origin(row);
  // A row that was handed on goes back by the rank that did so.
  const moe::set_view at_home = map().hands_on ? moe::set_view{} : home_of(ticket, home);
  return at_home ? at_home.returned_attachment(home.token, home.slot) : set.output_attachment(row);
}

row_places& erased_exchange::new_places(std::uint64_t ticket, std::size_t blocks) {
  row_places& places = places_.of(ticket);
  places.ticket = ticket;
  places.rows = 0;
  places.end = 0;
  places.first_rows.resize(blocks * sources());  // Allocates for the first dispatch only.
  places.counts.resize(blocks * sources());
  return places;
}

peerbus_received erased_exchange::describe(std::uint64_t ticket) {
  const row_places& places = received_places(ticket, "dispatch");
  const moe::memory_map& all = map();
  const moe::set_view set = set_of(ticket);
  const auto held = experts().held_by(rank_);
  peerbus_received result{};
  result.ticket = ticket;
  result.rows = places.rows;
  result.end = places.end;
  result.row_capacity = all.row_capacity;
  result.ranks = sources();
  result.blocks = places.counts.size() / sources();
  result.experts = held.size();
  result.expert_ids = held.data();
  result.first_rows = places.first_rows.data();
  result.counts = places.counts.data();
  result.row_data = set.row(0);
  result.row_bytes = all.format.row_bytes;
  result.scale_bytes = all.format.scale_bytes;
  if (all.format.scale_bytes != 0) result.scales = set.scales(0);
  if (!all.outputs_home) result.outputs = set.output(0);
  for (std::size_t a = 0; a < moe::max_attachments; ++a)
    if (all.attachment_bytes[a] != 0) result.attachments[a] = set.attachment(a, 0);
  result.origins = reinterpret_cast<const peerbus_origin*>(set.origin(0));
  if (all.slot_bytes != 0) {
    result.by_rank = 1;
    result.slot_experts = reinterpret_cast<const std::int32_t*>(set.experts(0));
    result.slot_weights = reinterpret_cast<const float*>(set.weights(0));
  }
  return result;
}

}  // namespace peerbus::c_library

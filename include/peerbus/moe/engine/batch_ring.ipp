// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <initializer_list>
#include <utility>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/engine/batch_ring.hpp>

namespace peerbus::moe::detail {

[[noreturn, gnu::cold]] inline void misuse(
    std::initializer_list<peerbus::detail::text_part> parts) {
  throw error{errc::invalid_argument, peerbus::detail::concat(parts)};
}

inline std::vector<batch> make_sets(const exchange_config& config, const block_geometry& geometry,
                                    const std::shared_ptr<const expert_router>& router,
                                    rank_id rank, std::size_t ranks, const row_path_memory& path) {
  std::vector<batch> made;
  made.reserve(config.in_flight);
  for (std::size_t set = 0; set < config.in_flight; ++set)
    made.emplace_back(config, geometry, router, rank, ranks, path);
  return made;
}

PEERBUS_INLINE batch_ring::batch_ring(const exchange_config& config, const block_geometry& geometry,
                                      rank_id rank, const std::vector<std::uint32_t>& distances,
                                      const row_path_memory& path, std::size_t row_bytes)
    : router_{std::make_shared<expert_router>(config, rank, distances.size(), distances)},
      sets_{make_sets(config, geometry, router_, rank, distances.size(), path)},
      keepers_{std::make_unique<row_keepers[]>(sets_.size())},
      buffers_{std::max(row_bytes, config.hidden * sizeof(bf16))} {}

PEERBUS_INLINE void batch_ring::require_free(std::uint64_t number) {
  const batch& found = at(number);
  if (found.reached == stage::counted || found.reached == stage::sent ||
      found.reached == stage::returning)
    misuse({"dispatch ", number, " needs the place of dispatch ", found.number, ", which is ",
            describe(found.reached), "; expected no more than in_flight batches, ", sets_.size(),
            ", on their way: call ",
            found.reached == stage::returning ? "combine_recv of " : "dispatch_recv of ",
            found.number, " first"});
}

PEERBUS_INLINE std::optional<unfinished_batch> batch_ring::unfinished() noexcept {
  std::optional<unfinished_batch> first;
  for (const batch& found : sets_)
    if (!is_over(found.reached) && (!first || found.number < first->number))
      first = {found.number, found.reached};
  return first;
}

PEERBUS_INLINE void batch_ring::forget_all() noexcept {
  for (std::uint64_t number = oldest(); number <= latest_; ++number) at(number).forget();
}

PEERBUS_INLINE batch& batch_ring::of(std::string_view doing, const void* exchange,
                                     moe::ticket ticket, stage least) {
  const std::uint64_t number = ticket.number;
  if (number != 0 && ticket.exchange != exchange)
    misuse({doing, " was given a ticket of another exchange, expected one of its own"});
  batch& found = at(number);
  if (number == 0 || found.number != number)
    misuse({doing, " was given ticket ", number,
            ", expected one that dispatch_send gave, of the latest ", sets_.size()});
  if (found.reached < least)
    misuse({doing, " was given ticket ", number, ", which is ", describe(found.reached),
            ", expected one that is ", describe(least)});
  return found;
}

PEERBUS_INLINE batch& batch_ring::awaiting_rows(const void* exchange, moe::ticket ticket) {
  batch& found = of("dispatch_recv", exchange, ticket);
  if (found.reached != stage::counted && found.reached != stage::sent)
    misuse({"dispatch_recv was given ticket ", ticket.number, ", which is ",
            describe(found.reached), ", expected one that is not received yet"});
  return found;
}

PEERBUS_INLINE batch& batch_ring::behind(std::string_view doing, const void* exchange,
                                         moe::ticket rows, stage expected) {
  if (rows.exchange != exchange)
    misuse({doing, " was given the rows of another exchange, expected those of its own dispatch"});
  const std::uint64_t number = rows.number;
  batch& found = at(number);
  if (found.number != number)
    misuse({doing, " was given the rows of dispatch ", number, ", which dispatch ", found.number,
            " has replaced; expected those of the latest ", sets_.size()});
  if (found.reached != expected)
    misuse({doing, " was given the rows of dispatch ", number, ", which is ",
            describe(found.reached), ", expected one that is ", describe(expected)});
  return found;
}

}  // namespace peerbus::moe::detail

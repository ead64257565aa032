// SPDX-License-Identifier: MIT
#pragma once

#include <limits>
#include <string>

#include <peerbus/core/text.hpp>
#include <peerbus/core/this_machine.hpp>
#include <peerbus/moe/engine/learned_stores.hpp>

namespace peerbus::moe::detail {

inline std::string stores_cost(std::size_t from_bytes, store_kind kind) {
  return concat("local.moe.stores.", from_bytes, ".", describe(kind), "_byte_ns");
}

/// Calls `visit(from_bytes, plain_ns, streaming_ns)` for each size of which `costs` has a time.
template <class Visit>
void for_each_size(const cost_table& costs, Visit&& visit) {
  for (int bit = 0; bit < std::numeric_limits<std::size_t>::digits; ++bit) {
    const std::size_t from_bytes = std::size_t{1} << bit;
    const auto plain = costs.find(stores_cost(from_bytes, store_kind::plain));
    const auto streaming = costs.find(stores_cost(from_bytes, store_kind::streaming));
    if (plain || streaming) visit(from_bytes, plain, streaming);
  }
}

PEERBUS_INLINE std::optional<error> objection_to_stores(const cost_table& costs) {
  std::optional<error> found;
  for_each_size(costs, [&](std::size_t from_bytes, std::optional<double> plain,
                           std::optional<double> streaming) {
    const auto require_pair = [&](store_kind kind, std::optional<double> time, store_kind other) {
      if (found || (time && *time > 0)) return;
      const std::string name = stores_cost(from_bytes, kind);
      const std::string problem = time ? concat(name, " of 0, expected more than 0")
                                       : concat(stores_cost(from_bytes, other), " but not ", name,
                                                ", expected both or none");
      found = error{errc::invalid_argument, concat("exchange: costs have ", problem)};
    };
    require_pair(store_kind::plain, plain, store_kind::streaming);
    require_pair(store_kind::streaming, streaming, store_kind::plain);
  });
  return found;
}

PEERBUS_INLINE void start_from(store_trials& trials, const cost_table& costs,
                               std::size_t token_bytes) {
  const double us_of_byte_ns = static_cast<double>(token_bytes) / 1000;
  for_each_size(costs, [&](std::size_t from_bytes, std::optional<double> plain,
                           std::optional<double> streaming) {
    trials.start_from(from_bytes, plain.value_or(0) * us_of_byte_ns,
                      streaming.value_or(0) * us_of_byte_ns);
  });
}

PEERBUS_INLINE cost_table costs_of(const store_trials& trials, std::size_t token_bytes) {
  cost_table learned;
  for (const std::size_t from_bytes : trials.sizes()) {
    const store_choice found = trials.lasting_choice(from_bytes);
    // A clock that stood still gives no time.
    if (found.why != store_reason::measured || !(found.plain_us > 0 && found.streaming_us > 0))
      continue;
    const double byte_ns_of_us = 1000 / static_cast<double>(token_bytes);
    learned.set(stores_cost(from_bytes, store_kind::plain), found.plain_us * byte_ns_of_us);
    learned.set(stores_cost(from_bytes, store_kind::streaming), found.streaming_us * byte_ns_of_us);
  }
  if (!learned.empty()) learned.set_machine(this_machine());
  return learned;
}

PEERBUS_INLINE store_choice choice_of(const store_trials& trials, std::size_t token_bytes,
                                      std::size_t bytes) noexcept {
  const double tokens = static_cast<double>(bytes) / static_cast<double>(token_bytes);
  store_choice found = trials.choice(bytes);
  found.plain_us *= tokens;
  found.streaming_us *= tokens;
  return found;
}

PEERBUS_INLINE std::vector<size_stores> choices_of(const store_trials& trials,
                                                   std::size_t token_bytes) {
  std::vector<size_stores> found;
  for (const std::size_t from_bytes : trials.sizes())
    found.push_back({from_bytes, choice_of(trials, token_bytes, from_bytes)});
  return found;
}

}  // namespace peerbus::moe::detail

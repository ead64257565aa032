// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <string>

#include <peerbus/core/caches.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/this_machine.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/engine/set_up.hpp>
#include <peerbus/moe/log_choices.hpp>

namespace peerbus::moe {

namespace detail {

/// Returns microseconds as nanoseconds, for texts.
inline long long nanoseconds_of(double us) noexcept { return std::llround(us * 1000); }

inline std::string describe_protocol(const protocol_choice& made, std::string_view layout) {
  const std::string chosen = concat("protocol: ", describe(made.chosen));
  if (made.why == protocol_reason::layout)
    return concat(chosen, ", which is that of layout ", layout, "; another layout changes it");
  if (made.why == protocol_reason::configured) return chosen + ", as option protocol asks";
  return concat(
      chosen, ", as for ", std::llround(made.full.rows), " rows of ",
      std::llround(made.full.row_kib * 1024), " bytes to ", made.full.ranks,
      " ranks counts_first takes ", nanoseconds_of(made.estimate.counts_us), " ns and one_phase ",
      nanoseconds_of(made.estimate.slots_us), " ns by ",
      made.why == protocol_reason::costs ? "option costs" : "the costs that the library assumes",
      "; option protocol fixes it");
}

inline std::string describe_stores(const store_rule& rule) {
  const std::string chosen =
      rule.stream_from == never_stream
          ? "stores: through the caches"
          : concat("stores: past the caches for batches of ", rule.stream_from, " bytes and more");
  if (rule.why == store_reason::configured) return chosen + ", as option stream_from asks";
  const shared_cache cache = believable(largest_cache());
  return concat(chosen, rule.tries_both ? " until both kinds are measured" : "",
                ", by the largest cache, of ", cache.bytes, " bytes for ", cache.cores,
                " cores; option stream_from fixes it");
}

inline std::string describe_stores(const size_stores& made) {
  const store_choice& stores = made.stores;
  return concat("stores: ", describe(stores.kind), " for batches of ", made.from_bytes, " to ",
                made.from_bytes * 2 - 1, " bytes, as ", nanoseconds_of(stores.plain_us),
                " ns plain and ", nanoseconds_of(stores.streaming_us), " ns streaming were ",
                describe(stores.why),
                stores.why == store_reason::learned
                    ? std::string{" by option costs"}
                    : concat(" in ", stores.trials, stores.trials == 1 ? " trial" : " trials"),
                "; option stream_from fixes it");
}

inline std::string describe_levels(const relay_choice& chosen) {
  const std::string numbers = chosen.groups > 1
                                  ? concat(", ", nanoseconds_of(chosen.estimate.flat_us),
                                           " ns of a full batch with one and ",
                                           nanoseconds_of(chosen.estimate.relay_us), " ns with two")
                                  : "";
  return concat("relay: ", chosen.relays ? "two levels, " : "one level, ", chosen.why, numbers,
                "; option relay is ", describe(chosen.asked));
}

PEERBUS_INLINE void log_memory(const exchange_choices& choices, const exchange_config& config,
                               std::size_t window_bytes, log_sink sink) {
  sink(log_level::debug,
       concat("memory: ", window_bytes, " bytes of windows on this rank, by options layout ",
              choices.layout, ", max_tokens ", config.max_tokens, ", in_flight ", config.in_flight,
              " and outputs at ", config.outputs == outputs_at::home ? "home" : "expert"));
  sink(log_level::debug,
       concat("rows: path ", choices.path, ", row arithmetic of ", kernel::best().name));
}

}  // namespace detail

PEERBUS_INLINE void log_choices(const exchange_choices& choices, log_sink sink) {
  if (!choices.costs_machine.empty()) {
    cost_table origin;
    origin.set_machine(choices.costs_machine);
    sink(log_level::info, describe_origin(origin, this_machine()));
  }
  sink(log_level::info, detail::describe_protocol(choices.protocol, choices.layout));
  sink(log_level::info, detail::describe_stores(choices.rule));
  for (const size_stores& each : choices.stores)
    if (each.stores.why == store_reason::measured || each.stores.why == store_reason::learned)
      sink(log_level::info, detail::describe_stores(each));
  sink(log_level::info, detail::describe_levels(choices.relay));
  if (choices.relay.groups > 1) sink(log_level::debug, describe(choices.relay));
}

}  // namespace peerbus::moe

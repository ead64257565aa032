// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <string>
#include <string_view>

#include <peerbus/core/caches.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/this_machine.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/log_choices.hpp>

namespace peerbus::moe::detail {

/// Returns microseconds as nanoseconds, for texts.
inline long long nanoseconds_of(double us) noexcept { return std::llround(us * 1000); }

inline std::string describe_protocol(const made_exchange& made) {
  const std::string chosen = concat("protocol: ", describe(made.config.protocol));
  if (!made.has_either_protocol)
    return concat(chosen, ", which is that of layout ", made.layout, "; another layout changes it");
  if (made.asked.protocol != dispatch_protocol::automatic)
    return chosen + ", as option protocol asks";
  const std::string_view costs =
      made.asked.costs == nullptr ? "the costs that the library assumes" : "option costs";
  if (made.relay.relays)
    return concat(chosen, ", which is cheaper within a group by ", costs,
                  "; option protocol fixes it");
  const dispatch_size& full = made.full;
  const protocol_estimate estimate = estimate_by(made.asked.costs, full);
  return concat(chosen, ", as for ", std::llround(full.rows), " rows of ",
                std::llround(full.row_kib * 1024), " bytes to ", full.ranks,
                " ranks counts_first takes ", nanoseconds_of(estimate.counts_us),
                " ns and one_phase ", nanoseconds_of(estimate.slots_us), " ns by ", costs,
                "; option protocol fixes it");
}

inline std::string describe_stores(const made_exchange& made) {
  const std::size_t from = *made.config.stream_from;
  const std::string chosen =
      from == never_stream
          ? "stores: through the caches"
          : concat("stores: past the caches for batches of ", from, " bytes and more");
  if (made.asked.stream_from) return chosen + ", as option stream_from asks";
  const shared_cache cache = believable(largest_cache());
  // The levels of an exchange that relays are not tried, nor are rows that are put.
  const bool are_tried = made.full.path == path_name_of(peer_reach::all) && !made.relay.relays;
  return concat(chosen, are_tried ? " until both kinds are measured" : "",
                ", by the largest cache, of ", cache.bytes, " bytes for ", cache.cores,
                " cores; option stream_from fixes it");
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

PEERBUS_INLINE void log_exchange(const made_exchange& made, log_sink sink) {
  if (made.asked.costs != nullptr && !made.asked.costs->machine().empty())
    sink(log_level::info, describe_origin(*made.asked.costs, this_machine()));
  sink(log_level::info, describe_protocol(made));
  sink(log_level::info, describe_stores(made));
  sink(log_level::info, describe_levels(made.relay));
  if (made.relay.groups > 1) sink(log_level::debug, describe(made.relay));
  sink(log_level::debug,
       concat("memory: ", made.window_bytes, " bytes of windows on this rank, by options layout ",
              made.layout, ", max_tokens ", made.config.max_tokens, ", in_flight ",
              made.config.in_flight, " and outputs at ",
              made.config.outputs == outputs_at::home ? "home" : "expert"));
  sink(log_level::debug,
       concat("rows: path ", made.full.path, ", row arithmetic of ", kernel::best().name));
}

}  // namespace peerbus::moe::detail

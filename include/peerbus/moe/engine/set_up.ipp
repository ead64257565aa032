// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/engine/expert_tables.hpp>
#include <peerbus/moe/engine/learned_stores.hpp>
#include <peerbus/moe/engine/set_up.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE void agree_on(rank_group& group, const exchange_config& config,
                             const codec_facts& codec, const layout_facts& layout,
                             std::size_t alignment, dispatch_protocol chosen, deadline until) {
  std::optional<error> objection = objection_to(config, group.size(), codec, layout);
  if (!objection && config.costs != nullptr) objection = objection_to_stores(*config.costs);
  expert_tables tables;
  if (!objection)
    objection =
        objection_of("tables of experts", [&] { tables = expert_tables{config, group.size()}; });
  std::vector<declared> values{
      {"codec", codec.name},           {"layout", layout.name},
      {"experts", config.experts},     {"hidden", config.hidden},
      {"top_k", config.top_k},         {"max_tokens", config.max_tokens},
      {"in_flight", config.in_flight}, {"outputs", static_cast<std::uint64_t>(config.outputs)}};
  for (const std::size_t bytes : config.attachments) values.push_back({"attachment", bytes});
  values.push_back({"output_attachment", config.output_attachment});
  values.push_back({"logfmt_outputs", std::uint64_t{config.logfmt_outputs}});
  values.push_back({"note_bytes", config.note_bytes});
  tables.declare(values);
  // Declared for every layout, so that ranks with different layouts declare equally many values.
  values.push_back({"alignment", alignment});
  values.push_back({"protocol", describe(config.protocol)});
  values.push_back({"hash of costs", config.costs == nullptr ? 0 : config.costs->hash()});
  values.push_back({"chosen protocol", describe(chosen)});
  values.push_back({"relay", describe(config.relay)});
  values.push_back({"weights_at_combine", std::uint64_t{config.weights_at_combine}});
  values.push_back({"same_bits", std::uint64_t{config.same_bits}});
  values.push_back({"distrust_peers", std::uint64_t{config.distrust_peers}});
  values.push_back({"relay_sums", config.relay_sums == relay_sums::f32 ? "f32" : "bf16"});
  agree_with_tables(group, "exchange", values, tables, until, objection);
}

PEERBUS_INLINE exchange_choices choices_in_one_level(const exchange_config& given,
                                                     const layout_facts& layout,
                                                     const dispatch_size& full, std::size_t ranks,
                                                     std::size_t per_core) {
  exchange_choices found{
      .protocol = choose_protocol(given, layout.only, full),
      .relay = {.asked = given.relay,
                .why = given.relay == relay::never ? "as asked" : "as ranks have not met"},
      .rule = {.stream_from = stream_from(given, ranks, per_core),
               .why = given.stream_from ? store_reason::configured : store_reason::assumed,
               // Where rows are put, stores make no difference that could be told from the
               // network's.
               .tries_both = !given.stream_from && full.path == path_name_of(peer_reach::all)},
      .layout = layout.name,
      .path = full.path};
  if (given.costs != nullptr) found.costs_machine = given.costs->machine();
  return found;
}

PEERBUS_INLINE std::vector<std::uint32_t> distances_in(const any_window& window) {
  const rank_group& group = window.group();
  std::vector<std::uint32_t> found;
  found.reserve(group.size());
  for (const rank_id rank : group.ranks())
    found.push_back(rank == group.rank() ? 0U : window.part(rank) != nullptr ? 1U : 2U);
  return found;
}

PEERBUS_INLINE shared_cache believable(shared_cache reported) noexcept {
  constexpr std::size_t most_per_core = std::size_t{64} << 20U;
  constexpr shared_cache assumed{.bytes = std::size_t{32} << 20U, .cores = 8};
  const bool believed = reported.bytes != 0 && reported.bytes / reported.cores <= most_per_core;
  return believed ? reported : assumed;
}

PEERBUS_INLINE std::size_t stream_from(const exchange_config& config, std::size_t ranks,
                                       std::size_t per_core) {
  if (config.stream_from) return *config.stream_from;
  const shared_cache cache = believable(largest_cache());
  // A quarter is left for the tokens, which are read meanwhile, and for other data.
  const std::size_t kept = cache.bytes / std::min(cache.cores, ranks) / per_core / 4 * 3;
  return kept - std::min(kept, config.between);
}

}  // namespace peerbus::moe::detail

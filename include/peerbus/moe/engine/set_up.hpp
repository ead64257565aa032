// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/caches.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/choices.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/objection.hpp>
#include <peerbus/moe/protocol.hpp>

namespace peerbus::moe::detail {

/// Returns the size of a full dispatch. `copies` is the largest number of rows that a token
/// becomes.
constexpr dispatch_size full_dispatch(const exchange_config& config, const codec_facts& codec,
                                      std::string_view path, std::size_t ranks,
                                      std::size_t copies) noexcept {
  // Products in floating point, because an impossible configuration is only refused later.
  const double rows = static_cast<double>(config.max_tokens) * static_cast<double>(copies);
  const double row_bytes =
      static_cast<double>(codec.format.row_bytes) + static_cast<double>(codec.format.scale_bytes);
  return {path, ranks, rows, row_bytes / 1024};
}

/// Estimates the protocols for a dispatch of `size` from `costs`, or those that the library assumes
/// if it is null.
constexpr protocol_estimate estimate_by(const cost_table* costs, const dispatch_size& size) {
  return costs == nullptr ? estimate_from(assumed_costs(size.path), size)
                          : estimate_protocols(*costs, size);
}

/// Returns the protocol of an exchange: `only`, which its layout has, or, if that is `automatic`,
/// the protocol of `config`, or the cheaper one for dispatches of `full`.
constexpr protocol_choice choose_protocol(const exchange_config& config, dispatch_protocol only,
                                          const dispatch_size& full) {
  protocol_choice choice{.chosen = only,
                         .why = protocol_reason::layout,
                         .full = full,
                         .estimate = estimate_by(config.costs, full)};
  if (only != dispatch_protocol::automatic) return choice;
  choice.chosen = config.protocol;
  choice.why = protocol_reason::configured;
  if (config.protocol != dispatch_protocol::automatic) return choice;
  choice.chosen = choice.estimate.cheaper();
  choice.why = config.costs != nullptr && has_protocol_costs(*config.costs, full.path)
                   ? protocol_reason::costs
                   : protocol_reason::assumed;
  return choice;
}

/// Compares a configuration with those of the other ranks. Collective. `alignment` is that of the
/// blocks of the layout, `chosen` the protocol that this rank will use.
/// Throws, on all ranks: `error` mismatch, or the error of `objection_to`.
void agree_on(rank_group& group, const exchange_config& config, const codec_facts& codec,
              const layout_facts& layout, std::size_t alignment, dispatch_protocol chosen,
              deadline until);

/// Returns `reported`, or 32 MiB for 8 cores if it is not plausible: if it is empty, or has more
/// than 64 MiB for each core. A virtual machine reports the cache of its host, of which it has a
/// part.
shared_cache believable(shared_cache reported) noexcept;

/// Returns the number of ranks of this host that take turns on a core, at least 1.
[[nodiscard]] inline std::size_t ranks_per_core(const bootstrap& boot) noexcept {
  return (boot.ranks_here() + boot.cores_here() - 1) / boot.cores_here();
}

/// Returns `config.stream_from`, or, if it is empty, the default for a group of `ranks` ranks, of
/// which `per_core` share a core and its caches.
std::size_t stream_from(const exchange_config& config, std::size_t ranks, std::size_t per_core);

/// Returns the choices of an exchange of `given` in one level among `ranks` ranks, of which
/// `per_core` share a core, with full dispatches of `full`.
exchange_choices choices_in_one_level(const exchange_config& given, const layout_facts& layout,
                                      const dispatch_size& full, std::size_t ranks,
                                      std::size_t per_core);

/// Returns the distance of each rank of a window: 0 for this rank, 1 for ranks whose memory it
/// reaches by loads and stores, 2 for the others: [ranks].
[[nodiscard]] std::vector<std::uint32_t> distances_in(const any_window& window);

/// Compares the configuration with those of the other ranks and returns it, with `stream_from` and
/// `protocol` as `chosen` and without `costs`. Collective.
/// Throws, on all ranks: as the constructor of `exchange`.
template <token_codec Codec, row_layout Layout>
exchange_config agreed_config(rank_group& group, const exchange_config& config,
                              const Layout& layout, const exchange_choices& chosen,
                              deadline until) {
  exchange_config agreed = config;
  agreed.protocol = chosen.protocol.chosen;
  agree_on(group, config, codec_facts::of<Codec>(config.hidden),
           layout_facts::of(layout, agreed.protocol),
           layout.geometry(config, group.size()).alignment, agreed.protocol, until);
  agreed.stream_from = chosen.rule.stream_from;
  agreed.costs = nullptr;
  return agreed;
}

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/set_up.ipp>  // IWYU pragma: keep
#endif

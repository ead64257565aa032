// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/make_together.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/objection.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/rank_group.hpp>

namespace peerbus::moe::detail {

/// Compares a configuration with the other ranks'. `alignment` is that of the layout's blocks.
/// Throws, on all ranks: `error` mismatch, or what `objection_to` says.
void agree_on(rank_group& group, const exchange_config& config, const codec_facts& codec,
              const layout_facts& layout, std::size_t alignment, deadline until);

/// Compares the configuration with the other ranks' and returns it.
/// Throws, on all ranks: what the constructor of `exchange` says.
template <token_codec Codec, row_layout Layout>
exchange_config agreed_config(rank_group& group, const exchange_config& config,
                              const Layout& layout, deadline until) {
  agree_on(group, config, codec_facts::of<Codec>(config.hidden), layout_facts::of(layout),
           layout.geometry(config, group.size()).alignment, until);
  return config;
}

/// What this rank keeps of its batches. Made after the window, which refuses sizes beyond the
/// machine at once; here their pages would be touched first.
/// Throws, on all ranks: `error` out_of_memory, or as `agree`.
template <class Batches>
Batches made_batches(rank_group& group, const exchange_config& config,
                     const block_geometry& geometry, deadline until) {
  return make_together(group, "the plans of an exchange's batches", until,
                       [&] { return Batches{config, geometry, group.rank(), group.size()}; });
}

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/impl/set_up.hpp>  // IWYU pragma: keep
#endif

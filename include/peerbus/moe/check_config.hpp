// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/objection.hpp>

namespace peerbus::moe {

/// Returns the error by which an exchange with this codec and layout would refuse `config` among
/// `ranks` ranks, or nothing if it would not: for programs that plan or choose a configuration
/// before there are ranks, as `exchange::map_for` needs a valid one. What depends on the machine or
/// on the other ranks (memory, groups for relay, arguments that differ) is left to the constructor.
/// Cost: a pass over `config`'s spans. Allocates for an error.
template <token_codec Codec, row_layout Layout = compact>
[[nodiscard]] std::optional<error> objection_to(const exchange_config& config, std::size_t ranks,
                                                const Layout& layout = {}) {
  return detail::objection_to(config, ranks, detail::codec_facts::of<Codec>(config.hidden),
                              detail::layout_facts::of(layout, detail::only_protocol_of<Layout>));
}

}  // namespace peerbus::moe

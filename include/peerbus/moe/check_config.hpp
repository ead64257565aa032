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

/// Returns the error with which an exchange with this codec and layout would refuse `config` among
/// `ranks` ranks, or nothing. For programs that plan or choose a configuration before there are
/// ranks, because `exchange::map_for` needs a valid one. Only the constructor checks conditions
/// that depend on the machine or on other ranks: memory, groups for relay, arguments that differ.
/// Cost: a pass over the spans of `config`. Allocates for an error.
template <token_codec Codec, row_layout Layout = compact>
[[nodiscard]] std::optional<error> objection_to(const exchange_config& config, std::size_t ranks,
                                                const Layout& layout = {}) {
  return detail::objection_to(config, ranks, detail::codec_facts::of<Codec>(config.hidden),
                              detail::layout_facts::of(layout, detail::only_protocol_of<Layout>));
}

}  // namespace peerbus::moe

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/moe/choices.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe {

namespace detail {

/// Writes the memory of an exchange and the path of its rows to `sink`.
void log_memory(const exchange_choices& choices, const exchange_config& config,
                std::size_t window_bytes, log_sink sink);

}  // namespace detail

/// Writes `choices` to `sink`: a protocol, stores and levels. Also writes where the costs were
/// measured, if they state it.
/// Cost: allocates, and reads small files of /sys and /proc.
/// Throws: the exceptions of `sink`.
void log_choices(const exchange_choices& choices, log_sink sink);

/// Writes to `sink` the choices of `made`, and the memory that it has. Not collective.
/// Cost, exceptions: as the overload for choices.
template <transport Transport, token_codec Codec, row_layout Layout>
void log_choices(const exchange<Transport, Codec, Layout>& made, log_sink sink) {
  const exchange_choices choices = made.choices();
  log_choices(choices, sink);
  detail::log_memory(choices, made.config(), made.window_bytes(), sink);
}

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/log_choices.ipp>  // IWYU pragma: keep
#endif

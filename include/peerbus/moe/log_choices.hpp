// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/engine/set_up.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/objection.hpp>
#include <peerbus/moe/protocol.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>

namespace peerbus::moe {

namespace detail {

/// An exchange, without the types of its codec and layout.
struct made_exchange {
  const exchange_config& asked;   ///< the configuration that its constructor was given
  const exchange_config& config;  ///< the configuration that it has
  const relay_choice& relay;      ///< its levels
  std::string_view layout;        ///< the name of its layout
  bool has_either_protocol;       ///< whether the layout can have either protocol
  dispatch_size full;             ///< the size of a full dispatch
  std::size_t window_bytes;       ///< bytes of its windows at this rank
};

/// Writes the choices of `made` to `sink`. Contract as `log_choices`.
void log_exchange(const made_exchange& made, log_sink sink);

}  // namespace detail

/// Writes to `sink` the choices of `made`, an exchange over `comm`: its protocol, its stores and
/// its levels. Also writes where the costs of `asked` were measured, if they state it. `asked` is
/// the configuration that the constructor of `made` was given; its spans are not read. Not
/// collective.
/// Cost: allocates, and reads small files of /sys and /proc.
/// Throws: the exceptions of `sink`.
template <transport Transport, token_codec Codec, row_layout Layout>
void log_choices(communicator<Transport>& comm, const exchange<Transport, Codec, Layout>& made,
                 const exchange_config& asked, log_sink sink) {
  const std::size_t copies = Layout{}.geometry(made.config(), comm.size()).copies_per_token;
  detail::log_exchange(
      {asked, made.config(), made.relay(), Layout::name, automatic_layout<Layout>,
       detail::full_dispatch(asked, detail::codec_facts::of<Codec>(asked.hidden),
                             path_name_of(reach_of(comm.bus())), comm.size(), copies),
       made.window_bytes()},
      sink);
}

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/log_choices.ipp>  // IWYU pragma: keep
#endif

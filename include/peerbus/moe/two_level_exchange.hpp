// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe {

/// The former name of an `exchange` that may relay. It goes with version 0.2: set
/// `exchange_config::relay` instead.
template <partly_direct_transport Transport, token_codec Codec, row_layout Layout = compact>
class two_level_exchange : public exchange<Transport, Codec, Layout> {
  using base = exchange<Transport, Codec, Layout>;

 public:
  /// Makes an exchange whose `config.relay` is `choice`. Contract as the constructor of `exchange`.
  two_level_exchange(communicator<Transport>& comm, const exchange_config& config,
                     moe::relay choice, Codec codec = {}, Layout layout = {},
                     std::optional<deadline> until = std::nullopt)
      : base{comm, with(config, choice), codec, layout, until.value_or(comm.default_deadline()),
             true} {}

  /// Returns `exchange::relay`. It tells the groups also with `relay::never`.
  [[nodiscard]] const relay_choice& chosen() const noexcept { return this->relay(); }

 private:
  static exchange_config with(exchange_config config, moe::relay choice) noexcept {
    config.relay = choice;
    return config;
  }
};

}  // namespace peerbus::moe

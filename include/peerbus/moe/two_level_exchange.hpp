// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe {

/// The former name of an `exchange` that may relay, without output attachments where it does.
/// Version 0.2 removes this name: set `exchange_config::relay` instead.
template <partly_direct_transport Transport, token_codec Codec, row_layout Layout = compact>
class two_level_exchange : public exchange<Transport, Codec, Layout> {
  using base = exchange<Transport, Codec, Layout>;

 public:
  /// Makes an exchange whose `config.relay` is `choice`. Contract as the constructor of `exchange`.
  [[deprecated("use exchange with exchange_config::relay")]] two_level_exchange(
      communicator<Transport>& comm, const exchange_config& config, moe::relay choice,
      Codec codec = {}, Layout layout = {}, std::optional<deadline> until = std::nullopt)
      : base{comm,
             agreed(comm, config, choice, until.value_or(comm.default_deadline())),
             codec,
             layout,
             until.value_or(comm.default_deadline()),
             true} {}

  /// Returns `exchange::relay`. It has the groups also with `relay::never`.
  [[nodiscard]] const relay_choice& chosen() const noexcept { return this->relay(); }

  ///@{
  /// Calls the function of `exchange` with the same name.
  /// Throws: as that function; `error` unsupported with two levels.
  [[nodiscard]] bool attached_by(moe::ticket ticket, rank_id rank) {
    require_one_level("attached_by");
    return base::attached_by(ticket, rank);
  }
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> returned_attachment(moe::ticket ticket, std::size_t t,
                                                       std::size_t copy) {
    require_one_level("returned_attachment");
    return base::template returned_attachment<T>(ticket, t, copy);
  }
  ///@}

 private:
  /// Returns the configuration with its `relay`. Collective. Refuses output attachments with two
  /// levels.
  static exchange_config agreed(communicator<Transport>& comm, exchange_config config,
                                moe::relay choice, deadline until) {
    const std::size_t attached = config.output_attachment;
    std::optional<error> objection;
    if (choice == moe::relay::always && attached != 0)
      objection = error{errc::unsupported,
                        peerbus::detail::concat(
                            "two_level_exchange: relay is always, but output_attachment is ",
                            attached, ", expected 0, or an exchange with exchange_config::relay")};
    comm.agree("two_level_exchange", {}, until, objection);
    config.relay = attached != 0 ? moe::relay::never : choice;
    return config;
  }
  void require_one_level(std::string_view doing) const {
    if (this->relay().relays)
      throw error{errc::unsupported,
                  peerbus::detail::concat(doing, ": relay is used, expected one level, or an ",
                                          "exchange with exchange_config::relay")};
  }
};

}  // namespace peerbus::moe

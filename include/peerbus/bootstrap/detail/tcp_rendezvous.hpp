// SPDX-License-Identifier: MIT
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/bootstrap/detail/tcp_tls.hpp>
#include <peerbus/bootstrap/detail/tcp_tls_group.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The channels of a rank. Each is a separate connection to rank 0.
enum tcp_channel : std::size_t {
  collectives = 0,  ///< frames
  watch = 1,        ///< news of ranks that have ended
  tcp_channels = 2
};

/// A TCP port where ranks meet. Every process that knows the group's secret may call.
class tcp_rendezvous_place : public rendezvous_place {
 public:
  /// Resolves the address of the place.
  /// Throws: `error` as `find_place`, system.
  tcp_rendezvous_place(const tcp_settings& settings, deadline until)
      : tcp_rendezvous_place{settings, find_place(settings, until)} {}
  /// Makes a place with the addresses `addresses`.
  /// Throws: `error` system.
  tcp_rendezvous_place(const tcp_settings& settings, std::vector<tcp_address> addresses)
      : settings_{settings},
        addresses_{std::move(addresses)},
        group_{std::make_shared<const tls_group>(settings.secret, settings.job)} {}

  [[nodiscard]] std::string describe() const override { return describe_place(settings_); }
  [[nodiscard]] std::size_t channels() const noexcept override { return tcp_channels; }
  void tune(const connection& link, std::size_t channel) const noexcept override {
    tune_connection(link.get(), channel == watch, settings_.out_of_reach_after);
  }

  [[nodiscard]] std::vector<unique_fd> open() override {
    return listen_for_ranks(settings_, addresses_);
  }
  [[nodiscard]] connection admit(unique_fd caller) override {
    return secured(std::move(caller), tls_layer::end::accepting);
  }
  [[nodiscard]] std::string describe_caller(const connection* caller) const override {
    return caller != nullptr ? describe_far_end(caller->get()) : "the process at the port";
  }
  [[nodiscard]] std::string describe_addresses() const override {
    const bool is_loopback = std::all_of(addresses_.begin(), addresses_.end(),
                                         [](const auto& address) { return address.is_loopback(); });
    return concat(" (", detail::describe_addresses(addresses_),
                  is_loopback ? ", a loopback address, which other hosts cannot reach" : "", ")");
  }

  [[nodiscard]] connection call(deadline until) override { return call_at(addresses_, until); }
  /// Calls a rank of the group that listens at other addresses. Otherwise as `call`.
  [[nodiscard]] connection call_at(const std::vector<tcp_address>& addresses, deadline until) {
    unique_fd socket = connect_once(addresses, until);
    if (!socket) return {};
    return secured(std::move(socket), tls_layer::end::calling);
  }
  [[nodiscard]] std::string describe_silence(int number) const override {
    return concat(detail::describe_addresses(addresses_), ": ", describe_errno(number));
  }
  [[nodiscard]] std::string describe_secrets(handshake how) const override {
    if (how == handshake::other_secret) return " has another than this rank";
    return group_->has_secret() ? " has none but this rank does" : " has one but this rank none";
  }

 private:
  [[nodiscard]] connection secured(unique_fd socket, tls_layer::end side) const {
    set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    return {std::move(socket), std::make_unique<tls_layer>(group_, side)};
  }

 protected:
  tcp_settings settings_;
  std::vector<tcp_address> addresses_;

 private:
  std::shared_ptr<const tls_group> group_;
};

}  // namespace peerbus::detail

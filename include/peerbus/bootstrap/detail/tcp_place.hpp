// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/host_identity.hpp>
#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

inline constexpr std::size_t least_secret_bytes = 16;
inline constexpr std::size_t most_job_bytes = 128;
/// The limits of `tcp_settings::out_of_reach_after`: the shortest and the longest time.
inline constexpr std::int64_t least_reach_ms = 2'000;
inline constexpr std::int64_t most_reach_ms = 3'600'000;

/// Returns text such as "node0:29500", for messages.
inline std::string describe_place(const tcp_settings& settings) {
  return join_host_port(settings.address, std::to_string(settings.port));
}

/// Checks the settings without using the network.
/// Throws: `error` invalid_argument.
inline void check_settings(const tcp_settings& given) {
  if (given.size == 0 || given.size > most_ranks)
    throw error{errc::invalid_argument, concat("a world of ", given.size, " ranks was given, ",
                                               "expected 1 to ", most_ranks)};
  if (given.rank >= given.size)
    throw error{errc::invalid_argument, concat("rank ", given.rank, " of ", given.size,
                                               " was given, expected a rank below the size")};
  if (given.size > 1 && given.port == 0)
    throw error{errc::invalid_argument, "port 0 was given to meet at, expected 1 to 65535"};
  if (given.host.size() > host_identity::most_name_bytes)
    throw error{errc::invalid_argument,
                concat("the host's name '", given.host, "' has ", given.host.size(),
                       " bytes, expected at most ", host_identity::most_name_bytes)};
  if (given.job.size() > most_job_bytes)
    throw error{errc::invalid_argument, concat("the job (PEERBUS_JOB) has ", given.job.size(),
                                               " bytes, expected at most ", most_job_bytes)};
  if (const auto limit = given.out_of_reach_after.count();
      limit < least_reach_ms || limit > most_reach_ms)
    throw error{errc::invalid_argument, concat("out_of_reach_after is ", limit, " ms, expected ",
                                               least_reach_ms, " to ", most_reach_ms)};
  if (!given.secret.empty() && given.secret.size() < least_secret_bytes)
    throw error{
        errc::invalid_argument,
        concat("the secret (PEERBUS_SECRET or PEERBUS_SECRET_FILE) has ", given.secret.size(),
               " bytes, expected at least ", least_secret_bytes, " that cannot be guessed")};
}

/// Returns the network addresses of the rendezvous place.
/// Throws: `error` system if the name cannot be resolved, invalid_argument if other hosts could
/// connect there and there is no secret.
inline std::vector<tcp_address> find_place(const tcp_settings& settings, deadline until) {
  auto addresses = resolve(settings.address, settings.port, until);
  if (!settings.secret.empty()) return addresses;
  for (const tcp_address& address : addresses)
    if (!address.is_loopback())
      throw error{errc::invalid_argument,
                  concat("MASTER_ADDR ", settings.address, " is ", describe_address(address),
                         ", where other hosts can call, and there is no secret: expected "
                         "PEERBUS_SECRET or PEERBUS_SECRET_FILE, the same on all ranks, or a "
                         "loopback address")};
  return addresses;
}

/// Opens the port. If all addresses of the place are loopback addresses, and the place is given as
/// an address or there is no secret, the port is opened at these addresses only. Otherwise it is
/// opened at every address of the host, because a host may know itself by other addresses than its
/// callers do.
/// Returns: listening sockets; none if the port is in use.
/// Throws: `error` system.
inline std::vector<unique_fd> listen_for_ranks(const tcp_settings& settings,
                                               const std::vector<tcp_address>& place) {
  // On the host itself its name may mean a loopback address, and another address on other hosts.
  const std::string& name = settings.address;
  const bool is_name = name != "localhost" && name.find(':') == std::string::npos &&
                       name.find_first_not_of("0123456789.") != std::string::npos;
  const bool here_only = std::all_of(place.begin(), place.end(),
                                     [](const auto& address) { return address.is_loopback(); }) &&
                         (settings.secret.empty() || !is_name);
  std::vector<tcp_address> wanted = place;
  if (!here_only)
    wanted = {any_address(AF_INET6, settings.port), any_address(AF_INET, settings.port)};
  std::vector<unique_fd> listeners;
  int number = 0;
  for (const tcp_address& address : wanted) {
    // If there is IPv6, the first of the two addresses covers both.
    if (!here_only && !listeners.empty()) break;
    if (unique_fd socket = listen_at(address)) {
      listeners.push_back(std::move(socket));
    } else {
      number = errno;  // The host may lack an address, but no address may be in use.
      if (number == EADDRINUSE) return {};
    }
  }
  if (listeners.empty())
    throw system_failure(concat("listening at ", describe_place(settings)), number);
  return listeners;
}

}  // namespace peerbus::detail

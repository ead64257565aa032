// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string_view>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/core/error.hpp>

#if PEERBUS_BENCH_TCP
#include <peerbus/bootstrap/tcp.hpp>
#endif

namespace bench {

/// Meets the other ranks that a launcher has started. `how`: "host", by a socket of this host;
/// "tcp"; or "auto", by TCP only where the launcher says that there are other hosts.
/// Throws: `peerbus::error`, unsupported also if TCP is needed and OpenSSL was not there when this
/// program was built.
[[nodiscard]] inline std::unique_ptr<peerbus::bootstrap> join_group(std::string_view how) {
  const auto over_tcp = []() -> std::unique_ptr<peerbus::bootstrap> {
#if PEERBUS_BENCH_TCP
    return std::unique_ptr<peerbus::bootstrap>{
        new peerbus::tcp_bootstrap{peerbus::tcp_bootstrap::from_environment()}};
#else
    throw peerbus::error{peerbus::errc::unsupported,
                         "ranks on several hosts meet over TCP, and this program was built without "
                         "OpenSSL (Debian: libssl-dev); expected all ranks on one host"};
#endif
  };
  if (how == "tcp") return over_tcp();
  try {
    return std::unique_ptr<peerbus::bootstrap>{
        new peerbus::environment_bootstrap{peerbus::environment_bootstrap::from_environment()}};
  } catch (const peerbus::error& problem) {
    if (how != "auto" || problem.code() != peerbus::errc::unsupported) throw;
  }
  return over_tcp();
}

}  // namespace bench

// SPDX-License-Identifier: MIT
#include "support/join_group.hpp"

#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/core/error.hpp>

#if PEERBUS_BENCH_TCP
#include <peerbus/bootstrap/tcp.hpp>
#endif

namespace bench {
namespace {

std::unique_ptr<peerbus::bootstrap> join_over_tcp() {
#if PEERBUS_BENCH_TCP
  return std::unique_ptr<peerbus::bootstrap>{
      new peerbus::tcp_bootstrap{peerbus::tcp_bootstrap::from_environment()}};
#else
  throw peerbus::error{peerbus::errc::unsupported,
                       "ranks on several hosts meet over TCP, and this program was built without "
                       "OpenSSL (Debian: libssl-dev); expected all ranks on one host"};
#endif
}

}  // namespace

std::unique_ptr<peerbus::bootstrap> join_group(std::string_view how) {
  if (how == "tcp") return join_over_tcp();
  try {
    return std::unique_ptr<peerbus::bootstrap>{
        new peerbus::environment_bootstrap{peerbus::environment_bootstrap::from_environment()}};
  } catch (const peerbus::error& problem) {
    if (how != "auto" || problem.code() != peerbus::errc::unsupported) throw;
  }
  return join_over_tcp();
}

}  // namespace bench

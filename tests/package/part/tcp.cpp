// SPDX-License-Identifier: MIT
#include <chrono>

#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

// Links and runs: a rank alone needs no network. One of two finds nobody at a port that is closed.
int main() {
  peerbus::tcp_bootstrap alone{{}, peerbus::deadline::never()};
  try {
    peerbus::tcp_settings settings;
    settings.rank = 1;
    settings.size = 2;
    settings.port = 1;
    peerbus::tcp_bootstrap lost{settings, peerbus::deadline::after(std::chrono::milliseconds{10})};
  } catch (const peerbus::error& problem) {
    return alone.size() == 1 && problem.code() == peerbus::errc::timed_out ? 0 : 1;
  }
  return 1;
}

// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <peerbus.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "support/ranks.hpp"

/// Ranks that are started through C's interface.
namespace embed_c {

inline constexpr std::int64_t second = 1'000'000'000;  ///< in the unit of C's time limits

enum class kind {
  threads,
  processes,
  hosts  ///< processes of two pretended hosts, which share no memory with each other
};

#ifdef PEERBUS_TEST_HOSTS
inline constexpr bool has_hosts = true;
#else
inline constexpr bool has_hosts = false;  ///< the libraries of networks are not built
#endif

/// Returns a TCP port of this host at which nobody listens.
inline std::uint16_t free_port() {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const peerbus::unique_fd probe{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  socklen_t bytes = sizeof place;
  auto* const address = reinterpret_cast<sockaddr*>(&place);
  if (::bind(probe.get(), address, bytes) != 0 || ::getsockname(probe.get(), address, &bytes) != 0)
    test::fail("no free port");
  return ntohs(place.sin_port);
}

/// The all-gather of a `peerbus_meeting` whose context is a `peerbus::bootstrap`.
inline std::int32_t all_gather_over(void* boot, const void* own, void* all, std::uint64_t bytes) {
  const auto* const first = static_cast<const std::byte*>(own);
  const auto given = static_cast<peerbus::bootstrap*>(boot)->allgather(
      {.bytes = {first, first + bytes}, .fd = {}}, peerbus::deadline::never(), "a meeting");
  for (std::size_t rank = 0; rank < given.size(); ++rank)
    std::memcpy(static_cast<std::byte*>(all) + rank * bytes, given[rank].bytes.data(), bytes);
  return 0;
}

/// Makes the communicator of a rank whose pretended host is number `host`. Returns the code.
inline peerbus_code join_hosts(peerbus::bootstrap& boot, std::size_t host,
                               const peerbus_comm_options* options, peerbus_comm** comm) {
  const std::string name = "host " + std::to_string(host);
  peerbus_meeting meeting{};
  meeting.struct_bytes = sizeof meeting;
  meeting.rank = boot.rank().index();
  meeting.size = boot.size();
  meeting.all_gather = all_gather_over;
  meeting.context = &boot;
  meeting.address = "127.0.0.1";
  meeting.host = name.c_str();
  return peerbus_comm_over(&meeting, options, comm);
}

/// Calls `rank(comm, context)` on processes of `hosts` pretended hosts.
inline int run_hosts(std::size_t ranks, std::size_t hosts, peerbus_rank_function rank,
                     void* context, const peerbus_comm_options* options) {
  return peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) -> int {
    peerbus_comm* comm = nullptr;
    if (join_hosts(boot, boot.rank().index() * hosts / ranks, options, &comm) != PEERBUS_OK)
      test::fail("joining: ", peerbus_last_error());
    const int status = rank(comm, context);
    // A rank that leaves waits a moment only for peers to take what it has sent.
    static_cast<void>(peerbus_comm_barrier(comm, 10 * second));
    peerbus_comm_destroy(&comm);
    return status;
  });
}

/// Calls `body(comm)` on `ranks` ranks. Returns the greatest status: 1 for a rank whose body threw.
template <class Body>
int run(std::uint64_t ranks, kind how, Body body, const peerbus_comm_options* options = nullptr) {
  const auto rank = [](peerbus_comm* comm, void* context) -> std::int32_t {
    try {
      (*static_cast<Body*>(context))(comm);
      return 0;
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(peerbus_comm_rank(comm)),
                   problem.what());
      return 1;
    }
  };
  if (how == kind::hosts && !has_hosts) {
    MESSAGE("not tested: libpeerbus_tcp.so or libpeerbus_fabric.so is not built");
    return 0;
  }
  if (how == kind::hosts) return run_hosts(ranks, 2, rank, &body, options);
  std::int32_t status = -1;
  const auto start = how == kind::threads ? peerbus_run_threads : peerbus_run_processes;
  if (start(ranks, rank, &body, options, &status) != PEERBUS_OK) return -1;
  return status;
}

/// Requires that a call succeeded.
inline void ok(peerbus_code code, std::string_view call) {
  if (code != PEERBUS_OK) test::fail(call, ": ", peerbus_last_error());
}

/// Requires that a call failed with `expected` and a text that has `fragment`.
inline void fails(peerbus_code code, peerbus_code expected, std::string_view fragment) {
  const std::string_view text = peerbus_last_error();
  if (code != expected)
    test::fail("returned '", peerbus_code_text(code), "' (", text, "), expected '",
               peerbus_code_text(expected), "' about '", fragment, "'");
  if (text.find(fragment) == std::string_view::npos)
    test::fail("said '", text, "', expected it to say '", fragment, "'");
}

}  // namespace embed_c

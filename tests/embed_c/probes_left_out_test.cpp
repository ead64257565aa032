// SPDX-License-Identifier: MIT
// What PEERBUS_PROBES does in a library that was built without <sys/sdt.h>, as probes.cpp is here.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/event_listeners.hpp>
#include <peerbus/core/rank.hpp>

#include "bootstrap/support.hpp"
#include "probes.hpp"

namespace probes_left_out_test {

TEST_CASE("a library without probes says so, once for a process") {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> said{std::tmpfile(), &std::fclose};
  REQUIRE(said);
  const int file = ::fileno(said.get());
  CHECK(test::status_of(test::in_child([file] {
          if (::dup2(file, STDERR_FILENO) != STDERR_FILENO) return 2;
          peerbus::event_listeners listeners;
          peerbus::c_library::add_probes(listeners, peerbus::rank_id{3});
          peerbus::c_library::add_probes(listeners, peerbus::rank_id{3});
          return 0;
        })) == 0);
  char text[512] = {};
  const ssize_t bytes = ::pread(file, text, sizeof text - 1, 0);
  REQUIRE(bytes > 0);
  CHECK(std::string{text} ==
        "peerbus[3] info: probes: none, as this libpeerbus was built without <sys/sdt.h> (Debian: "
        "systemtap-sdt-dev); PEERBUS_PROBES asks for them\n");
}

}  // namespace probes_left_out_test

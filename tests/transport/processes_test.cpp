// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <sys/mman.h>

#include <chrono>
#include <cstddef>
#include <fstream>
#include <memory>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/run.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/ranks.hpp"

namespace processes_test {

namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir{::opendir("/proc/self/fd"), ::closedir};
  while (::readdir(dir.get()) != nullptr) ++count;
  return count;
}

std::size_t mapped_windows() {
  std::ifstream maps{"/proc/self/maps"};
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:peerbus") != std::string::npos) ++count;
  return count;
}

}  // namespace

TEST_CASE("loopback refuses ranks that are processes, and says what to do") {
  CHECK(peerbus::run_local(2, [](peerbus::bootstrap& boot) {
          test::expect_error(peerbus::errc::unsupported, {"run_threads", "unified_bus"},
                             [&] { peerbus::loopback bus{boot}; });
        }) == 0);
}

TEST_CASE("unified_bus keeps no descriptor, and no memory once a window is gone") {
  CHECK(peerbus::run<peerbus::unified_bus>(3, [](auto& comm) {
          comm.barrier();
          const std::size_t descriptors = open_descriptors();
          const std::size_t mappings = mapped_windows();
          for (int i = 0; i < 50; ++i) {
            auto window = comm.make_window(std::size_t{3} << 20, 2);
            test::expect_equal(open_descriptors(), descriptors, "descriptors with a window");
            test::expect_equal(mapped_windows(), mappings + 3, "mappings with a window");
          }
          test::expect_equal(open_descriptors(), descriptors, "descriptors afterwards");
          test::expect_equal(mapped_windows(), mappings, "mappings afterwards");
          comm.barrier();
        }) == 0);
}

TEST_CASE("run: statuses and kinds of ranks") {
  CHECK(peerbus::run<peerbus::unified_bus>(
            4, [](auto& comm) { return static_cast<int>(comm.rank().index()) * 3; }) == 9);
  CHECK(peerbus::run<peerbus::unified_bus>(2, [](auto& comm) { comm.barrier(); }, {.pin = true}) ==
        0);
  CHECK_THROWS_AS((void)peerbus::run<peerbus::unified_bus>(0, [](auto&) {}), peerbus::error);
}

}  // namespace processes_test

// SPDX-License-Identifier: MIT
#include <cstdint>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/core/cgroup.hpp>
#include <peerbus/transport/detail/memory_limit.hpp>

#include "support/made_up_root.hpp"

namespace cgroup_test {

TEST_CASE("cgroup_memory_limit is the tightest limit of the cgroup and its ancestors") {
  const test::made_up_root kernel;
  const auto expect_limit = [&](std::uint64_t bytes) {
    CHECK(peerbus::cgroup_memory_limit(kernel.path()) == bytes);
  };
  expect_limit(peerbus::no_cgroup_limit);  // Nothing says anything else.
  SUBCASE("version 2") {
    kernel.write("/proc/self/cgroup", "0::/job/step\n");
    kernel.write("/sys/fs/cgroup/job/step/memory.max", "max\n");
    expect_limit(peerbus::no_cgroup_limit);
    kernel.write("/sys/fs/cgroup/job/memory.max", "4194304\n");
    expect_limit(4194304);
    CHECK(peerbus::detail::memory_limit(kernel.path()) == 4194304);  // That of windows, too.
    kernel.write("/sys/fs/cgroup/job/step/memory.max", "1048576\n");
    expect_limit(1048576);
  }
  SUBCASE("version 1") {
    kernel.write("/proc/self/cgroup", "5:cpu:/\n4:memory:/job/step\n0::/other\n");
    kernel.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    expect_limit(peerbus::no_cgroup_limit);
    kernel.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2097152\n");
    kernel.write("/sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", "8388608\n");
    expect_limit(2097152);
  }
  SUBCASE("the path of another namespace") {
    kernel.write("/proc/self/cgroup", "0::/pods/of/the/host\n");
    kernel.write("/sys/fs/cgroup/memory.max", "1048576\n");
    expect_limit(1048576);
  }
}

TEST_CASE("memory_kills counts what the kernel kills in the cgroup, from its making on") {
  const test::made_up_root kernel;
  CHECK(peerbus::memory_kills{kernel.path()}.describe().empty());
  const auto expect_counted = [&](const char* file, const std::string& others) {
    kernel.write(file, others + "oom_kill 3\n");
    const peerbus::memory_kills kills{kernel.path()};
    CHECK(kills.describe().empty());
    kernel.write(file, others + "oom_kill 4\n");
    CHECK(kills.describe() ==
          " (meanwhile the kernel killed 1 process of this cgroup as memory ran out)");
  };
  SUBCASE("version 2") {
    kernel.write("/proc/self/cgroup", "0::/job/step\n");
    kernel.write("/sys/fs/cgroup/job/memory.events", "low 0\noom_kill 70\n");  // Other steps, too.
    expect_counted("/sys/fs/cgroup/job/step/memory.events", "low 0\noom 3\n");
    const peerbus::memory_kills kills{kernel.path()};
    kernel.write("/sys/fs/cgroup/job/memory.max", "4194304\n");
    kernel.write("/sys/fs/cgroup/job/step/memory.events", "oom 6\noom_kill 6\noom_group_kill 1\n");
    CHECK(
        kills.describe() ==
        " (meanwhile the kernel killed 2 processes of this cgroup as memory ran out, limit 4 MiB)");
  }
  SUBCASE("version 1") {
    kernel.write("/proc/self/cgroup", "4:memory:/job\n0::/\n");
    expect_counted("/sys/fs/cgroup/memory/job/memory.oom_control",
                   "oom_kill_disable 9\nunder_oom 0\n");
  }
}

}  // namespace cgroup_test

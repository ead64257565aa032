// SPDX-License-Identifier: MIT
#include "collect.hpp"

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv is POSIX's.

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/cores.hpp>

#include "read_system.hpp"
#include "support/made_up_root.hpp"

namespace collect_test {

using namespace peerbus_doctor;  // NOLINT(google-build-using-namespace)
using test::made_up_root;

namespace {

/// Sets an environment variable, and unsets it at the end.
class variable_set {
 public:
  variable_set(const char* name, const char* value) : name_{name} {
    REQUIRE(::getenv(name) == nullptr);
    ::setenv(name, value, 1);
  }
  variable_set(const variable_set&) = delete;
  variable_set& operator=(const variable_set&) = delete;
  ~variable_set() { ::unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("the kernel's notations are read") {
  CHECK(parse_list("0-3,8\n") == std::vector<std::uint32_t>{0, 1, 2, 3, 8});
  CHECK(parse_list("").empty());
  CHECK(parse_list("x").empty());
  CHECK(leading_number("  42 kB") == 42);
  CHECK(!leading_number("max"));
  CHECK(!leading_number("-1"));
}

TEST_CASE("a machine without any files gives facts without them") {
  const made_up_root root;
  CHECK(collect_host(root.path()).container.empty());
  const auto processor = collect_processor(root.path());
  CHECK(processor.usable_cores == peerbus::usable_core_numbers());
  CHECK(!processor.quota);
  CHECK(processor.nodes.empty());
  CHECK(!processor.kernels.empty());
  const auto memory = collect_memory(root.path());
  CHECK(memory.total == 0);
  CHECK(memory.cgroup_limit == unlimited);
  CHECK(memory.huge_pages_of_windows.empty());
  CHECK(!memory.dev_shm);
  CHECK(collect_rdma(root.path()).listed.empty());
}

TEST_CASE("host, memory, NUMA nodes, caches and devices are read") {
  const made_up_root root;
  root.write("/proc/sys/kernel/hostname", "node7\n");
  root.write("/proc/sys/kernel/ostype", "Linux\n");
  root.write("/proc/sys/kernel/osrelease", "6.1.0\n");
  root.write("/proc/1/cgroup", "0::/kubepods/pod1\n");
  const auto host = collect_host(root.path());
  CHECK(host.name == "node7");
  CHECK(host.kernel == "Linux 6.1.0");
  CHECK(host.container == "kubepods in /proc/1/cgroup");

  root.write("/proc/meminfo",
             "MemTotal:       2048 kB\nMemAvailable:   1024 kB\nHugePages_Total:     4\n"
             "HugePages_Free:      3\n");
  root.write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never deny\n");
  root.write("/sys/kernel/mm/transparent_hugepage/enabled", "none\n");
  const auto memory = collect_memory(root.path());
  CHECK(memory.total == 2 << 20);
  CHECK(memory.available == 1 << 20);
  CHECK(memory.reserved_huge_pages == 4);
  CHECK(memory.free_huge_pages == 3);
  CHECK(memory.huge_pages_of_windows == "advise");
  CHECK(memory.huge_pages_of_process.empty());

  const std::string first = std::to_string(peerbus::usable_core_numbers().at(0));
  root.write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: A processor\n");
  root.write("/sys/devices/system/cpu/online", "0-15\n");
  root.write("/sys/devices/system/node/online", "0-1\n");
  root.write("/sys/devices/system/node/node0/cpulist", "9999\n");
  root.write("/sys/devices/system/node/node1/cpulist", first + "\n");
  const std::string cache = "/sys/devices/system/cpu/cpu" + first + "/cache/index0/";
  root.write(cache + "level", "1\n");
  root.write(cache + "type", "Data\n");
  root.write(cache + "size", "48K\n");
  root.write(cache + "shared_cpu_list", "0,8\n");
  const auto processor = collect_processor(root.path());
  CHECK(processor.model == "A processor");
  CHECK(processor.cores == 16);
  REQUIRE(processor.nodes.size() == 2);
  CHECK(processor.nodes[0].cores.empty());
  CHECK(processor.nodes[1].cores.size() == 1);
  REQUIRE(processor.caches.size() == 1);
  CHECK(processor.caches[0].size == "48K");
  CHECK(processor.caches[0].cores == 2);

  root.write("/sys/class/infiniband/mlx5_1/x", "");
  root.write("/sys/class/infiniband/mlx5_0/x", "");
  CHECK(collect_rdma(root.path()).listed == std::vector<std::string>{"mlx5_0", "mlx5_1"});
}

TEST_CASE("the tightest limit of a cgroup and its ancestors counts, in version 2") {
  const made_up_root root;
  root.write("/proc/self/cgroup", "0::/a/b\n");
  root.write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  root.write("/sys/fs/cgroup/a/b/memory.max", "8388608\n");
  CHECK(!collect_processor(root.path()).quota);
  root.write("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  root.write("/sys/fs/cgroup/a/memory.max", "4194304\n");
  CHECK(collect_processor(root.path()).quota == doctest::Approx(1.5));
  CHECK(collect_memory(root.path()).cgroup_limit == 4194304);
}

TEST_CASE("the limits of a cgroup are read, in version 1") {
  const made_up_root root;
  root.write("/proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/a\n");
  root.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(!collect_processor(root.path()).quota);
  CHECK(collect_memory(root.path()).cgroup_limit == unlimited);
  root.write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n");
  root.write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  root.write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1048576\n");
  CHECK(collect_processor(root.path()).quota == doctest::Approx(0.5));
  CHECK(collect_memory(root.path()).cgroup_limit == 1048576);
}

TEST_CASE("the permission to lock more memory is a capability") {
  const made_up_root root;
  root.write("/proc/self/status", "Name:\tx\nCapEff:\t0000000000003fff\n");
  CHECK(!collect_limits(root.path()).may_exceed_locked_memory);
  root.write("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
  CHECK(collect_limits(root.path()).may_exceed_locked_memory);
}

TEST_CASE("a launcher's variables are read, and a secret is not shown") {
  CHECK(collect_launcher().rank_variable.empty());
  const variable_set rank{"RANK", "1"};
  const variable_set secret{"PEERBUS_SECRET", "0123456789abcdef"};
  auto launcher = collect_launcher();
  CHECK(launcher.rank_variable == "RANK");
  CHECK(launcher.trouble.find("WORLD_SIZE is not set") != std::string::npos);
  CHECK(!launcher.rank);
  CHECK(launcher.variables.size() == 2);
  for (const variable& each : launcher.variables)
    CHECK(each.value.find("0123456789abcdef") == std::string::npos);

  const variable_set size{"WORLD_SIZE", "4"};
  const variable_set here{"LOCAL_WORLD_SIZE", "2"};
  const variable_set address{"MASTER_ADDR", "node0"};
  launcher = collect_launcher();
  CHECK(launcher.trouble.empty());
  CHECK(launcher.rank == 1);
  CHECK(launcher.other_hosts == "LOCAL_WORLD_SIZE is 2 but WORLD_SIZE is 4");
}

}  // namespace collect_test

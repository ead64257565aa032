// SPDX-License-Identifier: MIT
#if __has_include(<nlohmann/json.hpp>)  // Without it there is no peerbus_doctor.

#include "show_facts.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

namespace show_facts_test {

using namespace peerbus_doctor;  // NOLINT(google-build-using-namespace)

namespace {

/// The facts of a machine that has something of everything.
facts of_everything() {
  facts own;
  own.build = {"peerbus 0.1.0, protocol 3, little endian", "g++ 12", {"tcp", "verbs"}};
  own.launcher = {.rank_variable = "RANK",
                  .rank = 1,
                  .variables = {{"RANK", "1"}, {"WORLD_SIZE", "4"}},
                  .trouble = "",
                  .other_hosts = "LOCAL_WORLD_SIZE is 2 but WORLD_SIZE is 4"};
  own.host = {"h1", "Linux 6.1", "/.dockerenv"};
  own.processor = {.model = "a processor",
                   .architecture = "x86_64",
                   .cores = 8,
                   .usable_cores = {0, 1, 2, 5},
                   .quota = 1.5,
                   .nodes = {{0, {0, 1, 2}}, {1, {5}}, {2, {}}},
                   .caches = {{1, "Data", "48K", 1}, {3, "Unified", "32768K", 8}},
                   .kernels = {"scalar", "avx2"}};
  own.memory = {.total = std::uint64_t{64} << 30U,
                .available = std::uint64_t{5} << 29U,
                .cgroup_limit = std::uint64_t{3} << 20U,
                .huge_pages_of_windows = "never",
                .huge_pages_of_process = "madvise",
                .reserved_huge_pages = 4,
                .free_huge_pages = 2,
                .dev_shm = std::uint64_t{1} << 26U};
  own.limits = {.locked_memory = {8 << 20U, unlimited},
                .may_exceed_locked_memory = true,
                .open_files = {1024, unlimited},
                .file_size = {},
                .memory_file_trouble = "no memfd",
                .pidfd_trouble = "",
                .private_memory_trouble = "ptrace_scope"};
  own.rdma.is_built = true;
  own.rdma.listed = {"mlx5_0", "mlx5_1"};
  own.rdma.devices = {{.name = "mlx5_0",
                       .trouble = "",
                       .largest_region = unlimited,
                       .has_atomics = true,
                       .ports = {{.number = 1,
                                  .state = "active",
                                  .is_active = true,
                                  .is_ethernet = true,
                                  .mtu = 4096,
                                  .gids = std::vector<gid>(10, {3, "::ffff:10.0.0.1", "RoCE v2"})},
                                 {.number = 2,
                                  .state = "down",
                                  .is_active = false,
                                  .is_ethernet = false,
                                  .mtu = 2048,
                                  .gids = {}}}},
                      {.name = "mlx5_1",
                       .trouble = "cannot be opened",
                       .largest_region = 0,
                       .has_atomics = false,
                       .ports = {}}};
  own.process = 17;
  return own;
}

/// Those of a machine that tells nothing.
facts of_nothing() {
  facts own;
  own.processor.architecture = "aarch64";
  own.launcher.trouble = "x";
  own.rdma.listed = {"a", "b"};
  return own;
}

}  // namespace

TEST_CASE("every fact is shown, in its place") {
  constexpr std::string_view text =
      "peerbus_doctor: peerbus 0.1.0, protocol 3, little endian; g++ 12; parts: tcp, verbs\n"
      "\n"
      "what rank 0 sees\n"
      "  launcher    found by RANK\n"
      "              RANK=1\n"
      "              WORLD_SIZE=4\n"
      "  host        h1, Linux 6.1\n"
      "  container   /.dockerenv\n"
      "  processor   a processor, 8 cores, usable: 0-2, 5 for the time of 1.50\n"
      "  NUMA        node 0: usable cores 0-2, node 1: usable cores 5, node 2: usable cores none\n"
      "  caches      L1 Data 48K for 1 core, L3 Unified 32768K for 8 cores\n"
      "  kernels     scalar, avx2\n"
      "  memory      64 GiB, available 2.5 GiB, cgroup: 3 MiB\n"
      "  huge pages  of windows: never, of the process: madvise, reserved: 4 (2 free; peerbus "
      "needs none)\n"
      "  /dev/shm    64 MiB (peerbus needs none)\n"
      "  limits      locked memory 8 MiB (hard no limit), open files 1024 (hard no limit), file "
      "size no limit\n"
      "  memfd       no memfd\n"
      "  pidfd       works\n"
      "  vm_readv    ptrace_scope\n"
      "  RDMA        mlx5_0: regions up to no limit, atomics\n"
      "              port 1: active, Ethernet, MTU 4096\n"
      "                GID 3: ::ffff:10.0.0.1 (RoCE v2)\n"
      "                GID 3: ::ffff:10.0.0.1 (RoCE v2)\n"
      "                GID 3: ::ffff:10.0.0.1 (RoCE v2)\n"
      "                GID 3: ::ffff:10.0.0.1 (RoCE v2)\n"
      "                GID 3: ::ffff:10.0.0.1 (RoCE v2)\n"
      "                GID 3: ::ffff:10.0.0.1 (RoCE v2)\n"
      "                GID 3: ::ffff:10.0.0.1 (RoCE v2)\n"
      "                GID 3: ::ffff:10.0.0.1 (RoCE v2)\n"
      "                and 2 more GIDs\n"
      "              port 2: down, InfiniBand, MTU 2048\n"
      "  RDMA        mlx5_1: cannot be opened\n";
  constexpr std::string_view values =
      R"({"process":17,"build":{"library":"peerbus 0.1.0, protocol 3, little endian",)"
      R"("compiler":"g++ 12","parts":["tcp","verbs"]},"launcher":{"rank_variable":"RANK",)"
      R"("rank":1,"variables":{"RANK":"1","WORLD_SIZE":"4"},"trouble":"",)"
      R"("other_hosts":"LOCAL_WORLD_SIZE is 2 but WORLD_SIZE is 4"},"host":{"name":"h1",)"
      R"("kernel":"Linux 6.1","container":"/.dockerenv"},"processor":{"model":"a processor",)"
      R"("architecture":"x86_64","cores":8,"usable_cores":[0,1,2,5],"quota":1.5,)"
      R"("numa_nodes":[{"number":0,"usable_cores":[0,1,2]},{"number":1,"usable_cores":[5]},)"
      R"({"number":2,"usable_cores":[]}],"caches":[{"level":1,"type":"Data","size":"48K",)"
      R"("cores":1},{"level":3,"type":"Unified","size":"32768K","cores":8}],"kernels":["scalar",)"
      R"("avx2"]},"memory":{"total":68719476736,"available":2684354560,"cgroup_limit":3145728,)"
      R"("huge_pages_of_windows":"never","huge_pages_of_process":"madvise",)"
      R"("reserved_huge_pages":4,"free_huge_pages":2,"dev_shm":67108864},)"
      R"("limits":{"locked_memory":{"soft":8388608,"hard":null},"may_exceed_locked_memory":true,)"
      R"("open_files":{"soft":1024,"hard":null},"file_size":{"soft":null,"hard":null},)"
      R"("memory_file_trouble":"no memfd","pidfd_trouble":"",)"
      R"("private_memory_trouble":"ptrace_scope"},"rdma":{"built":true,)"
      R"("listed":["mlx5_0","mlx5_1"],"devices":[{"name":"mlx5_0","trouble":"",)"
      R"("largest_region":18446744073709551615,"atomics":true,"ports":[{"number":1,)"
      R"("state":"active","link_layer":"Ethernet","mtu":4096,"gids":[{"index":3,)"
      R"("address":"::ffff:10.0.0.1","type":"RoCE v2"},{"index":3,"address":"::ffff:10.0.0.1",)"
      R"("type":"RoCE v2"},{"index":3,"address":"::ffff:10.0.0.1","type":"RoCE v2"},{"index":3,)"
      R"("address":"::ffff:10.0.0.1","type":"RoCE v2"},{"index":3,"address":"::ffff:10.0.0.1",)"
      R"("type":"RoCE v2"},{"index":3,"address":"::ffff:10.0.0.1","type":"RoCE v2"},{"index":3,)"
      R"("address":"::ffff:10.0.0.1","type":"RoCE v2"},{"index":3,"address":"::ffff:10.0.0.1",)"
      R"("type":"RoCE v2"},{"index":3,"address":"::ffff:10.0.0.1","type":"RoCE v2"},{"index":3,)"
      R"("address":"::ffff:10.0.0.1","type":"RoCE v2"}]},{"number":2,"state":"down",)"
      R"("link_layer":"InfiniBand","mtu":2048,"gids":[]}]},{"name":"mlx5_1",)"
      R"("trouble":"cannot be opened","largest_region":0,"atomics":false,"ports":[]}]}})";
  const shown_facts shown = show(of_everything());
  CHECK(shown.text == text);
  CHECK(shown.values.dump() == values);
}

TEST_CASE("facts that are not known") {
  constexpr std::string_view text =
      "peerbus_doctor: ; ; parts: none\n"
      "\n"
      "what rank 0 sees\n"
      "  launcher    none\n"
      "  host        , \n"
      "  container   no sign of one\n"
      "  processor   aarch64, 0 cores, usable: none\n"
      "  NUMA        not known\n"
      "  caches      not known\n"
      "  kernels     none\n"
      "  memory      0 bytes, available 0 bytes, cgroup: no limit\n"
      "  huge pages  of windows: , of the process: , reserved: 0 (0 free; peerbus needs none)\n"
      "  /dev/shm    none (peerbus needs none)\n"
      "  limits      locked memory no limit (hard no limit), open files no limit (hard no limit), "
      "file size no limit\n"
      "  memfd       works\n"
      "  pidfd       works\n"
      "  vm_readv    works\n"
      "  RDMA        not looked at, as this program was built without libibverbs; in "
      "/sys/class/infiniband: a, b\n";
  constexpr std::string_view values =
      R"({"process":0,"build":{"library":"","compiler":"","parts":[]},)"
      R"("launcher":{"rank_variable":"","rank":null,"variables":{},"trouble":"x",)"
      R"("other_hosts":""},"host":{"name":"","kernel":"","container":""},"processor":{"model":"",)"
      R"("architecture":"aarch64","cores":0,"usable_cores":[],"quota":null,"numa_nodes":[],)"
      R"("caches":[],"kernels":[]},"memory":{"total":0,"available":0,"cgroup_limit":null,)"
      R"("huge_pages_of_windows":"","huge_pages_of_process":"","reserved_huge_pages":0,)"
      R"("free_huge_pages":0,"dev_shm":null},"limits":{"locked_memory":{"soft":null,"hard":null},)"
      R"("may_exceed_locked_memory":false,"open_files":{"soft":null,"hard":null},)"
      R"("file_size":{"soft":null,"hard":null},"memory_file_trouble":"","pidfd_trouble":"",)"
      R"("private_memory_trouble":""},)"
      R"("rdma":{"built":false,"listed":["a","b"],"devices":[]}})";
  const shown_facts shown = show(of_nothing());
  CHECK(shown.text == text);
  CHECK(shown.values.dump() == values);

  facts without_devices = of_nothing();
  without_devices.rdma.is_built = true;
  CHECK(show(without_devices).text.ends_with("  RDMA        no device\n"));
}

}  // namespace show_facts_test

#endif

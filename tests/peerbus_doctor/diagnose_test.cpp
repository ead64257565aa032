// SPDX-License-Identifier: MIT
#include "diagnose.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/error.hpp>

#include "describe.hpp"
#include "payload.hpp"

namespace diagnose_test {

using namespace peerbus_doctor;  // NOLINT(google-build-using-namespace)

namespace {

/// The facts of a machine with nothing to find.
facts healthy() {
  facts found;
  found.processor = {.model = "a processor",
                     .architecture = "x86_64",
                     .cores = 8,
                     .usable_cores = {0, 1, 2, 3, 4, 5, 6, 7},
                     .quota = {},
                     .nodes = {{0, {0, 1, 2, 3, 4, 5, 6, 7}}},
                     .caches = {},
                     .kernels = {"scalar", "avx2"}};
  found.memory.total = std::uint64_t{64} << 30U;
  found.memory.available = std::uint64_t{32} << 30U;
  found.memory.huge_pages_of_windows = "advise";
  return found;
}

device healthy_device() {
  return {.name = "mlx5_0",
          .trouble = "",
          .largest_region = unlimited,
          .has_atomics = true,
          .ports = {{.number = 1,
                     .state = "active",
                     .is_active = true,
                     .is_ethernet = true,
                     .mtu = 4096,
                     .gids = {{3, "::ffff:10.0.0.1", "RoCE v2"}}}}};
}

/// Returns the findings that are not ok.
std::vector<finding> complaints(std::vector<finding> all) {
  std::erase_if(all, [](const finding& each) { return each.grade == level::ok; });
  return all;
}

struct expected {
  level grade;
  std::string_view topic;
  std::string_view text;    ///< a part of it
  std::string_view remedy;  ///< a part of it
};

/// Checks that there is one complaint, and which.
void check_complaint(const std::vector<finding>& all, const expected& complaint) {
  const auto found = complaints(all);
  REQUIRE(found.size() == 1);
  CAPTURE(found[0].text);
  CAPTURE(found[0].remedy);
  CHECK(found[0].grade == complaint.grade);
  CHECK(found[0].topic == complaint.topic);
  CHECK(found[0].text.find(complaint.text) != std::string::npos);
  CHECK(found[0].remedy.find(complaint.remedy) != std::string::npos);
}

const purpose over_unified_bus{"unified_bus", 8, false};
const purpose over_verbs{"verbs", 8, true};

}  // namespace

TEST_CASE("nothing is found where nothing is wrong") {
  const auto all = diagnose(healthy(), over_unified_bus);
  CHECK(complaints(all).empty());
  CHECK(all.size() >= 5);
  for (const finding& each : all) CHECK(each.remedy.empty());
}

TEST_CASE("each defect of a machine is found, with what mends it") {
  struct row {
    void (*damage)(facts&);
    purpose wanted;
    expected complaint;
  };
  const std::vector<row> rows{
      {[](facts& f) { f.launcher.trouble = "WORLD_SIZE is not set"; },
       over_unified_bus,
       {level::problem, "launcher", "WORLD_SIZE is not set", "set RANK and WORLD_SIZE"}},
      {[](facts& f) { f.processor.quota = 1.5; },
       over_unified_bus,
       {level::warning, "processor", "the time of 1.5 cores on 8", "--cpuset-cpus"}},
      {[](facts& f) { f.processor.nodes = {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}}; },
       over_unified_bus,
       {level::note, "processor", "NUMA nodes 0, 1", "topology::placement"}},
      {[](facts& f) { f.processor.kernels = {"scalar"}; },
       over_unified_bus,
       {level::warning, "processor", "without vector instructions", "-cpu host"}},
      {[](facts& f) { f.memory.huge_pages_of_windows = "never"; },
       over_unified_bus,
       {level::note, "memory", "'never'", "echo advise > /sys/kernel/mm"}},
      {[](facts& f) { f.memory.cgroup_limit = std::uint64_t{256} << 20U; },
       over_unified_bus,
       {level::warning, "memory", "256 MiB", "docker run --memory"}},
      {[](facts& f) { f.memory.available = std::uint64_t{100} << 20U; },
       over_unified_bus,
       {level::warning, "memory", "only 100 MiB", "end other programs"}},
      {[](facts& f) { f.limits.locked_memory = {std::uint64_t{8} << 20U, unlimited}; },
       over_unified_bus,
       {level::note, "limits", "only 8 MiB may be locked", "ulimit -l unlimited"}},
      {[](facts& f) { f.limits.open_files = {1024, 100}; },
       over_unified_bus,
       {level::warning, "limits", "100 files may be open, expected 288", "ulimit -n 288"}},
      {[](facts& f) { f.limits.file_size.soft = 4096; },
       over_unified_bus,
       {level::warning, "limits", "at most 4 KiB", "ulimit -f unlimited"}},
      {[](facts& f) { f.limits.memory_file_trouble = "Function not implemented"; },
       over_unified_bus,
       {level::problem, "limits", "no memory files", "memfd_create in the seccomp filter"}},
      {[](facts& f) { f.limits.pidfd_trouble = "Operation not permitted"; },
       over_unified_bus,
       {level::warning, "limits", "cannot be watched: Operation not permitted", "Linux 5.3"}},
      {[](facts& f) { f.limits.private_memory_trouble = "Operation not permitted"; },
       over_unified_bus,
       {level::note, "limits", "private memory: Operation not permitted", "permit_private_reads"}},
      {[](facts& f) { f.rdma.listed = {"mlx5_0"}; },
       over_unified_bus,
       {level::note, "rdma", "built without libibverbs", "libibverbs-dev"}},
  };
  for (const row& each : rows) {
    facts found = healthy();
    each.damage(found);
    check_complaint(diagnose(found, each.wanted), each.complaint);
  }
}

TEST_CASE("each defect of an RDMA device is found, with what mends it") {
  struct row {
    void (*damage)(device&);
    std::vector<expected> all;
  };
  const expected unusable{level::problem, "rdma", "no RDMA device has a usable port", "rdma link"};
  const std::vector<row> rows{
      {[](device& d) { d.trouble = "Permission denied"; },
       {{level::warning, "rdma", "mlx5_0 cannot be opened: Permission denied", "--device="},
        unusable}},
      {[](device& d) { d.ports[0].is_active = false, d.ports[0].state = "down"; },
       {{level::note, "rdma", "mlx5_0 port 1 is down: its state is down", "ip link set"},
        unusable}},
      {[](device& d) { d.ports[0].is_active = false, d.ports[0].is_ethernet = false; },
       {{level::note, "rdma", "port 1 is down", "subnet manager"}, unusable}},
      {[](device& d) { d.ports[0].gids.clear(), d.ports[0].is_ethernet = false; },
       {{level::warning, "rdma", "no GID", "ip addr add"}, unusable}},
      {[](device& d) { d.ports[0].gids[0].type = "RoCE v1"; },
       {{level::note, "rdma", "no RoCE v2 address", "ip addr add"}}},
      {[](device& d) { d.ports[0].mtu = 1024; },
       {{level::note, "rdma", "at most 1024 bytes", "mtu 4200"}}},
      {[](device& d) { d.has_atomics = false; },
       {{level::note, "rdma", "no atomics", "none is needed"}}},
  };
  for (const row& each : rows) {
    facts found = healthy();
    found.rdma = {.is_built = true, .listed = {"mlx5_0"}, .devices = {healthy_device()}};
    CHECK(complaints(diagnose(found, over_verbs)).empty());
    each.damage(found.rdma.devices[0]);
    const auto complained = complaints(diagnose(found, over_verbs));
    REQUIRE(complained.size() == each.all.size());
    for (std::size_t i = 0; i < complained.size(); ++i)
      check_complaint({complained[i]}, each.all[i]);
  }
}

TEST_CASE("verbs without a device, and without enough locked memory, are problems") {
  facts found = healthy();
  found.rdma.is_built = true;
  CHECK(complaints(diagnose(found, over_unified_bus)).empty());
  check_complaint(diagnose(found, over_verbs),
                  {level::problem, "rdma", "this host has no RDMA device", "rdma link add rxe0"});
  found.rdma.listed = {"mlx5_0"};
  check_complaint(diagnose(found, over_verbs),
                  {level::problem, "rdma", "the kernel has mlx5_0", "ibverbs-providers"});

  found.rdma.devices = {healthy_device()};
  found.limits.locked_memory = {std::uint64_t{8} << 20U, std::uint64_t{8} << 20U};
  check_complaint(diagnose(found, over_verbs),
                  {level::problem, "limits", "only 8 MiB may be locked", "memlock=-1"});
  found.limits.may_exceed_locked_memory = true;
  CHECK(complaints(diagnose(found, over_verbs)).empty());
}

TEST_CASE("the limit of open files that counts is the launcher's, or the one that can be had") {
  facts found = healthy();
  found.limits.open_files = {100, 4096};
  CHECK(complaints(diagnose(found, over_unified_bus)).empty());
  check_complaint(diagnose(found, {"unified_bus", 8, true}),
                  {level::warning, "limits", "100 files may be open", "ulimit -n 288"});
}

TEST_CASE("ranks that share cores, and ranks on several hosts, are found") {
  const std::vector<member> crowd(8, {.host = "node0", .process = 1, .cores = {3}, .quota = {}});
  check_complaint(
      diagnose_group(crowd, over_unified_bus),
      {level::warning, "group", "8 ranks on node0 share 1 core", "at most one rank per core"});

  std::vector<member> pinned;
  for (std::uint32_t rank = 0; rank < 8; ++rank) pinned.push_back({"node0", 1, {rank}, {}});
  CHECK(complaints(diagnose_group(pinned, over_unified_bus)).empty());
  for (member& each : pinned) each.quota = 2;
  check_complaint(diagnose_group(pinned, over_unified_bus),
                  {level::warning, "group", "share 2 cores", "docker run"});

  const std::vector<member> apart{{"node0", 1, {0}, {}}, {"node1", 1, {0}, {}}};
  for (const char* transport : {"verbs", "fabric", "planes"})
    CHECK(complaints(diagnose_group(apart, {transport, 8, true})).empty());
  check_complaint(
      diagnose_group(apart, over_unified_bus),
      {level::problem, "group", "2 hosts, which unified_bus", "--transport fabric or planes"});
}

TEST_CASE("pairs that failed are named by their error, and pairs that were not tried are counted") {
  pair_matrix pairs{3};
  for (pair_result& each : pairs.results) each.is_tried = true;
  auto all = diagnose_pairs(pairs);
  CHECK(complaints(all).empty());
  REQUIRE(all.size() == 1);
  CHECK(all[0].text == "6 pairs: every put arrived unchanged");

  pairs.at(0, 2).error = "timed out";
  pairs.at(1, 2).error = "timed out";
  check_complaint(diagnose_pairs(pairs),
                  {level::problem, "pairs", "ranks 0 to 2, 1 to 2: timed out", "with them alone"});
  pairs.at(2, 0).is_tried = false;
  all = complaints(diagnose_pairs(pairs));
  REQUIRE(all.size() == 2);
  CHECK(all[1].text == "1 pair was not tried, as a rank did not answer");
  pairs.ended_by = "rank 2 died";
  all = complaints(diagnose_pairs(pairs));
  REQUIRE(all.size() == 2);
  CHECK(all[1].text == "rank 2 died; 1 pair was not tried");
  CHECK(complaints(diagnose_pairs(pair_matrix{1})).empty());
}

TEST_CASE("a failure of set-up is a problem, and each code has a remedy") {
  for (std::uint32_t code = 1; code <= 11; ++code) {
    const finding found = diagnose_failure(static_cast<peerbus::errc>(code), "rank 2 did not come");
    CHECK(found.grade == level::problem);
    CHECK(found.text.starts_with("rank 2 did not come ["));
    CHECK(!found.remedy.empty());
  }
}

TEST_CASE("equal findings of several ranks become one") {
  const finding slow{level::note, "memory", "slow", "mend", {}};
  const finding bad{level::problem, "limits", "bad", "mend", {}};
  const auto all = merge({{slow}, {bad, slow}, {slow}});
  REQUIRE(all.size() == 2);
  CHECK(all[0].text == "slow");
  CHECK(all[0].ranks == std::vector<std::size_t>{0, 1, 2});
  CHECK(all[1].ranks == std::vector<std::size_t>{1});
}

TEST_CASE("numbers and bytes are described in few words") {
  CHECK(describe_numbers({}).empty());
  CHECK(describe_numbers({0, 1, 2, 3, 8}) == "0-3, 8");
  CHECK(describe_numbers({4, 5}) == "4, 5");
  CHECK(describe_bytes(0) == "0 bytes");
  CHECK(describe_bytes(std::uint64_t{1000} << 20U) == "1000 MiB");
  CHECK(describe_bytes(std::uint64_t{3} << 29U) == "1.5 GiB");
  CHECK(describe_bytes(unlimited) == "no limit");
}

TEST_CASE("a payload is told from every other one") {
  std::array<std::byte, 64> bytes{};
  CHECK(!is_payload(bytes, 7));
  write_payload(bytes, 7);
  CHECK(is_payload(bytes, 7));
  CHECK(!is_payload(bytes, 8));
  for (std::byte& each : bytes) {
    each ^= std::byte{1};
    CHECK(!is_payload(bytes, 7));
    each ^= std::byte{1};
  }
}

}  // namespace diagnose_test

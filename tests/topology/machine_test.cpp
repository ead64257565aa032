// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/cores.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/topology/cpu_place.hpp>
#include <peerbus/topology/machine.hpp>

namespace machine_test {

namespace {

using peerbus::topology::cpu_place;
using peerbus::topology::machine;
using peerbus::topology::unknown;

std::string text_of(const machine& where) {
  std::string all;
  for (const std::string& line : where.describe()) all += line + '\n';
  return all;
}

bool says(const machine& where, const std::string& words) {
  return text_of(where).find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("cpus know their core, cache, node and package") {
  const machine where = machine::synthetic("package:2 numa:2 l3:1 core:4 pu:2");
  REQUIRE(where.cpus().size() == 32);
  CHECK(where.cpus()[0] == cpu_place{.cpu = 0, .core = 0, .l3 = 0, .node = 0, .package = 0});
  CHECK(where.cpus()[27] == cpu_place{.cpu = 27, .core = 26, .l3 = 24, .node = 3, .package = 16});
  CHECK(where.nodes() == 4);
  CHECK_FALSE(where.is_this_one());
  CHECK(says(where, "not this one"));
  CHECK(says(where, "2 packages, 4 NUMA nodes, 4 L3 caches, 16 cores, 32 cpus"));
}

TEST_CASE("a machine that shows neither caches nor packages is usable, and said to be flat") {
  const machine where = machine::synthetic("pu:3");
  REQUIRE(where.cpus().size() == 3);
  CHECK(where.cpus()[2].cpu == 2);
  CHECK(where.cpus()[2].core == 2);
  CHECK(where.cpus()[2].l3 == unknown);
  CHECK(where.nodes() == 1);
  CHECK(says(where, "flat: no caches are shown"));
}

TEST_CASE("cpus that hwloc does not know count as cores of no known node") {
  const machine where = machine::synthetic("core:2 pu:1");
  const auto cpus = where.cpus_of({1, 77});
  REQUIRE(cpus.size() == 2);
  CHECK(cpus[0] == where.cpus()[1]);
  CHECK(cpus[1] == cpu_place{.cpu = 77, .core = 77});
}

TEST_CASE("distances between nodes and cpus that are denied, as a described machine has them") {
  // Two nodes of two cores; the container may not use cpu 3.
  const machine where = machine::from_xml(R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0x7" complete_cpuset="0xf" allowed_cpuset="0x7"
  nodeset="0x3" complete_nodeset="0x3" allowed_nodeset="0x3" gp_index="1">
  <object type="Package" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1"
   complete_nodeset="0x1" gp_index="2">
   <object type="NUMANode" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1"
    complete_nodeset="0x1" gp_index="3" local_memory="1073741824"/>
   <object type="Core" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1"
    complete_nodeset="0x1" gp_index="4">
    <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1"
     complete_nodeset="0x1" gp_index="5"/>
   </object>
   <object type="Core" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1"
    complete_nodeset="0x1" gp_index="6">
    <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1"
     complete_nodeset="0x1" gp_index="7"/>
   </object>
  </object>
  <object type="Package" os_index="1" cpuset="0x4" complete_cpuset="0xc" nodeset="0x2"
   complete_nodeset="0x2" gp_index="8">
   <object type="NUMANode" os_index="1" cpuset="0x4" complete_cpuset="0xc" nodeset="0x2"
    complete_nodeset="0x2" gp_index="9" local_memory="1073741824"/>
   <object type="Core" os_index="0" cpuset="0x4" complete_cpuset="0x4" nodeset="0x2"
    complete_nodeset="0x2" gp_index="10">
    <object type="PU" os_index="2" cpuset="0x4" complete_cpuset="0x4" nodeset="0x2"
     complete_nodeset="0x2" gp_index="11"/>
   </object>
  </object>
 </object>
 <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
  <indexes length="4">0 1 </indexes>
  <u64values length="12">10 21 21 10 </u64values>
 </distances2>
</topology>
)");
  CHECK(where.cpus().size() == 3);
  CHECK(where.distances().between(0, 1) == 21);
  CHECK(where.distances().between(1, 1) == 10);
  CHECK(where.distances().between(0, 5) == 0);
  CHECK(where.cpus()[2].package == 2);
  CHECK(says(where, "1 more cpu that this process may not use"));
  CHECK(says(where, "distance from node 0: 10 21"));
}

TEST_CASE("what hwloc does not understand is refused by name") {
  try {
    (void)machine::synthetic("pudding:3");
    FAIL("accepted");
  } catch (const peerbus::error& caught) {
    CHECK(caught.code() == peerbus::errc::invalid_argument);
    CHECK(std::string{caught.what()}.find("pudding:3") != std::string::npos);
  }
  CHECK_THROWS_AS((void)machine::from_xml("<nonsense"), peerbus::error);
}

TEST_CASE("this machine has all cpus that this process may use") {
  const machine where = machine::here();
  CHECK(where.is_this_one());
  for (const std::uint32_t number : peerbus::usable_core_numbers())
    CHECK(std::count_if(where.cpus().begin(), where.cpus().end(),
                        [&](const cpu_place& place) { return place.cpu == number; }) == 1);
  CHECK_FALSE(where.describe().empty());
  MESSAGE(text_of(where));
}

}  // namespace machine_test

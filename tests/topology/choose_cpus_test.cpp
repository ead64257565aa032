// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/topology/choose_cpus.hpp>
#include <peerbus/topology/cpu_place.hpp>
#include <peerbus/topology/machine.hpp>

namespace choose_cpus_test {

namespace {

using peerbus::topology::choose_cpus;
using peerbus::topology::cpu_place;
using peerbus::topology::machine;
using numbers = std::vector<std::uint32_t>;

numbers of(const std::vector<cpu_place>& places, std::uint32_t cpu_place::* member) {
  numbers result;
  for (const cpu_place& place : places) result.push_back(place.*member);
  return result;
}

numbers chosen(const std::string& description, std::size_t ranks) {
  return of(choose_cpus(machine::synthetic(description).cpus(), ranks), &cpu_place::cpu);
}

const char* const two_by_two = "package:2 numa:2 core:4 pu:2";  // cpu = 2 * core + thread

}  // namespace

TEST_CASE("one flat node: a core for each rank, in their order") {
  CHECK(chosen("core:4 pu:1", 1) == numbers{0});
  CHECK(chosen("core:4 pu:1", 4) == numbers{0, 1, 2, 3});
}

TEST_CASE("more ranks than cpus are not placed") {
  CHECK(chosen("core:4 pu:1", 5).empty());
  CHECK(chosen(two_by_two, 33).empty());
}

TEST_CASE("ranks are dealt evenly among NUMA nodes, neighbours together") {
  CHECK(chosen(two_by_two, 2) == numbers{0, 8});
  CHECK(chosen(two_by_two, 4) == numbers{0, 8, 16, 24});
  CHECK(chosen(two_by_two, 8) == numbers{0, 2, 8, 10, 16, 18, 24, 26});
  // The remainder goes to the first nodes.
  CHECK(chosen(two_by_two, 6) == numbers{0, 2, 8, 10, 16, 24});
}

TEST_CASE("ranks are dealt evenly among the L3 caches of a node") {
  CHECK(chosen("numa:1 l3:2 core:4 pu:1", 4) == numbers{0, 1, 4, 5});
}

TEST_CASE("second hardware threads come last") {
  const auto cores = machine::synthetic(two_by_two).cpus();
  const auto full = choose_cpus(cores, 16);
  CHECK(of(full, &cpu_place::cpu) == of(full, &cpu_place::core));

  const auto more = choose_cpus(cores, 18);
  const auto used = of(more, &cpu_place::core);
  CHECK(std::set<std::uint32_t>(used.begin(), used.end()).size() == 16);
  CHECK(of(more, &cpu_place::cpu) ==
        numbers{0, 1, 2, 4, 6, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30});

  auto all = of(choose_cpus(cores, 32), &cpu_place::cpu);
  CHECK(std::set<std::uint32_t>(all.begin(), all.end()).size() == 32);
}

TEST_CASE("cores are used before threads even where nodes are unlike") {
  // Node 0 has cores 0 and 1 with two threads each, node 1 has four cores of one thread.
  std::vector<cpu_place> cpus;
  for (std::uint32_t cpu = 0; cpu < 4; ++cpu)
    cpus.push_back({.cpu = cpu, .core = cpu / 2 * 2, .l3 = 0, .node = 0, .package = 0});
  for (std::uint32_t cpu = 4; cpu < 8; ++cpu)
    cpus.push_back({.cpu = cpu, .core = cpu, .l3 = 4, .node = 1, .package = 4});
  CHECK(of(choose_cpus(cpus, 4), &cpu_place::cpu) == numbers{0, 2, 4, 5});
  CHECK(of(choose_cpus(cpus, 6), &cpu_place::cpu) == numbers{0, 2, 4, 5, 6, 7});
  CHECK(of(choose_cpus(cpus, 7), &cpu_place::cpu) == numbers{0, 1, 2, 4, 5, 6, 7});
}

TEST_CASE("the choice depends on the set of cpus, not on its order") {
  auto cpus = machine::synthetic(two_by_two).cpus();
  const auto expected = choose_cpus(cpus, 7);
  std::mt19937 random{7};
  for (int i = 0; i < 20; ++i) {
    std::shuffle(cpus.begin(), cpus.end(), random);
    CHECK(choose_cpus(cpus, 7) == expected);
  }
}

TEST_CASE("a mask restricts the choice, and what is left is still spread") {
  const machine where = machine::synthetic(two_by_two);
  // Both threads of two cores of node 0, one thread of one core of node 3.
  const auto cpus = where.cpus_of({0, 1, 2, 3, 30});
  CHECK(of(choose_cpus(cpus, 2), &cpu_place::cpu) == numbers{0, 30});
  CHECK(of(choose_cpus(cpus, 3), &cpu_place::cpu) == numbers{0, 2, 30});
  CHECK(of(choose_cpus(cpus, 4), &cpu_place::cpu) == numbers{0, 1, 2, 30});
  CHECK(choose_cpus(cpus, 6).empty());
}

TEST_CASE("cpus of which nothing is known are cores") {
  CHECK(of(choose_cpus({{.cpu = 5}, {.cpu = 3}, {.cpu = 9}}, 2), &cpu_place::cpu) == numbers{3, 5});
}

}  // namespace choose_cpus_test

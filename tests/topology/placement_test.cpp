// SPDX-License-Identifier: MIT
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/pin.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/topology/bind.hpp>
#include <peerbus/topology/cpu_place.hpp>
#include <peerbus/topology/machine.hpp>
#include <peerbus/topology/placement.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/ranks.hpp"

namespace placement_test {

namespace {

using peerbus::bootstrap;
using peerbus::topology::machine;
using peerbus::topology::placement;

bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

struct policy {
  int mode = -1;
  std::vector<unsigned long> nodes = std::vector<unsigned long>(64);
};

/// Returns the kernel's policy for the memory at `address`, or nothing if the kernel does not
/// report it.
std::optional<policy> policy_at(void* address) {
  policy found;
  if (::syscall(SYS_get_mempolicy, &found.mode, found.nodes.data(),
                found.nodes.size() * 8 * sizeof(unsigned long), address, MPOL_F_ADDR) != 0)
    return std::nullopt;
  return found;
}

bool prefers(const policy& found, std::uint32_t node) {
  constexpr int preferred_many = 5;  // Some systems' headers are too old to define it.
  const auto bit = found.nodes[node / (8 * sizeof(unsigned long))] >> (node % 64) & 1U;
  return (found.mode == MPOL_PREFERRED || found.mode == MPOL_BIND ||
          found.mode == preferred_many) &&
         bit == 1;
}

/// Makes hwloc report two nodes of one cpu each, as if that were this machine.
void pretend_two_nodes() {
  ::setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
  ::setenv("HWLOC_THISSYSTEM", "1", 1);
}

}  // namespace

TEST_CASE("a bound part of a memory file is bound for all who map it") {
  const machine where = machine::here();
  REQUIRE_FALSE(where.cpus().empty());
  const std::uint32_t node = where.cpus().front().node;
  if (node == peerbus::topology::unknown) {
    MESSAGE("not tested: this machine shows no NUMA node");
    return;
  }
  constexpr std::size_t bytes = std::size_t{4} << 20;
  const auto file = peerbus::make_memory_file("peerbus-test", bytes);
  const auto owner = peerbus::mapping::shared_file(file.get(), bytes);
  const auto peer = peerbus::mapping::shared_file(file.get(), bytes);
  const auto before = policy_at(peer.data() + bytes / 2);
  const auto problem = peerbus::topology::bind_memory(where, {owner.data(), owner.size()}, node);
  if (!before || problem) {
    MESSAGE("not tested: the system does not let memory be bound: " << problem.value_or("unknown"));
    return;
  }
  CHECK_FALSE(prefers(*before, node));
  CHECK(prefers(policy_at(owner.data()).value(), node));
  CHECK(prefers(policy_at(peer.data() + bytes / 2).value(), node));
  peer.data()[bytes / 2] = std::byte{1};
  CHECK(prefers(policy_at(peer.data() + bytes / 2).value(), node));
}

TEST_CASE("memory that cannot be bound is a reason in words") {
  const auto memory = peerbus::mapping::anonymous(4096);
  const std::span<std::byte> part{memory.data(), memory.size()};
  const auto foreign = bind_memory(machine::synthetic("numa:2 pu:1"), part, 1);
  CHECK(foreign == "hwloc was given another machine");
  const auto absent = bind_memory(machine::here(), part, 999);
  REQUIRE(absent.has_value());
  CHECK(has(*absent, "node 999: "));
}

TEST_CASE("ranks get a core each, or are told that there are too few") {
  const std::size_t cpus = peerbus::usable_cores();
  CHECK(peerbus::run_local(cpus, [&](bootstrap& boot) {
          const placement here{boot};
          if (!here.pinned()) {
            test::expect(has(here.describe(), "not pinned: cpu "), here.describe());
            return;
          }
          const auto own_cpu = here.places()[boot.rank().index()].cpu;
          const auto usable = peerbus::usable_core_numbers();
          test::expect_equal(usable.size(), std::size_t{1}, "cpus of a pinned rank");
          test::expect_equal(usable[0], own_cpu, "the cpu of a pinned rank");
          for (std::size_t r = 0; r < boot.size(); ++r)
            test::expect((here.places()[r].cpu == own_cpu) == (r == boot.rank().index()),
                         "a cpu for each rank");
        }) == 0);
  CHECK(peerbus::run_local(cpus + 1, [&](bootstrap& boot) {
          const placement here{boot};
          test::expect(!here.pinned(), "no rank to be pinned");
          test::expect_equal(peerbus::usable_core_numbers().size(), cpus, "cpus of a rank");
          test::expect(has(here.describe(), "not pinned: " + std::to_string(cpus + 1) + " ranks"),
                       here.describe());
        }) == 0);
  CHECK(peerbus::run_local(2, [](bootstrap& boot) {
          const auto alone = boot.subgroup({boot.rank()});
          const placement here{*alone};
          test::expect(has(here.describe(), "not pinned: 2 ranks share this host"),
                       here.describe());
        }) == 0);
}

TEST_CASE("ranks that a launcher has placed stay there") {
  const auto usable = peerbus::usable_core_numbers();
  if (usable.size() < 2) {
    MESSAGE("not tested: one cpu");
    return;
  }
  CHECK(peerbus::run_local(2, [&](bootstrap& boot) {
          // Pins the ranks crosswise, because placement would never do so.
          peerbus::detail::pin_to_core(usable[1 - boot.rank().index()]);
          const placement here{boot};
          test::expect(!here.pinned(), "no rank to be pinned anew");
          test::expect_equal(here.places()[0].cpu, usable[1], "the cpu of rank 0");
          test::expect_equal(here.places()[1].cpu, usable[0], "the cpu of rank 1");
          test::expect(has(here.describe(), "launcher"), here.describe());
        }) == 0);
}

TEST_CASE("on another machine the plan is made and nothing done") {
  CHECK(peerbus::run_threads(4, [](bootstrap& boot) {
          const std::size_t before = peerbus::usable_cores();
          const placement here{boot, machine::synthetic("package:2 numa:1 l3:1 core:4 pu:2")};
          test::expect(!here.pinned(), "no rank to be pinned");
          test::expect_equal(peerbus::usable_cores(), before, "cpus of the rank");
          const auto& places = here.places();
          test::expect_equal(places.size(), std::size_t{4}, "places");
          test::expect(places[1].cpu == 2 && places[2].cpu == 8, "ranks on both packages");
          test::expect(here.peer_order().front() == peerbus::rank_id{boot.rank().index() ^ 1U},
                       "the rank of the same package first");

          peerbus::communicator comm{peerbus::loopback{boot, {}, here.on_memory()}};
          comm.order_peers(here.peer_order());
          comm.barrier();
          test::expect(has(here.memory(), "another machine"), here.memory());
        }) == 0);
}

TEST_CASE("windows lie on their rank's node, and where that fails they work all the same") {
  const auto usable = peerbus::usable_core_numbers();
  if (usable.size() < 2 || usable[0] != 0 || usable[1] != 1) {
    MESSAGE("not tested: cpus 0 and 1 are not there for this process");
    return;
  }
  CHECK(peerbus::run_local(2, [](bootstrap& boot) {
          pretend_two_nodes();
          const placement here{boot};
          test::expect_equal(here.where().nodes(), std::size_t{2}, "nodes");
          const auto node = static_cast<std::uint32_t>(boot.rank().index());
          test::expect_equal(here.places()[node].node, node, "the node of the rank");
          peerbus::communicator comm{peerbus::unified_bus{boot, {}, here.on_memory()}};
          auto window = comm.make_window(std::size_t{4} << 20, 1);
          // This write is the first touch of the peer's page.
          window.template peer<std::byte>(peerbus::rank_id{1U - node})[5000] = std::byte{7};
          comm.barrier();
          test::expect(window.local()[5000] == std::byte{7}, "the peer's byte");

          const std::string description = here.memory();
          test::expect(has(description, "memory of 2 windows, "), description);
          const auto kept = policy_at(window.local().data() + 5000);
          if (has(description, "bound to node"))
            test::expect(kept && prefers(*kept, node), "the kernel to know of node ", node);
          else  // This machine may have one node only, and containers may forbid it.
            test::expect(has(description, "not bound: node " + std::to_string(node) + ": ") &&
                             (node == 1 || has(description, "permitted")),
                         description);
        }) == 0);
}

TEST_CASE("on several nodes, pages that a peer touches first lie on their owner's node") {
  if (machine::here().nodes() == 1 || peerbus::usable_cores() < 2) {
    MESSAGE("not tested: one node or one cpu");
    return;
  }
  CHECK(peerbus::run_local(2, [](bootstrap& boot) {
          const placement here{boot};
          peerbus::communicator comm{peerbus::unified_bus{boot, {}, here.on_memory()}};
          const auto window = comm.make_window(std::size_t{1} << 20, 0);
          const auto peers = window.template peer<std::byte>(comm.peers().front());
          std::fill(peers.begin(), peers.end(), std::byte{1});
          comm.barrier();
          if (!has(here.memory(), "bound to node")) return;
          const auto node = static_cast<int>(here.places()[boot.rank().index()].node);
          for (std::size_t offset = 0; offset < window.local().size(); offset += 65536) {
            void* page = window.local().data() + offset;
            test::expect(window.local()[offset] == std::byte{1}, "what the peer wrote");
            int lies_on = -1;
            if (::syscall(SYS_move_pages, 0, 1UL, &page, nullptr, &lies_on, 0) == 0)
              test::expect_equal(lies_on, node, "the node of the page at ", offset);
          }
        }) == 0);
}

TEST_CASE("one node: memory is left alone, and the report says so for every rank") {
  if (machine::here().nodes() != 1) {
    MESSAGE("not tested: several nodes");
    return;
  }
  CHECK(peerbus::run_local(3, [](bootstrap& boot) {
          const placement here{boot};
          peerbus::communicator comm{peerbus::unified_bus{boot, {}, here.on_memory()}};
          const auto window = comm.make_window(64, 1);
          const auto kept = policy_at(window.local().data());
          test::expect(!kept || kept->mode == MPOL_DEFAULT, "memory to be left alone");
          const auto lines = here.report(boot, peerbus::deadline::after(std::chrono::seconds{20}));
          test::expect(lines.size() >= 4, "a line for the machine and each rank");
          for (std::size_t r = 0; r < 3; ++r) {
            const std::string& line = lines[lines.size() - 3 + r];
            test::expect(line.rfind("rank " + std::to_string(r) + ": ", 0) == 0, line);
            test::expect(has(line, "memory of 2 windows, ") && has(line, "one NUMA node"), line);
            test::expect(has(line, "visits " + std::to_string((r + 1) % 3)), line);
          }
        }) == 0);
}

TEST_CASE("a program may leave threads and memory where they are") {
  CHECK(peerbus::run_local(1, [](bootstrap& boot) {
          const std::size_t before = peerbus::usable_cores();
          const placement here{boot, {.pin = false, .bind = false}};
          test::expect(!here.pinned(), "no rank to be pinned");
          test::expect_equal(peerbus::usable_cores(), before, "cpus");
          const peerbus::communicator comm{peerbus::unified_bus{boot, {}, here.on_memory()}};
          test::expect(has(here.describe(), "not pinned, as the program wants it") &&
                           has(here.describe(), "not bound, as the program wants it"),
                       here.describe());
        }) == 0);
}

}  // namespace placement_test

// SPDX-License-Identifier: MIT
// One program, two transports: ranks are threads with one and processes with the other.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <peerbus/peerbus.hpp>

// Every rank tells every rank its number, and all check the sum.
template <class Bus>
int program(const char* name) {
  const int status = peerbus::run<Bus>(5, [](auto& comm) {
    auto numbers = comm.make_window(comm.size() * sizeof(std::uint64_t), 0);
    const std::size_t me = comm.rank().index();
    const std::vector<std::uint64_t> mine{me + 1};
    for (const peerbus::rank_id peer : comm.ranks())
      peerbus::check(numbers.put(peer, me * sizeof(std::uint64_t), std::span{mine}), "put");
    comm.barrier();

    std::uint64_t sum = 0;
    for (const std::uint64_t number : numbers.template local<std::uint64_t>()) sum += number;
    return sum == 1 + 2 + 3 + 4 + 5 ? 0 : 1;
  });
  std::printf("%-11s  %s\n", name, status == 0 ? "all 5 ranks agree" : "WRONG");
  return status;
}

int main() {
  const int threads = program<peerbus::loopback>("loopback");
  const int processes = program<peerbus::unified_bus>("unified_bus");
  return threads + processes == 0 ? 0 : 1;
}

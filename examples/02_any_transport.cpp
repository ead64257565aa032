// SPDX-License-Identifier: MIT
// A program whose transport is chosen when it runs. `02_any_transport loopback` makes the ranks
// threads, and `02_any_transport unified_bus` makes them processes. Without an argument the program
// runs both.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/peerbus.hpp>
#include <peerbus/transport/any_transport.hpp>

// Puts the number of every rank to every rank and checks the sum on each. The function is compiled
// only once for all transports.
int program(peerbus::any_transport bus) {
  peerbus::communicator comm{std::move(bus)};
  auto numbers = comm.make_window(comm.size() * sizeof(std::uint64_t), 0);
  const std::size_t rank = comm.rank().index();
  const std::vector<std::uint64_t> own_number{rank + 1};
  for (const peerbus::rank_id peer : comm.ranks())
    peerbus::check(numbers.put(peer, rank * sizeof(std::uint64_t), std::span{own_number}), "put");
  comm.barrier();

  std::uint64_t sum = 0;
  for (const std::uint64_t number : numbers.local<std::uint64_t>()) sum += number;
  return sum == 1 + 2 + 3 + 4 + 5 ? 0 : 1;
}

int start(const std::string& transport) {
  if (transport == "loopback")
    return peerbus::run_threads(5, [](peerbus::bootstrap& boot) {
      return program(peerbus::any_transport{peerbus::loopback{boot}});
    });
  if (transport == "unified_bus")
    return peerbus::run_local(5, [](peerbus::bootstrap& boot) {
      return program(peerbus::any_transport{peerbus::unified_bus{boot}});
    });
  std::printf("transport is '%s', expected loopback or unified_bus\n", transport.c_str());
  return 2;
}

int main(int argc, char** argv) {
  std::vector<std::string> chosen(argv + 1, argv + argc);
  if (chosen.empty()) chosen = {"loopback", "unified_bus"};
  for (const std::string& transport : chosen) {
    if (const int status = start(transport); status != 0) return status;
    std::printf("%-11s  all 5 ranks agree\n", transport.c_str());
  }
  return 0;
}

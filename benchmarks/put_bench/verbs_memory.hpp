// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <fstream>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/transport/verbs.hpp>

namespace put_bench {

/// What a rank of a group of `ranks` has taken for its transport.
struct memory_use {
  std::size_t ranks = 0;
  std::size_t resident = 0;  ///< bytes by which the process grew, the driver's queues included
  std::size_t computed_per_peer = 0;  ///< what the transport says
};

inline std::size_t resident_bytes() {
  std::ifstream file{"/proc/self/statm"};
  std::size_t all = 0;
  std::size_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

/// Starts a group whose ranks do nothing but connect. Returns: what rank 0 found; all zero if the
/// group failed.
inline memory_use measure_memory(std::size_t ranks, const peerbus::verbs_options& with) {
  const auto file = peerbus::make_memory_file("put_bench", sizeof(memory_use));
  const auto shared = peerbus::mapping::shared_file(file.get(), sizeof(memory_use));
  const int status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
    const std::size_t before = resident_bytes();
    peerbus::communicator comm{peerbus::verbs{boot, with}};
    comm.barrier();  // Each connection that a barrier uses has been used.
    const memory_use found{ranks, resident_bytes() - before, comm.bus().bytes_per_peer()};
    comm.barrier();
    if (boot.rank().index() == 0) std::memcpy(shared.data(), &found, sizeof found);
  });
  memory_use found;
  if (status == 0) std::memcpy(&found, shared.data(), sizeof found);
  return found;
}

}  // namespace put_bench

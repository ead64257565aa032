// SPDX-License-Identifier: MIT
#include <peerbus/run.hpp>
#include <peerbus/transport/simulated.hpp>

// Links and runs: fibres need nothing of the machine.
int main() {
  return peerbus::run<peerbus::simulated>(2, [](auto& comm) { comm.barrier(); });
}

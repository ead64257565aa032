// SPDX-License-Identifier: MIT
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/fabric.hpp>

// Links and runs; whether this libfabric has the provider is another matter.
int main() {
  return peerbus::run_local(2, [](peerbus::bootstrap& boot) {
    try {
      peerbus::communicator<peerbus::fabric> comm{peerbus::fabric{boot}};
      comm.barrier();
      return comm.size() == 2 ? 0 : 1;
    } catch (const peerbus::error& problem) {
      return problem.code() == peerbus::errc::unsupported ? 0 : 1;
    }
  });
}

// SPDX-License-Identifier: MIT
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/verbs.hpp>

// Links and runs; whether this host has a device is another matter.
int main() {
  return peerbus::run_local(1, [](peerbus::bootstrap& boot) {
    try {
      peerbus::communicator<peerbus::verbs> comm{peerbus::verbs{boot}};
      return comm.size() == 1 ? 0 : 1;
    } catch (const peerbus::error& problem) {
      return problem.code() == peerbus::errc::unsupported ||
                     problem.code() == peerbus::errc::invalid_argument
                 ? 0
                 : 1;
    }
  });
}

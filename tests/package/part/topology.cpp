// SPDX-License-Identifier: MIT
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/topology/placement.hpp>

int main() {
  return peerbus::run_threads(1, [](peerbus::bootstrap& boot) {
    const peerbus::topology::placement here{boot};
    return here.places().size() == 1 && here.peer_order().empty() ? 0 : 1;
  });
}

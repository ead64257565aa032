// SPDX-License-Identifier: MIT
// A small program, for ways that differ in where the headers lie, as all of those have been looked
// for by name.
#include <peerbus/run.hpp>
#include <peerbus/transport/loopback.hpp>

int main() {
  return peerbus::run<peerbus::loopback>(
      1, [](peerbus::communicator<peerbus::loopback>& comm) { return comm.size() == 1 ? 0 : 1; });
}

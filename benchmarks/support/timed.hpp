// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/communicator.hpp>

#include "support/clock.hpp"

namespace bench {

/// Microseconds that `operation` takes on this rank, from a barrier that lets all ranks start
/// together. The barrier after it keeps ranks that are done from taking the cores that others still
/// need. Collective.
template <class Transport, class Operation>
double timed(peerbus::communicator<Transport>& comm, Operation&& operation) {
  comm.barrier();
  const auto start = clock::now();
  operation();
  const double spent = microseconds(clock::now() - start);
  comm.barrier();
  return spent;
}

}  // namespace bench

// SPDX-License-Identifier: MIT
#include <mpi.h>

#include <peerbus/bootstrap/mpi.hpp>
#include <peerbus/core/error.hpp>

// Links and runs, though not by mpirun: MPI that is not initialised is refused.
int main() {
  try {
    (void)peerbus::mpi_bootstrap(MPI_COMM_WORLD);
  } catch (const peerbus::error& problem) {
    return problem.code() == peerbus::errc::invalid_argument ? 0 : 1;
  }
  return 1;
}

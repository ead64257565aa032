// SPDX-License-Identifier: MIT
//
// MoE dispatch and combine written over MPI, to be compared with peerbus's by
// benchmarks/compare.sh. `mpirun -n 2 mpi_ep --help` lists the options; docs/peers.md says what it
// does and why.
#include <cstdio>
#include <exception>
#include <string>
#include <variant>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>

#include "peers/mpi_ep/arguments.hpp"
#include "peers/mpi_ep/expert_rows.hpp"
#include "peers/mpi_ep/measure.hpp"
#include "peers/mpi_ep/mpi.hpp"
#include "peers/mpi_ep/rank_rows.hpp"
#include "peers/mpi_ep/report.hpp"

namespace {

template <class Codec>
mpi_ep::outcome measure(const mpi_ep::arguments& chosen) {
  return chosen.sent == mpi_ep::rows::per_rank
             ? mpi_ep::measure<mpi_ep::rank_rows<Codec>>(chosen.payload, chosen.own_rows_travel)
             : mpi_ep::measure<mpi_ep::expert_rows<Codec>>(chosen.payload, chosen.own_rows_travel);
}

int run(const mpi_ep::arguments& chosen) {
  const auto result = chosen.payload.codec == "bf16"
                          ? measure<peerbus::codec::bf16>(chosen)
                          : measure<peerbus::codec::int8_per_token>(chosen);
  if (mpi_ep::session::rank() == 0) mpi_ep::report(chosen, mpi_ep::session::ranks(), result);
  return result.wrong.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const mpi_ep::session mpi{&argc, &argv};
  try {
    const auto parsed = mpi_ep::parse(argc, argv, mpi_ep::session::rank() == 0);
    if (const int* status = std::get_if<int>(&parsed)) return *status;
    return run(std::get<mpi_ep::arguments>(parsed));
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "mpi_ep: %s\n", problem.what());
    MPI_Abort(MPI_COMM_WORLD, 1);  // The others may be waiting for this rank.
    return 1;
  }
}

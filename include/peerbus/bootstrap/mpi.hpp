// SPDX-License-Identifier: MIT
#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/rendezvous_options.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

/// Collective: makes a bootstrap of the processes of the MPI communicator `group`, with the same
/// rank numbers. Needs MPI 3.0 and OpenSSL (target `peerbus::mpi`).
///
/// MPI carries the names of the hosts, the rendezvous place, a random secret and a random number of
/// the job, and nothing after that. If all ranks are on one host, they meet as those of
/// `environment_bootstrap` do, so that `unified_bus` works. Otherwise they meet as those of
/// `tcp_bootstrap` do. Rank 0 opens a port that the system chooses.
///
/// All processes of `group` must call, after MPI_Init and before MPI_Finalize. If MPI has sessions
/// (MPI 4, Open MPI 5), they may instead call while the session exists from which `group` was made.
/// The result needs neither MPI nor `group` any more. While the call runs, no other thread may use
/// `group`, and MPI returns errors on `group` to this function instead of calling its error
/// handler.
///
/// Cost: two MPI_Iallgather, and the cost of the constructor of the bootstrap.
/// Throws: `error` invalid_argument (MPI not initialised or finalised already, MPI_COMM_NULL, an
/// intercommunicator); timed_out (if it happened in MPI, `group` must not be used for collectives
/// any more); system (an error of MPI, with its text); otherwise as the constructor of the
/// bootstrap.
[[nodiscard]] std::unique_ptr<bootstrap> mpi_bootstrap(
    MPI_Comm group, deadline until = deadline::after(std::chrono::seconds{30}),
    const rendezvous_options& options = {});

}  // namespace peerbus

#include <peerbus/bootstrap/mpi.ipp>  // IWYU pragma: keep

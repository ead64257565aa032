// SPDX-License-Identifier: MIT
#pragma once

#include <pmix.h>

#include <chrono>
#include <memory>
#include <string_view>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/rendezvous_options.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

/// Collective: makes a bootstrap of the processes of a job that an engine with PMIx started: Open
/// MPI's mpirun, prun, or srun with `--mpi=pmix`. The ranks have the numbers that PMIx gave them.
/// Needs PMIx 3 and OpenSSL (target `peerbus::pmix`).
///
/// PMIx carries the rendezvous place, a random secret and the namespace, which is the job's id,
/// from rank 0 to the other ranks, and nothing after that. If PMIx has all ranks of the job on one
/// node, they meet as those of `environment_bootstrap` do, so that `unified_bus` works. Otherwise
/// they meet as those of `tcp_bootstrap` do. Rank 0 opens a port that the system chooses.
///
/// `self` is the process that PMIx_Init returned. All processes of its namespace must call, after
/// PMIx_Init and before PMIx_Finalize. The caller calls these two functions. PMIx_Init starts a
/// thread of PMIx, which runs until PMIx_Finalize. The result does not need PMIx any more. `group`
/// names the group. Each further group of a job needs a name of its own, because PMIx keeps its
/// data until the job ends.
///
/// Cost: one PMIx_Put, PMIx_Commit and PMIx_Get of less than 1 KiB, and the cost of the constructor
/// of the bootstrap.
/// Throws: `error` invalid_argument (PMIx not initialised, a `self` that is not of the job, a name
/// used before), timed_out (up to a second after `until`), system (an error of PMIx, with its
/// text), otherwise as the constructor of the bootstrap.
[[nodiscard]] std::unique_ptr<bootstrap> pmix_bootstrap(
    const pmix_proc_t& self, deadline until = deadline::after(std::chrono::seconds{30}),
    const rendezvous_options& options = {}, std::string_view group = "world");

}  // namespace peerbus

#include <peerbus/bootstrap/pmix.ipp>  // IWYU pragma: keep

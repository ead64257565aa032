// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

namespace detail {
struct met_ranks;
}  // namespace detail

/// A rank of a group of processes on this host that torchrun, mpirun, srun or a shell script
/// started. `RANK`, `WORLD_SIZE` and `LOCAL_RANK` give its place, or the variables that Open MPI
/// (`OMPI_COMM_WORLD_...`), PMI (`PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`) or Slurm
/// (`SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID`) set. If several of them give different places,
/// `PEERBUS_RANK_VARIABLE` names the variable to use, such as `RANK`. `MASTER_ADDR` (127.0.0.1 by
/// default) and `MASTER_PORT` (29500 by default) give the rendezvous point. `PEERBUS_JOB` or the
/// launcher's id of the job keeps ranks of another job away.
///
/// All ranks must be on one host, in one network namespace and of one user, because they meet at an
/// abstract Unix socket. The address is only a part of its name. For ranks on several hosts use
/// `tcp_bootstrap`.
///
/// The destructor tells the other ranks that this rank has left, or has failed if an exception
/// destroys the bootstrap.
class environment_bootstrap final : public detail::joined_star {
 public:
  /// Collective: meets the other ranks at the place that `settings` name.
  /// Cost: one connection from each rank to rank 0, and one `allgather`.
  /// Throws: `error` invalid_argument, timed_out (naming the missing ranks), mismatch (a rank that
  /// came twice, different sizes or builds), peer_dead, system. All ranks that came throw the same
  /// error.
  environment_bootstrap(const launch_settings& settings, deadline until);

  /// Collective: meets the other ranks with the settings from the environment.
  /// Cost: as the constructor.
  /// Throws: as the constructor; also `error` invalid_argument, with the variable that is missing
  /// or wrong or with the variables that contradict each other, and unsupported if the launcher
  /// reports that there are other hosts.
  [[nodiscard]] static environment_bootstrap from_environment(
      deadline until = deadline::after(std::chrono::seconds{30}));

  /// Returns whether a launcher has started this process. It has if a launcher's variable for the
  /// rank or the size is set, or `PEERBUS_RANK_VARIABLE`. Variables do not count if an ancestor
  /// that has them is the rank. They do not count either if the group has one rank and an ancestor
  /// that has them is a shell that takes commands. docs/launching.md lists the cases that cannot be
  /// told apart.
  /// Cost: if a variable is set, reads three files in /proc per ancestor that has it.
  [[nodiscard]] static bool launched() noexcept;

  /// Returns the position among the ranks of this host.
  [[nodiscard]] std::size_t local_rank() const noexcept { return local_rank_; }

 private:
  environment_bootstrap(const launch_settings& settings, deadline until, detail::met_ranks met);

  std::size_t local_rank_;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/environment.ipp>  // IWYU pragma: keep
#endif

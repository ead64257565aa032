// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

namespace detail {

struct met_ranks;

}  // namespace detail

/// A rank among processes that somebody else started on this host: torchrun, mpirun, srun or a
/// shell script. It is told its place by `RANK`, `WORLD_SIZE` and `LOCAL_RANK`, or what Open MPI
/// (`OMPI_COMM_WORLD_...`), PMI (`PMI_RANK`, `PMI_SIZE`) or Slurm (`SLURM_PROCID`, `SLURM_NTASKS`,
/// `SLURM_LOCALID`) set, and the meeting point by `MASTER_ADDR` (127.0.0.1 by default) and
/// `MASTER_PORT` (29500). All ranks must be on one host, in one network namespace and of one user:
/// they meet at an abstract Unix socket, of which the address is just the name. For ranks on
/// several hosts there is `tcp_bootstrap`.
///
/// The destructor tells the others that this rank has left, or has failed if an exception is what
/// destroys it.
class environment_bootstrap final : public detail::joined_star {
 public:
  /// Collective: meets the other ranks at the place that `settings` name.
  /// Throws: `error` invalid_argument, timed_out (naming who did not come), mismatch (a rank twice,
  /// different sizes), peer_dead, system; all ranks that came throw the same.
  environment_bootstrap(const launch_settings& settings, deadline until);

  /// The same with the settings from the environment.
  /// Throws: also `error` invalid_argument, with the variable that is missing or wrong, and
  /// unsupported if the launcher says that there are other hosts.
  [[nodiscard]] static environment_bootstrap from_environment(
      deadline until = deadline::after(std::chrono::seconds{30}));

  /// Whether a launcher has started this process: some of the variables are there.
  [[nodiscard]] static bool launched() noexcept;

  /// Position among the ranks of this host.
  [[nodiscard]] std::size_t local_rank() const noexcept { return local_rank_; }

 private:
  environment_bootstrap(const launch_settings& settings, deadline until, detail::met_ranks met);

  std::size_t local_rank_;
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/impl/environment.hpp>  // IWYU pragma: keep
#endif

// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/host.hpp>
#include <peerbus/bootstrap/detail/join.hpp>
#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

namespace detail {

/// What a rank has once it has met the others.
struct met_ranks {
  state_page states;
  star connections;

  static met_ranks at(const launch_settings& settings, deadline until) {
    if (settings.size == 0 || settings.size > most_ranks)
      throw error{errc::invalid_argument, concat("a world of ", settings.size, " ranks was given, ",
                                                 "expected 1 to ", most_ranks)};
    if (settings.rank >= settings.size)
      throw error{errc::invalid_argument, concat("rank ", settings.rank, " of ", settings.size,
                                                 " was given, expected a rank below the size")};
    if (settings.size == 1) return {state_page{1}, hub{std::vector<unique_fd>(1)}};
    if (settings.rank != 0) {
      joined met = join(settings, until);
      return {state_page::open(settings.size, met.states), spoke{std::move(met.hub)}};
    }
    const unique_fd file = state_page::make_file(settings.size);
    state_page states = state_page::open(settings.size, file);
    return {std::move(states), hub{host{settings, until}.gather(file)}};
  }
};

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
class environment_bootstrap final : public detail::star_bootstrap {
 public:
  /// Collective: meets the other ranks at the place that `settings` name.
  /// Throws: `error` invalid_argument, timed_out (naming who did not come), mismatch (a rank twice,
  /// different sizes), peer_dead, system; all ranks that came throw the same.
  environment_bootstrap(const launch_settings& settings, deadline until)
      : environment_bootstrap{settings, until, detail::met_ranks::at(settings, until)} {}

  /// The same with the settings from the environment.
  /// Throws: also `error` invalid_argument, with the variable that is missing or wrong, and
  /// unsupported if the launcher says that there are other hosts.
  [[nodiscard]] static environment_bootstrap from_environment(
      deadline until = deadline::after(std::chrono::seconds{30})) {
    return environment_bootstrap{detail::read_launch_settings(), until};
  }

  /// Whether a launcher has started this process: some of the variables are there.
  [[nodiscard]] static bool launched() noexcept { return detail::find_launcher() != nullptr; }

  environment_bootstrap(const environment_bootstrap&) = delete;
  environment_bootstrap& operator=(const environment_bootstrap&) = delete;
  ~environment_bootstrap() override {
    const bool unwinding = std::uncaught_exceptions() > exceptions_before_;
    members()->announce(unwinding ? members()->end_by_exception() : rank_state::left);
  }

  /// Position among the ranks of this host.
  [[nodiscard]] std::size_t local_rank() const noexcept { return local_rank_; }

 private:
  environment_bootstrap(const launch_settings& settings, deadline until, detail::met_ranks met)
      : star_bootstrap{rank_id{settings.rank}, settings.size, met.states,
                       std::move(met.connections)},
        local_rank_{settings.local_rank} {
    try {
      meet(met.states, until);
    } catch (...) {
      members()->announce(rank_state::failed);
      throw;
    }
  }

  std::size_t local_rank_;
  int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace peerbus

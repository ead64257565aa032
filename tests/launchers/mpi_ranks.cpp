// SPDX-License-Identifier: MIT
//
// A rank of an MPI program, of which the tests start four: with any argument they are ranks of a
// session of MPI 4 and nothing else, as MPICH 4.0 does not survive MPI_Init after that.
#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <string>

#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/mpi.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "support.hpp"

using namespace std::chrono_literals;
using namespace test;
using peerbus::mpi_bootstrap;

namespace {

std::size_t rank_in(MPI_Comm group) {
  int rank = 0;
  MPI_Comm_rank(group, &rank);
  return static_cast<std::size_t>(rank);
}
std::size_t size_of(MPI_Comm group) {
  int size = 0;
  MPI_Comm_size(group, &size);
  return static_cast<std::size_t>(size);
}

/// Makes a bootstrap of `group` and checks that it connects the ranks that passed the same `word`.
void check(MPI_Comm group, const std::string& word) {
  const auto boot = mpi_bootstrap(group, patience());
  check_group(*boot, rank_in(group), size_of(group), word);
  require(boot->near_ranks().size() == size_of(group), "all ranks on one host");
  check_exchange(*boot);
}

void check_order_and_halves() {
  check(MPI_COMM_WORLD, "world");
  const auto rank = static_cast<int>(rank_in(MPI_COMM_WORLD));
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &part);
  check(part, "reversed");
  MPI_Comm_free(&part);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &part);
  check(part, rank % 2 == 0 ? "even" : "odd");

  MPI_Comm between = MPI_COMM_NULL;
  MPI_Intercomm_create(part, 0, MPI_COMM_WORLD, 1 - rank % 2, 0, &between);
  require_error(errc::invalid_argument, {"an intercommunicator was given"},
                [&] { (void)mpi_bootstrap(between); });
  MPI_Comm_free(&between);
  MPI_Comm_free(&part);
}

void check_tcp() {
  const auto boot =
      mpi_bootstrap(MPI_COMM_WORLD, patience(), {.address = "127.0.0.1", .over_tcp = true});
  require(dynamic_cast<peerbus::tcp_bootstrap*>(boot.get()) != nullptr, "a bootstrap over TCP");
  check_group(*boot, rank_in(MPI_COMM_WORLD), size_of(MPI_COMM_WORLD), "TCP");
}

/// A host that cannot be found is an error on all ranks, though only the options of rank 0 name it.
void check_wrong_address() {
  peerbus::rendezvous_options options;
  if (rank_in(MPI_COMM_WORLD) == 0) options = {.address = "no-such-host.invalid", .over_tcp = true};
  require_error(errc::system, {"no-such-host.invalid", "cannot be resolved", "rendezvous_options"},
                [&] { (void)mpi_bootstrap(MPI_COMM_WORLD, deadline::after(300ms), options); });
}

/// A rank that does not call keeps the others no longer than until their deadline.
void check_missing_rank() {
  MPI_Comm group = MPI_COMM_NULL;  // It is not used again.
  MPI_Comm_dup(MPI_COMM_WORLD, &group);
  if (rank_in(group) != 2)
    require_error(errc::timed_out, {" ms", "all ranks of the communicator to call"},
                  [&] { (void)mpi_bootstrap(group, deadline::after(300ms)); });
  MPI_Barrier(MPI_COMM_WORLD);
}

void check_not_running(const char* told) {
  require_error(errc::invalid_argument, {told}, [] { (void)mpi_bootstrap(MPI_COMM_WORLD); });
}

/// Ranks of a session meet, and need neither MPI_Init nor the session afterwards.
void check_session() {
  check_not_running("MPI is not initialised, expected a call after MPI_Init");
#if MPI_VERSION >= 4 || defined(MPI_ERR_SESSION)
  MPI_Session session = MPI_SESSION_NULL;
  require(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session) == MPI_SUCCESS, "a session");
  check_not_running("or a communicator of a session");
  MPI_Group world = MPI_GROUP_NULL;
  require(MPI_Group_from_session_pset(session, "mpi://WORLD", &world) == MPI_SUCCESS, "all ranks");
  MPI_Comm group = MPI_COMM_NULL;
  require(MPI_Comm_create_from_group(world, "peerbus", MPI_INFO_NULL, MPI_ERRORS_RETURN, &group) ==
              MPI_SUCCESS,
          "a communicator of the session");
  const std::size_t rank = rank_in(group);
  const auto boot = mpi_bootstrap(group, patience());
  MPI_Comm_free(&group);
  MPI_Group_free(&world);
  MPI_Session_finalize(&session);
  check_group(*boot, rank, 4, "session");
#else
  require(false, "an MPI with sessions");
#endif
}

}  // namespace

int main(int argc, char** /*argv*/) {
  return run_rank([argc] {
    if (argc > 1) return check_session();
#if defined(OPEN_MPI) && defined(MPI_ERR_SESSION)
    check_session();
#endif
    check_not_running("MPI is not initialised, expected a call after MPI_Init");
    MPI_Init(nullptr, nullptr);
    require(size_of(MPI_COMM_WORLD) == 4, "four ranks");
    require_error(errc::invalid_argument, {"MPI_COMM_NULL was given"},
                  [] { (void)mpi_bootstrap(MPI_COMM_NULL); });
    check_order_and_halves();
    check_tcp();
    check_wrong_address();
    check_missing_rank();
    check_children(mpi_bootstrap(MPI_COMM_WORLD, patience()));
    MPI_Finalize();
    check_not_running("MPI is finalised, expected a call before MPI_Finalize");
  });
}

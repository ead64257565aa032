// SPDX-License-Identifier: MIT
//
// A rank of a job that an engine with PMIx starts, and no MPI program.
// tests/launchers/CMakeLists.txt starts four of them.
#include <pmix.h>

#include <chrono>
#include <string>

#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/pmix.hpp>
#include <peerbus/bootstrap/tcp.hpp>

#include "support.hpp"

using namespace std::chrono_literals;
using namespace test;
using peerbus::pmix_bootstrap;

namespace {

/// A group over TCP in the same job, and what PMIx says of a name that is used again.
void check_tcp(const pmix_proc_t& self) {
  const peerbus::rendezvous_options options{.address = "127.0.0.1", .over_tcp = true};
  const auto boot = pmix_bootstrap(self, patience(), options, "tcp");
  require(dynamic_cast<peerbus::tcp_bootstrap*>(boot.get()) != nullptr, "a bootstrap over TCP");
  check_group(*boot, self.rank, 4, "TCP");
  if (self.rank == 0)
    require_error(errc::invalid_argument, {"'peerbus.tcp'", "expected another name"},
                  [&] { (void)pmix_bootstrap(self, patience(), options, "tcp"); });
}

/// A host that cannot be found is an error on all ranks, though only the options of rank 0 name it.
void check_wrong_address(const pmix_proc_t& self) {
  peerbus::rendezvous_options options;
  if (self.rank == 0) options = {.address = "no-such-host.invalid", .over_tcp = true};
  require_error(
      errc::system, {"no-such-host.invalid", "cannot be resolved", "rendezvous_options"},
      [&] { (void)pmix_bootstrap(self, deadline::after(300ms), options, "wrong address"); });
}

/// Ranks that do not call are named to those that do.
void check_missing_ranks(const pmix_proc_t& self) {
  if (self.rank != 0)
    require_error(errc::timed_out,
                  {"rank 0 of 4", "did not call pmix_bootstrap", "'peerbus.no rank 0' within "},
                  [&] { (void)pmix_bootstrap(self, deadline::after(300ms), {}, "no rank 0"); });
  if (self.rank != 2)
    require_error(errc::timed_out, {"rank 2 of 4 did not join", self.nspace},
                  [&] { (void)pmix_bootstrap(self, deadline::after(3s), {}, "no rank 2"); });
}

/// The same engines also set variables.
void check_environment(const pmix_proc_t& self) {
  auto boot = peerbus::environment_bootstrap::from_environment(patience());
  check_group(boot, self.rank, 4, "environment");
}

void check_not_running(const pmix_proc_t& self) {
  require_error(errc::invalid_argument,
                {"PMIx is not initialised, expected a call after PMIx_Init"},
                [&] { (void)pmix_bootstrap(self); });
}

}  // namespace

int main() {
  return run_rank([] {
    pmix_proc_t self{};
    check_not_running(self);
    require(PMIx_Init(&self, nullptr, 0) == PMIX_SUCCESS, "a process that PMIx started");
    pmix_proc_t other = self;
    other.rank = 99;
    require_error(errc::invalid_argument, {"rank 99 of a job of 4"},
                  [&] { (void)pmix_bootstrap(other); });
    const auto boot = pmix_bootstrap(self, patience());
    check_group(*boot, self.rank, 4, "world");
    require(boot->near_ranks().size() == 4, "all ranks on one host");
    check_tcp(self);
    check_wrong_address(self);
    check_missing_ranks(self);
    check_environment(self);
    check_children(pmix_bootstrap(self, patience(), {}, "children"));
    require(PMIx_Finalize(nullptr, 0) == PMIX_SUCCESS, "an end of PMIx");
    check_not_running(self);
    check_exchange(*boot);  // It does not need PMIx.
  });
}

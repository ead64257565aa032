// SPDX-License-Identifier: MIT
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "objects.hpp"

template class peerbus::communicator<peerbus::any_direct_transport>;

namespace peerbus::c_library {

namespace {

std::atomic<std::uint64_t> forks{0};

/// Makes children by fork notice that they are.
void watch_forks() {
  // order: relaxed; a child by fork has one thread.
  static const int failure =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  if (failure != 0) throw error{errc::system, "pthread_atfork failed"};
}

communicator_options options_of(const peerbus_comm_options& given) {
  communicator_options options;
  if (given.timeout_ns < 0) options.timeout = std::chrono::milliseconds::max();
  if (given.timeout_ns > 0)  // Rounded up, so that a short limit does not become none.
    options.timeout =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds{given.timeout_ns});
  return options;
}

deadline rendezvous_deadline(const peerbus_comm_options& given) {
  return deadline_of(given.meet_timeout_ns).value_or(deadline::after(std::chrono::seconds{30}));
}

bus make_bus(bootstrap& boot, rank_kind ranks_are, const std::shared_ptr<interruption>& stop) {
  watch_forks();
  if (ranks_are == rank_kind::threads) return bus{interruptible<loopback>{loopback{boot}, stop}};
  return bus{interruptible<unified_bus>{unified_bus{boot}, stop}};
}

/// Returns the kind of ranks that `boot` connects.
rank_kind kind_of(const bootstrap& boot) {
  return boot.addresses() == address_space::shared ? rank_kind::threads : rank_kind::processes;
}

/// Calls the program of a rank. Returns its exit status.
int run_rank(bootstrap& boot, rank_kind ranks_are, peerbus_rank_function body, void* context,
             const peerbus_comm_options& options) {
  peerbus_comm comm{std::make_shared<group>(boot, ranks_are, options)};
  comm.is_borrowed = true;
  int status = body(&comm, context);
  claims::settle();
  if (comm.members.use_count() > 1) {
    std::fprintf(stderr,
                 "peerbus: rank %zu: its function returned %d and left %ld windows, exchanges, "
                 "buffers or teams; expected it to destroy them\n",
                 boot.rank().index(), status, comm.members.use_count() - 1);
    if (status == 0) status = 1;
  }
  return status;
}

/// Starts ranks by `start(rank function of C++)` and sets `*status`.
template <class Start>
peerbus_code run(rank_kind ranks_are, peerbus_rank_function body, void* context,
                 const peerbus_comm_options* options, int32_t* status, Start&& start) {
  return guarded([&] {
    require(body != nullptr, "the rank function is NULL");
    require(status != nullptr, "status is NULL");
    const auto given = read_options(options, "options");
    *status = start(
        [&](bootstrap& boot) -> int { return run_rank(boot, ranks_are, body, context, given); });
  });
}

/// Makes a communicator with the options that `read()` returns, over the bootstrap that
/// `make(deadline)` returns.
template <class Read, class Make>
peerbus_code make_comm(peerbus_comm** comm, Read&& read, Make&& make) {
  return guarded([&] {
    require_result(comm, "comm");
    const peerbus_comm_options given = read();
    std::unique_ptr<bootstrap> boot = make(rendezvous_deadline(given));
    *comm =
        std::make_unique<peerbus_comm>(std::make_shared<group>(std::move(boot), given)).release();
  });
}

/// The interrupt function of Python, with a `peerbus_python` as its context.
std::int32_t let_python_handle_signals(void* context) {
  const auto& python = *static_cast<const peerbus_python*>(context);
  const std::int32_t state = python.ensure_gil();
  const bool raised = python.check_signals() != 0;
  if (raised) python.fetch(&python.raised[0], &python.raised[1], &python.raised[2]);
  python.release_gil(state);
  return raised ? 1 : 0;
}

}  // namespace

std::uint64_t fork_count() noexcept {
  return forks.load(std::memory_order_relaxed);  // order: relaxed; as in `watch_forks`.
}

group::group(std::unique_ptr<bootstrap> boot, const peerbus_comm_options& options)
    : own_{std::move(boot)},
      options_{options},
      comm{make_bus(*own_, kind_of(*own_), stop_), options_of(options)} {}

group::group(bootstrap& boot, rank_kind ranks_are, const peerbus_comm_options& options)
    : options_{options}, comm{make_bus(boot, ranks_are, stop_), options_of(options)} {}

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

int32_t peerbus_launched() { return peerbus::environment_bootstrap::launched() ? 1 : 0; }

peerbus_code peerbus_comm_from_environment(const peerbus_comm_options* options,
                                           peerbus_comm** comm) {
  const auto read = [&] { return read_options(options, "options"); };
  return make_comm(comm, read, [](peerbus::deadline until) {
    // The result of the call is made in place, because a bootstrap does not move.
    return std::unique_ptr<peerbus::bootstrap>{new peerbus::environment_bootstrap(
        peerbus::environment_bootstrap::from_environment(until))};
  });
}

peerbus_code peerbus_comm_at(const peerbus_place* place, const peerbus_comm_options* options,
                             peerbus_comm** comm) {
  const auto read = [&] { return read_options(options, "options"); };
  return make_comm(comm, read, [&](peerbus::deadline until) {
    const auto given = read_struct(place, "place");
    require(given.port <= 65535, "place.port is above 65535");
    peerbus::launch_settings settings;
    settings.rank = given.rank;
    settings.size = given.size;
    settings.local_rank = given.rank;
    if (given.port != 0) settings.port = static_cast<std::uint16_t>(given.port);
    if (given.address != nullptr) settings.address = given.address;
    if (given.job != nullptr) settings.job = given.job;
    return std::make_unique<peerbus::environment_bootstrap>(settings, until);
  });
}

peerbus_code peerbus_comm_subgroup(peerbus_comm* parent, const uint64_t* ranks, uint64_t count,
                                   const peerbus_comm_options* options, peerbus_comm** comm) {
  group* members_of_parent = nullptr;
  const auto read = [&] {
    peerbus_comm_options given = read_options(options, "options");
    members_of_parent = usable(parent, "parent").members.get();
    const peerbus_comm_options& of_parent = members_of_parent->options();
    if (given.timeout_ns == 0) given.timeout_ns = of_parent.timeout_ns;
    if (given.meet_timeout_ns == 0) given.meet_timeout_ns = of_parent.meet_timeout_ns;
    return given;
  };
  return make_comm(comm, read, [&](peerbus::deadline until) {
    group& parents = *members_of_parent;
    std::vector<peerbus::rank_id> members;
    require(ranks != nullptr || count == 0, "ranks is NULL");
    // A list that is longer than the parent has a bad entry by then, which all ranks refuse.
    const std::uint64_t looked_at = std::min<std::uint64_t>(count, parents.comm.size() + 1);
    static constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
    members.reserve(looked_at);
    for (std::uint64_t i = 0; i < looked_at; ++i)  // A number that does not exist stays one.
      members.emplace_back(std::min(ranks[i], most));
    // Early ranks wait here, where a program can end the wait. A bootstrap cannot.
    parents.comm.barrier(until);
    return parents.boot().subgroup(members, until);
  });
}

peerbus_code peerbus_run_threads(uint64_t ranks, peerbus_rank_function body, void* context,
                                 const peerbus_comm_options* options, int32_t* status) {
  return run(peerbus::rank_kind::threads, body, context, options, status,
             [ranks](auto rank) { return peerbus::run_threads(ranks, rank); });
}

peerbus_code peerbus_run_processes(uint64_t ranks, peerbus_rank_function body, void* context,
                                   const peerbus_comm_options* options, int32_t* status) {
  return run(peerbus::rank_kind::processes, body, context, options, status,
             [ranks](auto rank) { return peerbus::run_local(ranks, rank); });
}

peerbus_code peerbus_comm_destroy(peerbus_comm** comm) {
  return guarded([&] {
    require(comm == nullptr || *comm == nullptr || !(*comm)->is_borrowed,
            "peerbus_comm_destroy: the communicator of a rank function ends with the function");
    destroy(comm);
  });
}

uint64_t peerbus_comm_rank(const peerbus_comm* comm) {
  return comm == nullptr ? 0 : comm->members->comm.rank().index();
}

uint64_t peerbus_comm_size(const peerbus_comm* comm) {
  return comm == nullptr ? 0 : comm->members->comm.size();
}

peerbus_code peerbus_comm_barrier(peerbus_comm* comm, int64_t timeout_ns) {
  return guarded([&] {
    auto& ranks = usable(comm, "communicator").members->comm;
    ranks.barrier(deadline_of(ranks, timeout_ns));
  });
}

peerbus_code peerbus_comm_set_interrupt(peerbus_comm* comm, peerbus_interrupt_function interrupt,
                                        void* context) {
  return guarded(
      [&] { usable(comm, "communicator").members->stop() = {interrupt, context, {}, {}}; });
}

peerbus_code peerbus_comm_set_python(peerbus_comm* comm, const peerbus_python* python) {
  return guarded([&] {
    auto& stop = usable(comm, "communicator").members->stop();
    const peerbus_python given = read_struct(python, "python");
    require(given.ensure_gil != nullptr && given.release_gil != nullptr &&
                given.check_signals != nullptr && given.fetch != nullptr && given.raised != nullptr,
            "python has a member that is NULL, expected CPython's functions and room for what a "
            "handler raises");
    stop = {let_python_handle_signals, &stop.python, given.thread, given};
  });
}

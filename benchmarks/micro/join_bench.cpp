// SPDX-License-Identifier: MIT
//
// The time to join: processes that run already are let go at once, and the time ends when the last
// of them has its bootstrap. Beside it the time in which as many processes make as many plain
// connections to one of them and hear a byte from it when all have come. join_two_hosts.sh has half
// of the processes on a second host, a network namespace.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "support/clock.hpp"
#include "support/statistics.hpp"

#if PEERBUS_BENCH_TCP
#include <peerbus/bootstrap/tcp.hpp>
#endif

namespace micro::join_bench {
namespace {

using peerbus::unique_fd;

peerbus::deadline patience() { return peerbus::deadline::after(std::chrono::seconds{60}); }

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error{what};
}

/// A pipe that processes share from before they are forked.
struct pipe_ends {
  unique_fd reading;
  unique_fd writing;

  pipe_ends() {
    int ends[2];
    require(::pipe(ends) == 0, "no pipe could be made");
    reading.reset(ends[0]);
    writing.reset(ends[1]);
  }
  /// Blocks until no process has the writing end any more.
  void wait_for_end() {
    writing.reset();
    char nothing = 0;
    require(::read(reading.get(), &nothing, 1) == 0, "expected the end of a pipe");
  }
};

void tell(const pipe_ends& pipe, std::int64_t when) {
  require(::write(pipe.writing.get(), &when, sizeof when) == sizeof when, "the parent is gone");
}
bool hear(const pipe_ends& pipe, std::int64_t& when) {
  return ::read(pipe.reading.get(), &when, sizeof when) == sizeof when;
}

/// What joining took.
struct joining {
  double seconds;  ///< from the moment at which all may begin until the last call has returned
  double mib;      ///< the most memory of a process, with what it has from its parent
};

/// Starts `ranks` processes, each of which calls `join(rank)` and keeps the result until all have
/// one.
template <class Join>
joining time_to_join(std::size_t ranks, Join join) {
  pipe_ends start;
  pipe_ends joined;
  pipe_ends end;
  std::vector<pid_t> processes;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const pid_t process = ::fork();
    require(process >= 0, "no process could be started");
    if (process != 0) {
      processes.push_back(process);
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int status = 1;
    try {
      end.writing.reset();
      joined.reading.reset();
      tell(joined, 0);  // It runs.
      start.wait_for_end();
      const auto seat = join(rank);
      tell(joined, bench::clock::now().time_since_epoch().count());
      joined.writing.reset();
      end.wait_for_end();
      status = 0;
    } catch (const std::exception& problem) {
      ::dprintf(STDERR_FILENO, "rank %zu: %s\n", rank, problem.what());
    }
    ::_exit(status);
  }
  joined.writing.reset();
  std::int64_t when = 0;
  for (std::size_t running = 0; running < ranks; ++running)
    require(hear(joined, when), "a rank did not start");
  const auto begin = bench::clock::now();
  start.writing.reset();
  auto last = begin;
  std::size_t came = 0;
  for (; hear(joined, when); ++came)
    last = std::max(last, bench::clock::time_point{bench::clock::duration{when}});
  end.writing.reset();
  bool all_ended_well = came == ranks;
  long most_kib = 0;
  for (const pid_t process : processes) {
    int status = 0;
    rusage used{};
    ::wait4(process, &status, 0, &used);
    all_ended_well = all_ended_well && status == 0;
    most_kib = std::max(most_kib, used.ru_maxrss);
  }
  require(all_ended_well, "a rank did not join");
  return {bench::nanoseconds(last - begin) / 1e9, static_cast<double>(most_kib) / 1024};
}

/// The hosts of the ranks.
struct hosts {
  std::string address = "127.0.0.1";  ///< of the first
  const char* second = nullptr;       ///< the file of its network namespace; null if there is none

  /// Moves the upper half of the ranks to the second host.
  void enter(std::size_t rank, std::size_t ranks) const {
    if (second == nullptr || rank < ranks / 2) return;
    const unique_fd space{::open(second, O_RDONLY | O_CLOEXEC)};
    require(space && ::setns(space.get(), CLONE_NEWNET) == 0, "the second host is gone");
  }
};

/// A socket of this host with a free port or an abstract name, which the system chooses. It keeps a
/// port from other processes, while sockets that have SO_REUSEADDR may listen there.
struct bound_socket {
  unique_fd socket;
  sockaddr_storage address{};
  socklen_t size = sizeof address;

  explicit bound_socket(int family, const hosts& on = {})
      : socket{::socket(family, SOCK_STREAM, 0)} {
    address.ss_family = static_cast<sa_family_t>(family);
    auto* const wanted = reinterpret_cast<sockaddr*>(&address);
    if (family == AF_INET)
      require(::inet_pton(AF_INET, on.address.c_str(),
                          &reinterpret_cast<sockaddr_in*>(wanted)->sin_addr) == 1,
              "expected an address such as 127.0.0.1");
    const socklen_t wanted_size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sa_family_t);
    const int may_be_shared = 1;
    require(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &may_be_shared,
                         sizeof may_be_shared) == 0 &&
                ::bind(socket.get(), wanted, wanted_size) == 0 &&
                ::getsockname(socket.get(), wanted, &size) == 0,
            "no socket could be bound");
  }
};

/// A socket at which one process waits for plain connections.
struct listener : bound_socket {
  listener(int family, const hosts& on) : bound_socket{family, on} {
    require(::listen(socket.get(), 4096) == 0, "no socket could listen");
  }

  /// Returns the connections of `rank`, once all ranks have made theirs.
  [[nodiscard]] std::vector<unique_fd> connect(std::size_t rank, std::size_t ranks,
                                               std::size_t connections) const {
    std::vector<unique_fd> made(rank == 0 ? (ranks - 1) * connections : connections);
    for (unique_fd& each : made) {
      each.reset(rank == 0 ? ::accept(socket.get(), nullptr, nullptr)
                           : ::socket(address.ss_family, SOCK_STREAM, 0));
      require(rank == 0 ||
                  ::connect(each.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0,
              "no connection could be made");
    }
    for (const unique_fd& each : made) {
      char word = 1;
      require((rank == 0 ? ::write(each.get(), &word, 1) : ::read(each.get(), &word, 1)) == 1,
              "a connection broke");
    }
    return made;
  }
};

/// Measures both in turns.
template <class TimeOnce>
void measure(benchmark::State& state, std::size_t ranks, int family, const hosts& on,
             std::size_t connections, TimeOnce time_once) {
  std::vector<double> floors;
  double mib = 0;
  try {
    for (auto _ : state) {
      const joining found = time_once();
      state.SetIterationTime(found.seconds);
      mib = std::max(mib, found.mib);
      const listener place{family, on};
      const joining plain = time_to_join(ranks, [&](std::size_t rank) {
        on.enter(rank, ranks);
        return place.connect(rank, ranks, connections);
      });
      floors.push_back(1e3 * plain.seconds);
    }
    state.counters["plain_connections_ms"] = bench::median(floors);
    state.counters["largest_rank_mib"] = mib;
  } catch (const std::exception& problem) {
    state.SkipWithError(problem.what());
  }
}

void on_one_host(benchmark::State& state, std::size_t ranks) {
  std::size_t group = 0;
  measure(state, ranks, AF_UNIX, {}, 1, [&] {
    peerbus::launch_settings settings;
    settings.size = ranks;
    settings.address = "join_bench." + std::to_string(::getpid()) + "." + std::to_string(group++);
    return time_to_join(ranks, [&](std::size_t rank) {
      settings.rank = settings.local_rank = rank;
      return peerbus::environment_bootstrap{settings, patience()};
    });
  });
}

#if PEERBUS_BENCH_TCP
void over_tcp(benchmark::State& state, std::size_t ranks, const hosts& on) {
  measure(state, ranks, AF_INET, on, 2, [&] {
    const bound_socket keeper{AF_INET, on};
    peerbus::tcp_settings settings;
    settings.size = ranks;
    settings.address = on.address;
    settings.port = ntohs(reinterpret_cast<const sockaddr_in&>(keeper.address).sin_port);
    settings.secret = "a secret for benchmarks only";
    return time_to_join(ranks, [&](std::size_t rank) {
      on.enter(rank, ranks);
      settings.rank = rank;
      return peerbus::tcp_bootstrap{settings, patience()};
    });
  });
}

void over_loopback(benchmark::State& state, std::size_t ranks) { over_tcp(state, ranks, {}); }

void between_hosts(benchmark::State& state, std::size_t ranks) {
  over_tcp(state, ranks, {"10.77.0.1", std::getenv("PEERBUS_SECOND_HOST")});
}
#endif

void add(const char* name, void (*function)(benchmark::State&, std::size_t)) {
  for (const std::size_t ranks : {2U, 64U, 320U, 1024U})
    benchmark::RegisterBenchmark(
        ("join/" + std::string{name} + "/ranks:" + std::to_string(ranks)).c_str(), function, ranks)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
}

[[maybe_unused]] const bool registered = [] {
  add("one_host", on_one_host);
#if PEERBUS_BENCH_TCP
  add("tcp", over_loopback);
  if (std::getenv("PEERBUS_SECOND_HOST") != nullptr) add("two_hosts", between_hosts);
#endif
  return true;
}();

}  // namespace
}  // namespace micro::join_bench

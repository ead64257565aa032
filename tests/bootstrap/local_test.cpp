// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/cgroup.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "support.hpp"

namespace local_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::rank_id;
using peerbus::run_local;
using peerbus::signal_word;

namespace {

/// Sleeps until a signal ends the process.
[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

std::vector<std::uint32_t> usable_cores() { return peerbus::usable_core_numbers(); }

bool runs_as_root() { return ::geteuid() == 0; }

/// A cgroup below that of this process, or of an ancestor, with a limit of its memory and without
/// swap. It is removed once it is empty and this process has ended, however that ends, or the
/// object has.
class limited_cgroup {
 public:
  explicit limited_cgroup(std::size_t bytes) {
    for (const std::string& parent : peerbus::cgroup_directories("", "memory")) {
      const std::string folder = parent + "/peerbus_test_" + std::to_string(::getpid());
      if (::mkdir(folder.c_str(), 0700) != 0) continue;
      folder_ = folder;
      remover_ = start_remover();
      for (const char* const limit :
           {"/memory.limit_in_bytes", "/memory.memsw.limit_in_bytes", "/memory.max"})
        is_limited_ = write(limit, std::to_string(bytes)) || is_limited_;
      static_cast<void>(write("/memory.swap.max", "0"));
      if (is_limited_ && enter_and_leave()) return;
      end();
    }
  }
  limited_cgroup(const limited_cgroup&) = delete;
  limited_cgroup& operator=(const limited_cgroup&) = delete;
  ~limited_cgroup() { end(); }

  /// Returns whether there is one: not without the right to make one.
  [[nodiscard]] bool exists() const { return !folder_.empty(); }

  /// Moves the process that calls into it.
  [[nodiscard]] bool enter() const { return write("/cgroup.procs", "0"); }

 private:
  [[nodiscard]] bool write(const std::string& file, const std::string& text) const {
    const peerbus::unique_fd open{::open((folder_ + file).c_str(), O_WRONLY | O_CLOEXEC)};
    return open && ::write(open.get(), text.data(), text.size()) == std::ssize(text);
  }
  [[nodiscard]] bool enter_and_leave() const {
    return status_of(in_child([this] { return enter() ? 0 : 1; })) == 0;
  }
  /// Starts a process that removes the folder. It sees this one end by a pipe of which only this
  /// one has the other end.
  pid_t start_remover() {
    std::array<int, 2> ends{};
    require(::pipe2(ends.data(), O_CLOEXEC) == 0, "a pipe");
    const peerbus::unique_fd told{ends[0]};
    alive_ = peerbus::unique_fd{ends[1]};
    const pid_t child = ::fork();
    if (child != 0) return child;
    alive_.reset();
    ::setsid();
    char byte = 0;
    while (::read(told.get(), &byte, 1) < 0 && errno == EINTR) {
    }
    int tries = 1000;
    while (::rmdir(folder_.c_str()) != 0 && --tries != 0) ::usleep(5000);
    ::_exit(tries != 0 ? 0 : 1);
  }
  void end() {
    if (!exists()) return;
    alive_.reset();
    CHECK(status_of(remover_) == 0);
    folder_.clear();
    is_limited_ = false;
  }

  std::string folder_;
  bool is_limited_ = false;
  peerbus::unique_fd alive_;
  pid_t remover_ = 0;
};

/// Runs `f` in a child of another user, who has limits where root has none.
template <class F>
int as_nobody(F f) {
  return status_of(in_child([&]() -> int {
    constexpr uid_t nobody = 65534;
    if (::setresgid(nobody, nobody, nobody) != 0 || ::setresuid(nobody, nobody, nobody) != 0)
      return 99;
    return f();
  }));
}

void limit_to(int resource, rlim_t most) {
  const rlimit limit{most, most};
  require(::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0, "a limit");
}

void forbid_pidfds() { forbid_calls(offsetof(seccomp_data, nr), SYS_pidfd_open); }
/// Forbids fcntl(2) with F_ADD_SEALS. No other call of these tests has this number there.
void forbid_seals() { forbid_calls(offsetof(seccomp_data, args[1]), F_ADD_SEALS); }

}  // namespace

TEST_CASE("run_local: a world of no ranks is refused") {
  const auto caught = error_of([] { (void)run_local(0, [](bootstrap&) {}); });
  CHECK(caught.code() == errc::invalid_argument);
  CHECK(contains(caught.what(), "a world of 0 ranks"));
  CHECK(contains(caught.what(), "expected at least 1"));
}

TEST_CASE("run_local: a world of too many ranks is refused before memory is taken") {
  const auto caught = error_of([] { (void)run_local(65536, [](bootstrap&) {}); });
  CHECK(caught.code() == errc::invalid_argument);
  CHECK(contains(caught.what(), "given to run_local, expected at most 65535"));
}

TEST_CASE("run_local: ranks are processes of their own") {
  const time_limit limit;
  int copied = 1;
  const pid_t parent = ::getpid();
  const int status = run_local(3, [&](bootstrap& boot) {
    require(boot.addresses() == peerbus::address_space::separate, "separate address spaces");
    require(::getppid() == parent, "children of the caller");
    copied = 2;
  });
  CHECK(status == 0);
  CHECK(copied == 1);
}

TEST_CASE("run_local: the worst exit status counts") {
  const time_limit limit;
  const auto worst_of = [](std::vector<int> statuses) {
    int worst = -1;
    const auto said = stderr_of([&] {
      worst = run_local(statuses.size(),
                        [&](bootstrap& boot) { return statuses[boot.rank().index()]; });
    });
    CHECK(said.empty());  // To end with a status is no accident.
    return worst;
  };
  CHECK(worst_of({0}) == 0);
  CHECK(worst_of({0, 7, 3}) == 7);
  CHECK(worst_of({0, -1}) == 255);
  CHECK(worst_of({256, 0}) == 255);
}

TEST_CASE("run_local: deaths are reported, and counted as shells count them") {
  const time_limit limit;
  int status = 0;
  auto said = stderr_of([&] {
    status = run_local(3, [](bootstrap& boot) {
      if (boot.rank() == rank_id{2}) ::kill(::getpid(), SIGKILL);
    });
  });
  CHECK(status == 128 + SIGKILL);
  CHECK(said == "peerbus: rank 2 died: killed by signal 9 (Killed)\n");

  said = stderr_of([&] {
    status = run_local(2, [](bootstrap& boot) {
      if (boot.rank() == rank_id{0}) ::kill(::getpid(), SIGUSR1);
    });
  });
  CHECK(status == 128 + SIGUSR1);
  CHECK(contains(said, "peerbus: rank 0 died: killed by signal 10"));

  // To end the process in the middle is not to have done one's part, even with status 0.
  said = stderr_of([&] {
    status = run_local(2, [](bootstrap& boot) {
      if (boot.rank() == rank_id{1}) ::_exit(0);
    });
  });
  CHECK(status == 1);
  CHECK(contains(said, "peerbus: rank 1 died: ended the process with status 0"));
}

TEST_CASE("run_local: exceptions are reported with their rank, once") {
  const time_limit limit;
  int status = 0;
  const auto said = stderr_of([&] {
    status = run_local(2, [](bootstrap& boot) {
      if (boot.rank() == rank_id{1}) throw peerbus::error{errc::unsupported, "no such thing"};
    });
  });
  CHECK(status == 1);
  CHECK(said == "peerbus: rank 1: no such thing [unsupported]\n");
}

TEST_CASE("run_local: who goes on after a death is killed when the grace is over") {
  const time_limit limit;
  const belongings before;
  int status = 0;
  const auto start = deadline::clock::now();
  const auto said = stderr_of([&] {
    status = run_local(4,
                       [](bootstrap& boot) {
                         if (boot.rank() == rank_id{0}) throw std::runtime_error{"boom"};
                         if (boot.rank() != rank_id{3}) sleep_for_ever();
                       },
                       {.grace = 100ms});
  });
  const auto took = deadline::clock::now() - start;
  CHECK(status == 137);
  CHECK(took >= 100ms);
  CHECK(took < 9s);
  CHECK(contains(said, "ranks 1, 2 did not end within 100 ms of the first failure: killed"));
  CHECK(belongings{} == before);
}

TEST_CASE("run_local: the longest grace is no short one") {
  const time_limit limit;
  int status = 0;
  const auto said = stderr_of([&] {
    status = run_local(2,
                       [](bootstrap& boot) {
                         if (boot.rank() == rank_id{0}) throw std::runtime_error{"boom"};
                         // Long enough for the parent to see the other one's end.
                         const auto until = patience();
                         while (boot.members()->state(rank_id{0}) == peerbus::rank_state::running &&
                                !until.expired())
                           ::usleep(1'000);
                         ::usleep(200'000);
                       },
                       {.grace = std::chrono::milliseconds::max()});
  });
  CHECK(status == 1);
  CHECK_FALSE(contains(said, "killed"));
}

TEST_CASE("run_local: a stopped rank does not keep the parent") {
  const time_limit limit;
  int status = 0;
  (void)stderr_of([&] {
    status = run_local(2,
                       [](bootstrap& boot) {
                         if (boot.rank() == rank_id{1}) ::raise(SIGSTOP);
                         throw std::runtime_error{"boom"};
                       },
                       {.grace = 50ms});
  });
  CHECK(status == 137);
}

TEST_CASE("run_local: pinned ranks take the usable cores in turn") {
  const time_limit limit;
  const auto cores = usable_cores();
  REQUIRE_FALSE(cores.empty());
  const int status =
      run_local(cores.size() + 1,
                [&](bootstrap& boot) {
                  const auto mine = usable_cores();
                  require(mine.size() == 1, "one core");
                  require(mine[0] == cores[boot.rank().index() % cores.size()], "the core in turn");
                  require(static_cast<std::uint32_t>(::sched_getcpu()) == mine[0], "to run there");
                  require(boot.cores_here() == cores.size(), "the cores of all ranks together");
                },
                {.pin = true});
  CHECK(status == 0);
  CHECK(usable_cores() == cores);

  CHECK(run_local(2, [&](bootstrap& boot) {
          require(usable_cores() == cores, "all cores");
          require(boot.cores_here() == cores.size(), "all cores");
        }) == 0);
}

TEST_CASE("run_local: what is buffered is written once, and what ranks write is not lost") {
  const time_limit limit;
  const peerbus::unique_fd file{::memfd_create("stdout", MFD_CLOEXEC)};
  const int status = status_of(in_child([&] {
    // Linux lets two writers share an offset of a memory file without a lock: one overwrites the
    // other.
    ::fcntl(file.get(), F_SETFL, O_APPEND);
    ::dup2(file.get(), STDOUT_FILENO);
    std::setvbuf(stdout, nullptr, _IOFBF, 4096);
    std::printf("before;");
    const int worst = run_local(2, [](bootstrap&) { std::printf("rank;"); });
    std::fflush(stdout);
    return worst;
  }));
  CHECK(status == 0);
  std::array<char, 100> text{};
  REQUIRE(::pread(file.get(), text.data(), text.size() - 1, 0) > 0);
  CHECK(std::string{text.data()} == "before;rank;rank;");
}

TEST_CASE("run_local: a rank whose output is lost does not succeed") {
  const time_limit limit;
  using writer = void (*)();
  for (const writer write : {writer{[] { std::printf("a line\n"); }}, writer{[] {
                               std::printf("a line\n");
                               std::fflush(stdout);
                             }},
                             writer{[] { std::cout << "a line\n"; }},
                             writer{[] { std::cout << "a line\n"
                                                   << std::flush; }}})
    CHECK(status_of(in_child([&] {
            const peerbus::unique_fd full{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
            ::dup2(full.get(), STDOUT_FILENO);
            std::setvbuf(stdout, nullptr, _IOFBF, 4096);
            require(run_local(2, [](bootstrap&) {}) == 0, "success without output");
            return run_local(2, [&](bootstrap& boot) {
              if (boot.rank() == rank_id{1}) write();
            });
          })) == 1);
}

TEST_CASE("run_local: a rank has no descriptors of others") {
  const time_limit limit;
  const std::size_t before = entries_of("/proc/self/fd");
  CHECK(run_local(8, [before](bootstrap& boot) {
          // Sockets to its peers, a pidfd for each, the set that watches those, and the page of
          // rank states, for observers.
          const std::size_t sockets = boot.rank().index() == 0 ? 7 : 1;
          require(entries_of("/proc/self/fd") == before + sockets + 7 + 1 + 1,
                  "its own descriptors only, not " +
                      std::to_string(entries_of("/proc/self/fd") - before) + " more");
        }) == 0);
}

TEST_CASE("run_local: children vanish with a parent that is killed") {
  const time_limit limit;
  // The ranks hold the writing end, and say a byte each; the end of file is the end of all.
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const peerbus::unique_fd reading{ends[0]};
  peerbus::unique_fd writing{ends[1]};
  const pid_t parent = in_child([&] {
    return run_local(4, [&](bootstrap&) {
      require(::write(writing.get(), "x", 1) == 1, "a byte");
      sleep_for_ever();
    });
  });
  writing.reset();
  char byte = 0;
  for (int i = 0; i < 4; ++i) REQUIRE(::read(reading.get(), &byte, 1) == 1);
  pollfd still_open{reading.get(), POLLIN, 0};
  CHECK(::poll(&still_open, 1, 0) == 0);
  ::kill(parent, SIGKILL);
  CHECK(status_of(parent) == 137);
  pollfd closed{reading.get(), POLLIN, 0};
  REQUIRE(::poll(&closed, 1, 20'000) == 1);
  CHECK(::read(reading.get(), &byte, 1) == 0);
}

TEST_CASE("run_local: other children of the program are none of its business") {
  const time_limit limit;
  const pid_t other = in_child([] { return 5; });
  CHECK(run_local(3, [](bootstrap&) {}) == 0);
  CHECK(status_of(other) == 5);
}

TEST_CASE("run_local: without pidfds it still counts, tells and ends") {
  const time_limit limit;
  CHECK(status_of(in_child([] {
          forbid_pidfds();
          require(run_local(3,
                            [](bootstrap& boot) {
                              (void)boot.allgather({}, patience(), "together");
                              return boot.rank() == rank_id{1} ? 4 : 0;
                            }) == 4,
                  "the worst status");
          shared<std::atomic<int>> told;
          shared<signal_word> never;
          int status = 0;
          const auto said = stderr_of([&] {
            status = run_local(4, [&](bootstrap& boot) {
              (void)boot.allgather({}, patience(), "together");
              if (boot.rank() == rank_id{2}) ::kill(::getpid(), SIGKILL);
              if (boot.rank() == rank_id{3}) {
                // No socket of rank 2 ends here: it is the parent that tells.
                const errc found = never->wait_at_least(1, patience(), {0, 0, 0, 1ms}, [&] {
                  return boot.members()->health(std::nullopt);
                });
                require(found == errc::peer_dead, "peer_dead");
              } else {
                const auto caught =
                    error_of([&] { (void)boot.allgather({}, patience(), "alone"); });
                require(caught.code() == errc::peer_dead, caught.what());
                require(contains(caught.what(), "rank 2"), caught.what());
              }
              ++*told;
            });
          });
          require(said == "peerbus: rank 2 died: killed by signal 9 (Killed)\n", said);
          require(status == 137 && told->load() == 3, "everybody told");
          return belongings{}.no_children ? 0 : 1;
        })) == 0);
}

TEST_CASE("run_local: where statuses would be lost it does not start") {
  const time_limit limit;
  CHECK(status_of(in_child([] {
          ::signal(SIGCHLD, SIG_IGN);
          const auto caught = error_of([] { (void)run_local(2, [](bootstrap&) {}); });
          return contains(caught.what(), "SIGCHLD") ? 0 : 1;
        })) == 0);
}

TEST_CASE("run_local: a handler that reaps all children takes no statuses away") {
  const time_limit limit;
  CHECK(status_of(in_child([] {
          ::signal(SIGCHLD, [](int) {
            const int number = errno;
            while (::waitpid(-1, nullptr, WNOHANG) > 0) {
            }
            errno = number;
          });
          int status = -1;
          const auto said = stderr_of([&] {
            status = run_local(3, [](bootstrap& boot) {
              // A child that returns is none of the ranks.
              if (boot.rank() == rank_id{2}) {
                const pid_t child = ::fork();
                if (child == 0) return 9;
                while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
                }
              }
              return 0;
            });
          });
          require(said.empty() && status == 0, "success, got " + std::to_string(status) + said);
          status = run_local(3, [](bootstrap& boot) { return boot.rank() == rank_id{1} ? 4 : 0; });
          require(status == 4, "the status of rank 1");
          const auto of_dead = stderr_of([&] {
            status = run_local(3, [](bootstrap& boot) {
              if (boot.rank() == rank_id{1}) ::kill(::getpid(), SIGKILL);
            });
          });
          require(status != 0 && contains(of_dead, "rank 1 died"), "a death, got " + of_dead);
          return 0;
        })) == 0);
}

TEST_CASE("run_local: a rank that is killed for memory is told from others") {
  const time_limit limit;
  constexpr std::size_t most = std::size_t{256} << 20U;
  const limited_cgroup cgroup{most};
  if (!cgroup.exists()) {
    MESSAGE("not tested: no cgroup with a limit of memory can be made here");
    return;
  }
  CHECK(status_of(in_child([&] {
          require(cgroup.enter(), "a process in the cgroup");
          const auto said = stderr_of([] {
            (void)run_local(2, [](bootstrap& boot) {
              (void)boot.allgather({}, patience(), "met");
              if (boot.rank() == rank_id{1}) {  // Each part is below the limit, and so no error.
                std::vector<std::vector<char>> parts;
                while (parts.size() < 8) parts.emplace_back(most / 4, 'x');
                require(false, "an end by the limit");
              }
              (void)boot.allgather({}, patience(), "first");
            });
          });
          for (const char* const cause :
               {"rank 1 died: killed by signal 9", "rank 0: allgather for 'first': rank 1 died ("})
            require(contains(said, cause), cause + said);
          constexpr const char* memory =
              "killed 1 process of this cgroup as memory ran out, limit 256 MiB)";
          require(said.find(memory) != said.rfind(memory), "the cause twice in " + said);
          return 0;
        })) == 0);
}

TEST_CASE("run_local: too few descriptors end it with an error and no process left") {
  const time_limit limit;
  CHECK(status_of(in_child([] {
          limit_to(RLIMIT_NOFILE, 32);
          const auto caught = error_of([] { (void)run_local(64, [](bootstrap&) { ::pause(); }); });
          require(caught.code() == errc::system, caught.what());
          require(contains(caught.what(), "ulimit -n"), caught.what());
          return belongings{}.no_children ? 0 : 1;
        })) == 0);
}

TEST_CASE("run_local: too few processes end it with an error and no process left") {
  if (!runs_as_root()) return;  // Only root can become a user of whom nothing else runs.
  const time_limit limit;
  CHECK(as_nobody([] {
          limit_to(RLIMIT_NPROC, 6);
          const auto caught = error_of([] { (void)run_local(64, [](bootstrap&) { ::pause(); }); });
          require(caught.code() == errc::system, caught.what());
          require(contains(caught.what(), "starting the process of rank"), caught.what());
          require(contains(caught.what(), "of 64 (see `ulimit -u`, and pids.max"), caught.what());
          return belongings{}.no_children ? 0 : 1;
        }) == 0);
}

TEST_CASE("run_local: more descriptors than may be under way at once pass all the same") {
  if (!runs_as_root()) return;  // Root is not limited.
  const time_limit limit;
  const int status = as_nobody([] {
    limit_to(RLIMIT_NOFILE, 100);
    return run_local(20, [](bootstrap& boot) {
      for (int round = 0; round < 5; ++round) {
        peerbus::unique_fd file{::memfd_create("one of many", MFD_CLOEXEC)};
        require(static_cast<bool>(file), "a file");
        const auto given = boot.allgather({{}, std::move(file)}, patience(), "many");
        for (const auto& one : given) require(static_cast<bool>(one.fd), "a descriptor");
      }
    });
  });
  CHECK(status == 0);
}

TEST_CASE("run_local: a rank that runs out of descriptors tells all") {
  const time_limit limit;
  for (std::size_t poor : {0U, 2U}) {
    CAPTURE(poor);
    CHECK(run_local(4, [poor](bootstrap& boot) {
            if (boot.rank().index() == poor) {
              rlimit few{};
              ::getrlimit(RLIMIT_NOFILE, &few);
              few.rlim_cur = entries_of("/proc/self/fd") - 3 + 2;
              ::setrlimit(RLIMIT_NOFILE, &few);
            }
            peerbus::unique_fd file{::memfd_create("one", MFD_CLOEXEC)};
            try {
              (void)boot.allgather({{}, std::move(file)}, patience(), "files");
            } catch (const peerbus::error& caught) {
              require(caught.code() == errc::system || caught.code() == errc::peer_dead,
                      caught.what());
              require(contains(caught.what(), peerbus::detail::concat(rank_id{poor})),
                      caught.what());
              return;
            }
            require(boot.rank().index() != poor && poor != 0, "no success without descriptors");
            const auto after = error_of([&] { (void)boot.allgather({}, patience(), "next"); });
            require(contains(after.what(), peerbus::detail::concat(rank_id{poor})), after.what());
          }) == 0);
  }
}

TEST_CASE("memory files: one whose size cannot be sealed is refused") {
  CHECK(status_of(in_child([] {
          forbid_seals();
          const auto caught = error_of([] { (void)peerbus::make_memory_file("peerbus-test", 8); });
          require(caught.code() == errc::system, caught.what());
          require(contains(caught.what(), "sealing the size of a memory file"), caught.what());
          return 0;
        })) == 0);
}

}  // namespace local_test

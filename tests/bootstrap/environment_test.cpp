// SPDX-License-Identifier: MIT
// ctest: waits
#include <linux/seccomp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/hello.hpp>
#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/detail/local_rendezvous.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/launch_environment.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "support.hpp"
#include "support/given_time.hpp"

namespace environment_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::environment_bootstrap;
using peerbus::launch_settings;
using peerbus::rank_id;
using peerbus::unique_fd;

namespace {

constexpr const char* launch_variables[] = {"RANK",
                                            "WORLD_SIZE",
                                            "LOCAL_RANK",
                                            "LOCAL_WORLD_SIZE",
                                            "MASTER_ADDR",
                                            "MASTER_PORT",
                                            "TORCHELASTIC_RUN_ID",
                                            "OMPI_COMM_WORLD_RANK",
                                            "OMPI_COMM_WORLD_SIZE",
                                            "OMPI_COMM_WORLD_LOCAL_RANK",
                                            "OMPI_COMM_WORLD_LOCAL_SIZE",
                                            "PMIX_NAMESPACE",
                                            "PMI_RANK",
                                            "PMI_SIZE",
                                            "PMI_JOBID",
                                            "MPI_LOCALRANKID",
                                            "MPI_LOCALNRANKS",
                                            "SLURM_PROCID",
                                            "SLURM_NTASKS",
                                            "SLURM_LOCALID",
                                            "SLURM_JOB_ID",
                                            "SLURM_RESTART_COUNT",
                                            "PEERBUS_JOB",
                                            "PEERBUS_RANK_VARIABLE",
                                            "PMIX_RANK",
                                            "SLURM_STEP_ID",
                                            "SLURM_STEP_NUM_NODES",
                                            "SLURM_STEP_NUM_TASKS"};

using variables = std::vector<std::pair<const char*, const char*>>;

/// Runs `f` in a process that has these launch variables, and no others. Returns: its status.
template <class F>
int with_variables(const variables& set, F f) {
  return status_of(in_child([&] {
    for (const char* name : launch_variables) ::unsetenv(name);
    for (const auto& [name, value] : set) ::setenv(name, value, 1);
    return f();
  }));
}

/// Whether `from_environment` throws `code` at once with all of `parts` in its text.
bool refuses(const variables& set, errc code, const std::vector<std::string>& parts) {
  return with_variables(set, [&] {
           const auto caught = error_of([] { (void)environment_bootstrap::from_environment(); });
           require(caught.code() == code, caught.what());
           for (const auto& part : parts)
             require(contains(caught.what(), part), part + " in: " + caught.what());
           return 0;
         }) == 0;
}

/// The settings of a rank of a group that meets at `port`.
launch_settings seat(std::size_t rank, std::size_t size, std::uint16_t port) {
  launch_settings settings;
  settings.rank = settings.local_rank = rank;
  settings.size = size;
  settings.address = own_address();
  settings.port = port;
  return settings;
}

/// A rank in a process of its own that expects the rendezvous to fail with `code` and all of
/// `parts`.
pid_t expects(const launch_settings& settings, deadline::clock::duration span, errc code,
              const std::vector<std::string>& parts) {
  return in_child([&] {
    const auto caught =
        error_of([&] { environment_bootstrap boot{settings, deadline::after(span)}; });
    require(caught.code() == code, std::string{"another code than of: "} + caught.what());
    for (const auto& part : parts)
      require(contains(caught.what(), part), part + " in: " + caught.what());
    return 0;
  });
}

bool all_as_expected(const std::vector<pid_t>& children) {
  bool all = true;
  for (const pid_t child : children) all = status_of(child) == 0 && all;
  return all;
}

/// Connects to the rendezvous point once somebody has opened it.
unique_fd call_at(std::uint16_t port) {
  const peerbus::detail::rendezvous_point place{seat(1, 2, port)};
  for (const auto until = patience(); !until.expired(); ::usleep(1000)) {
    unique_fd socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (::connect(socket.get(), place.get(), place.bytes) == 0) return socket;
  }
  throw std::runtime_error{"expected a rendezvous point"};
}

/// Says `greeting` to rank 0.
void greet(const unique_fd& call, const peerbus::detail::hello& greeting) {
  const auto bytes = greeting.encode();
  require(::send(call.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(bytes.size()),
          "a greeting");
}

}  // namespace

TEST_CASE("environment: knows whether a launcher has started the process") {
  const time_limit limit;
  const auto launched = [](const variables& set) {
    return with_variables(set, [] { return environment_bootstrap::launched() ? 1 : 0; }) == 1;
  };
  CHECK_FALSE(launched({}));
  CHECK_FALSE(launched({{"MASTER_ADDR", "127.0.0.1"}, {"LOCAL_RANK", "0"}}));
  CHECK(launched({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  CHECK(launched({{"WORLD_SIZE", "2"}}));
  CHECK(launched({{"PEERBUS_RANK_VARIABLE", "RANK"}}));
  CHECK(launched({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
  CHECK(launched({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}));
  CHECK(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}}));
  // A batch script is not a task of a step.
  CHECK_FALSE(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}));

  // Nor is the shell of `salloc -n 4`, or of `srun --pty -n 1` in an allocation of four.
  const auto in_step = [](const char* tasks, const char* step, const char* tasks_of_step) {
    return variables{{"SLURM_PROCID", "0"},
                     {"SLURM_NTASKS", tasks},
                     {"SLURM_STEP_ID", step},
                     {"SLURM_STEP_NUM_TASKS", tasks_of_step}};
  };
  CHECK_FALSE(launched(in_step("4", "4294967290", "1")));
  CHECK_FALSE(launched(in_step("1", "4294967290", "1")));
  CHECK_FALSE(launched(in_step("4", "4294967291", "4")));
  CHECK_FALSE(launched(in_step("4", "3", "1")));
  CHECK(launched(in_step("4", "3", "4")));
  CHECK(launched(in_step("1", "3", "1")));
  CHECK(launched({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"SLURM_STEP_ID", "4294967290"}}));
}

// What the test below starts as programs of their own, since /proc shows the environment of a
// process as it was at its start.
TEST_CASE("environment part: a launched program" * doctest::skip()) {
  CHECK(environment_bootstrap::launched());
}

TEST_CASE("environment part: a program that is not launched" * doctest::skip()) {
  CHECK_FALSE(environment_bootstrap::launched());
}

TEST_CASE("environment part: a child of a rank" * doctest::skip()) {
  CHECK_FALSE(environment_bootstrap::launched());
  const auto caught = error_of([] { (void)environment_bootstrap::from_environment(); });
  CHECK(caught.code() == errc::invalid_argument);
  CHECK(contains(caught.what(), peerbus::detail::concat("RANK is 0 and WORLD_SIZE is 2, but that ",
                                                        "rank is process ", ::getppid())));
}

namespace {

/// Returns the command for the shell that runs a test case of this program as a program.
std::string part(const std::string& name) {
  return "'" + std::filesystem::read_symlink("/proc/self/exe").string() +
         "' --no-skip --minimal -tc='environment part: " + name + "'";
}

bool succeeds(const std::string& command) { return std::system(command.c_str()) == 0; }

}  // namespace

TEST_CASE("environment part: a rank that starts programs" * doctest::skip()) {
  const bool is_alone = std::string{std::getenv("WORLD_SIZE")} == "1";
  const char* const child = is_alone ? "a program that is not launched" : "a child of a rank";
  std::vector<pid_t> ranks;
  if (!is_alone)
    ranks.push_back(in_child([] {
      ::setenv("RANK", "1", 1);
      const auto boot = environment_bootstrap::from_environment(patience());
      (void)boot.members();
      return 0;
    }));
  {
    auto boot = environment_bootstrap::from_environment(patience());
    CHECK(environment_bootstrap::launched());
    CHECK(succeeds("exec env " + part(child)));
    // In a wrapper, and with another launcher between.
    CHECK(succeeds("env " + part("a program that is not launched") + "; exit $?"));
    CHECK(succeeds("exec env RANK=1 WORLD_SIZE=3 " + part("a launched program")));
    CHECK(succeeds("exec env PEERBUS_RANK_VARIABLE=RANK " + part("a launched program")));
  }
  CHECK(succeeds("exec env " + part("a launched program")));
  CHECK(all_as_expected(ranks));
}

TEST_CASE("environment: variables that a process has inherited from a rank are no launch") {
  const time_limit limit;
  for (const char* size : {"1", "2"}) {
    CAPTURE(size);
    CHECK(with_variables(
              {{"MASTER_ADDR", own_address().c_str()}, {"RANK", "0"}, {"WORLD_SIZE", size}}, [] {
                return succeeds("exec env " + part("a rank that starts programs")) ? 0 : 1;
              }) == 0);
  }
}

TEST_CASE("environment: a shell that is a group of one rank is no launch, a wrapper is") {
  const time_limit limit;
  // Runs the part by a shell that reads it from a pipe, or that has it as its argument.
  const auto runs = [](const char* name, const char* size, const char* shell, bool by_pipe) {
    return with_variables({}, [&] {
             // The second command keeps the shell from making way for the first.
             ::setenv("SCRIPT", (part(name) + "; exit $?").c_str(), 1);
             const std::string ranks = std::string{"RANK=0 WORLD_SIZE="} + size + " " + shell;
             return succeeds(by_pipe ? "echo \"$SCRIPT\" | " + ranks : ranks + " -c \"$SCRIPT\"")
                        ? 0
                        : 1;
           }) == 0;
  };
  const char* const launched = "a launched program";
  const char* const not_launched = "a program that is not launched";
  for (const char* shell : {"sh", "bash"}) {
    CAPTURE(shell);
    CHECK(runs(launched, "1", shell, false));
    CHECK(runs(not_launched, "1", shell, true));
    CHECK(runs(launched, "2", shell, true));
  }
  CHECK(runs(not_launched, "1", "bash --norc", true));
  CHECK(runs(not_launched, "1", "bash --norc -i 2>/dev/null", false));
  CHECK(runs(launched, "1", "bash -e", false));
}

TEST_CASE("environment: variables that are missing or wrong are named, with what was expected") {
  const time_limit limit;
  const auto invalid = errc::invalid_argument;
  CHECK(refuses({}, invalid, {"RANK and WORLD_SIZE are not set"}));
  CHECK(refuses({{"RANK", "0"}}, invalid, {"WORLD_SIZE is not set", "RANK is"}));
  CHECK(refuses({{"WORLD_SIZE", "2"}}, invalid, {"RANK is not set", "from 0 to 1"}));
  CHECK(refuses({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, invalid,
                {"WORLD_SIZE is '0'", "expected a number of ranks from 1"}));
  CHECK(refuses({{"RANK", "0"}, {"WORLD_SIZE", "99999999"}}, invalid, {"'99999999'", "to 65536"}));
  CHECK(refuses({{"RANK", "8"}, {"WORLD_SIZE", "8"}}, invalid,
                {"RANK is '8'", "expected a rank from 0 to 7"}));
  for (const char* text : {"", "x", "-1", "1x", " 1", "1.0", "0x1", "18446744073709551617"}) {
    CHECK(refuses({{"RANK", text}, {"WORLD_SIZE", "2"}}, invalid,
                  {std::string{"RANK is '"} + text + "'", "expected a rank from 0 to 1"}));
    CHECK(refuses({{"RANK", "0"}, {"WORLD_SIZE", text}}, invalid,
                  {std::string{"WORLD_SIZE is '"} + text + "'"}));
    CHECK(refuses({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", text}}, invalid,
                  {std::string{"MASTER_PORT is '"} + text + "'"}) == (std::string{text} != "1"));
  }
  CHECK(refuses({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "65536"}}, invalid,
                {"MASTER_PORT is '65536'", "from 0 to 65535"}));
  CHECK(refuses({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "1"}}, invalid,
                {"LOCAL_RANK is '1'"}));
  CHECK(refuses({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, invalid,
                {"OMPI_COMM_WORLD_RANK is '3'"}));
  CHECK(refuses({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "-2"}, {"SLURM_STEP_ID", "0"}}, invalid,
                {"SLURM_NTASKS is '-2'"}));
}

TEST_CASE("environment: groups that span hosts are refused at once") {
  const time_limit limit;
  CHECK(refuses({{"RANK", "0"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}}, errc::unsupported,
                {"LOCAL_WORLD_SIZE is 4", "WORLD_SIZE is 8", "one host", "tcp_bootstrap"}));
  CHECK(refuses({{"SLURM_PROCID", "0"},
                 {"SLURM_NTASKS", "2"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_STEP_NUM_NODES", "2"}},
                errc::unsupported, {"SLURM_STEP_NUM_NODES is '2'", "one host"}));
}

TEST_CASE("environment: reads what each launcher sets") {
  const time_limit limit;
  const auto reads = [](const variables& set, std::size_t rank, std::size_t size,
                        std::size_t local_rank) {
    return with_variables(set, [&] {
             const auto read = peerbus::detail::read_launch_settings();
             return read.rank == rank && read.size == size && read.local_rank == local_rank ? 0 : 1;
           }) == 0;
  };
  CHECK(reads({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}}, 2, 4, 1));
  CHECK(reads({{"RANK", "2"}, {"WORLD_SIZE", "4"}}, 2, 4, 2));
  CHECK(reads({{"OMPI_COMM_WORLD_RANK", "2"},
               {"OMPI_COMM_WORLD_SIZE", "4"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}},
              2, 4, 0));
  CHECK(reads({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}}, 1, 3, 1));
  CHECK(reads({{"SLURM_PROCID", "1"},
               {"SLURM_NTASKS", "3"},
               {"SLURM_LOCALID", "2"},
               {"SLURM_STEP_ID", "0"}},
              1, 3, 2));
}

TEST_CASE("environment: launchers that give different places are refused, unless one is chosen") {
  const time_limit limit;
  const auto reads = [](const variables& set, std::size_t rank, std::size_t size) {
    return with_variables(set, [&] {
             const auto read = peerbus::detail::read_launch_settings(peerbus::detail::hosts::any);
             return read.rank == rank && read.size == size ? 0 : 1;
           }) == 0;
  };
  const auto with = [](variables set, const variables& more) {
    set.insert(set.end(), more.begin(), more.end());
    return set;
  };
  const variables script{{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  const variables mpirun{{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  const variables srun{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}};
  const auto invalid = errc::invalid_argument;
  CHECK(refuses(with(script, mpirun), invalid,
                {"RANK is 0 and WORLD_SIZE is 1, but OMPI_COMM_WORLD_RANK is 3 and "
                 "OMPI_COMM_WORLD_SIZE is 4",
                 "PEERBUS_RANK_VARIABLE"}));
  CHECK(refuses(with(script, srun), invalid, {"SLURM_PROCID is 1 and SLURM_NTASKS is 2"}));
  CHECK(refuses(with(script, {{"PMIX_RANK", "7"}}), invalid, {"RANK is 0", "PMIX_RANK is 7"}));
  CHECK(refuses(with(script, {{"PMI_SIZE", "2"}}), invalid,
                {"PMI_RANK is not set and PMI_SIZE is 2"}));
  CHECK(refuses(with(mpirun, {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}}), invalid,
                {"OMPI_COMM_WORLD_SIZE is 4, but PMI_RANK is 3 and PMI_SIZE is 8"}));

  CHECK(reads(with(script, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"PMIX_RANK", "0"}}), 0, 1));
  // torchrun and mpirun run in processes that another engine has started.
  CHECK(
      reads(with(with(script, mpirun), {{"TORCHELASTIC_RUN_ID", "t"}, {"PMIX_RANK", "7"}}), 0, 1));
  CHECK(reads(with(mpirun, srun), 3, 4));

  const auto choice = [](const char* name) { return std::pair{"PEERBUS_RANK_VARIABLE", name}; };
  CHECK(reads(with(with(script, mpirun), {choice("RANK")}), 0, 1));
  CHECK(reads(with(with(script, mpirun), {choice("OMPI_COMM_WORLD_RANK")}), 3, 4));
  CHECK(refuses(with(script, {choice("rank")}), invalid,
                {"PEERBUS_RANK_VARIABLE is 'rank', expected RANK, OMPI_COMM_WORLD_RANK"}));
  CHECK(refuses(with(script, {choice("SLURM_PROCID")}), invalid,
                {"SLURM_NTASKS is not set although PEERBUS_RANK_VARIABLE is"}));
}

TEST_CASE("environment: tools are told what a launcher has set, and what is wrong with it") {
  const time_limit limit;
  const auto reads = [](const variables& set, const peerbus::launch_environment& expected) {
    return with_variables(set, [&] {
             const auto read = peerbus::read_launch_environment();
             const bool same_place = read.rank_variable == expected.rank_variable &&
                                     read.rank == expected.rank &&
                                     read.other_hosts == expected.other_hosts;
             const bool same_trouble = read.trouble.empty() == expected.trouble.empty() &&
                                       read.trouble.find(expected.trouble) != std::string::npos;
             return same_place && same_trouble ? 0 : 1;
           }) == 0;
  };
  CHECK(reads({}, {}));
  CHECK(reads({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}}, {"PMI_RANK", 1, "", ""}));
  CHECK(reads({{"RANK", "0"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}},
              {"RANK", std::nullopt, "LOCAL_WORLD_SIZE is 4 but WORLD_SIZE is 8",
               "MASTER_ADDR is not set"}));
  CHECK(reads(
      {{"RANK", "0"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}},
      {"RANK", 0, "LOCAL_WORLD_SIZE is 4 but WORLD_SIZE is 8", ""}));
  CHECK(reads({{"PEERBUS_RANK_VARIABLE", "rank"}},
              {"", std::nullopt, "", "PEERBUS_RANK_VARIABLE is 'rank'"}));

  const auto names = peerbus::launch_variable_names();
  for (const char* const name : {"RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "SLURM_STEP_ID",
                                 "PEERBUS_RANK_VARIABLE", "PMIX_RANK"})
    CHECK(std::count(names.begin(), names.end(), name) == 1);
}

TEST_CASE("environment: reads the id of the job from its variable or from the launcher") {
  const time_limit limit;
  const auto reads = [](const variables& set, const char* job) {
    return with_variables(set, [&] {
             return peerbus::detail::read_launch_settings().job == job ? 0 : 1;
           }) == 0;
  };
  const auto slurm = [](variables more) {
    more.insert(more.end(), {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}});
    return more;
  };
  CHECK(reads({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, ""));
  CHECK(reads({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PEERBUS_JOB", "7"}}, "7"));
  CHECK(reads({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", "t"}}, "t"));
  CHECK(reads(slurm({{"SLURM_JOB_ID", "12"}, {"MASTER_PORT", "3000"}}), "12.0"));
  CHECK(reads(slurm({{"SLURM_JOB_ID", "12"}, {"SLURM_RESTART_COUNT", "1"}}), "12.0.1"));
  CHECK(reads(slurm({{"SLURM_JOB_ID", "12"}, {"PEERBUS_JOB", "7"}}), "7"));
}

TEST_CASE("environment: settings that make no sense are refused") {
  for (const auto& [rank, size] : {std::pair{0U, 0U}, std::pair{2U, 2U}, std::pair{0U, 70'000U}}) {
    const auto caught = error_of([rank = rank, size = size] {
      environment_bootstrap boot{seat(rank, size, 1), patience()};
    });
    CHECK(caught.code() == errc::invalid_argument);
  }
}

TEST_CASE("environment: one after another at the same place") {
  const time_limit limit;
  const belongings before;
  const auto port = fresh_port();
  std::vector<pid_t> ranks;
  ranks.reserve(8);
  for (std::size_t rank = 0; rank < 3; ++rank)
    ranks.push_back(in_child([=] {
      for (int round = 0; round < 20; ++round) {
        environment_bootstrap boot{seat(rank, 3, port), patience()};
        require(boot.rank() == rank_id{rank} && boot.size() == 3, "the place asked for");
        require(boot.local_rank() == rank, "the local rank");
        (void)boot.allgather({}, patience(), "together");
      }
      return 0;
    }));
  CHECK(all_as_expected(ranks));
  CHECK(belongings{} == before);
}

TEST_CASE("environment: ranks that do not join are named to all that did") {
  const time_limit limit;
  const belongings before;
  CHECK(given_time(300ms, [](auto span) {
    const auto port = fresh_port();
    std::vector<pid_t> ranks;
    ranks.reserve(8);
    for (std::size_t rank : {0U, 1U, 2U, 4U, 6U, 7U})
      ranks.push_back(expects(seat(rank, 8, port), span, errc::timed_out,
                              {"ranks 3, 5 of 8 did not join within ",
                               " at " + own_address() + ":" + std::to_string(port)}));
    return all_as_expected(ranks);
  }));
  CHECK(belongings{} == before);
}

TEST_CASE("environment: without rank 0 the others say so") {
  const time_limit limit;
  const auto port = fresh_port();
  CHECK(all_as_expected({expects(seat(1, 3, port), 100ms, errc::timed_out,
                                 {"rank 0 of 3 did not come", " ms", "rank 1 waited",
                                  "in one network namespace (container, pod)"}),
                         expects(seat(2, 3, port), 100ms, errc::timed_out,
                                 {"rank 0 of 3 did not come", " ms", "rank 2 waited"})}));
}

TEST_CASE("environment: a rank 0 that cannot make its memory file tells the others why") {
  const time_limit limit;
  const auto port = fresh_port();
  const pid_t rank_0 = in_child([&] {
    const rlimit no_file{0, 0};
    require(::setrlimit(RLIMIT_FSIZE, &no_file) == 0, "a limit");
    const auto caught = error_of([&] { environment_bootstrap boot{seat(0, 2, port), patience()}; });
    require(contains(caught.what(), "a memory file needs"), caught.what());
    return 0;
  });
  // If it waited for its deadline, it would say that rank 0 did not come.
  CHECK(all_as_expected({rank_0, expects(seat(1, 2, port), 60s, errc::out_of_memory,
                                         {"rank 0: ", "a memory file needs"})}));
}

TEST_CASE("environment: a rank that comes twice is an error on all ranks") {
  const time_limit limit;
  for (std::size_t twice : {0U, 2U}) {
    CAPTURE(twice);
    const auto port = fresh_port();
    std::vector<pid_t> ranks;
    ranks.reserve(8);
    for (std::size_t rank : {std::size_t{0}, std::size_t{1}, std::size_t{2}, twice})
      ranks.push_back(expects(seat(rank, 4, port), 60s, errc::mismatch,
                              {peerbus::detail::concat(rank_id{twice}, " came twice")}));
    CHECK(all_as_expected(ranks));
  }
}

TEST_CASE("environment: different world sizes are an error on all ranks") {
  const time_limit limit;
  const auto port = fresh_port();
  std::vector<pid_t> ranks;
  ranks.reserve(8);
  for (std::size_t rank = 0; rank < 4; ++rank)
    ranks.push_back(expects(seat(rank, rank == 2 ? 8 : 4, port), 60s, errc::mismatch,
                            {"rank 2 was started with a world size of 8, rank 0 with 4"}));
  CHECK(all_as_expected(ranks));
}

TEST_CASE("environment: a rank that dies while the others meet is an error on all ranks") {
  const time_limit limit;
  const auto port = fresh_port();
  std::vector<pid_t> ranks;
  ranks.reserve(8);
  for (std::size_t rank = 0; rank < 2; ++rank)
    ranks.push_back(expects(seat(rank, 4, port), 60s, errc::peer_dead, {"rank 2 of 4 was gone"}));
  const pid_t victim = in_child([=] {
    const auto socket = call_at(port);
    greet(socket, {.version = {}, .rank = 2, .size = 4, .process = {}});
    return ::kill(::getpid(), SIGKILL);
  });
  CHECK(status_of(victim) == 137);
  CHECK(all_as_expected(ranks));
}

TEST_CASE("environment: a rank 0 that dies while the others meet does not keep them") {
  const time_limit limit;
  const auto port = fresh_port();
  const pid_t first = in_child([=] {
    environment_bootstrap boot{seat(0, 3, port), patience()};
    return 0;
  });
  const pid_t other = in_child([=] {
    const auto caught =
        error_of([&] { environment_bootstrap boot{seat(1, 3, port), deadline::after(500ms)}; });
    // It hung up, or was never there: that depends on who was first.
    require(caught.code() == errc::peer_dead || caught.code() == errc::timed_out, caught.what());
    return 0;
  });
  (void)call_at(port);
  ::kill(first, SIGKILL);
  CHECK(status_of(first) == 137);
  CHECK(status_of(other) == 0);
}

TEST_CASE("environment: a place that somebody else holds is an error on all ranks") {
  const time_limit limit;
  const auto port = fresh_port();
  const peerbus::detail::rendezvous_point place{seat(0, 2, port)};
  const unique_fd squatter{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  REQUIRE(::bind(squatter.get(), place.get(), place.bytes) == 0);
  REQUIRE(::listen(squatter.get(), 64) == 0);
  SUBCASE("and says nothing") {
    CHECK(all_as_expected(
        {expects(seat(0, 2, port), 300ms, errc::system,
                 {"in use by another process", "MASTER_PORT"}),
         expects(seat(1, 2, port), 300ms, errc::timed_out, {"did not answer within "})}));
  }
  SUBCASE("and talks nonsense") {
    const std::vector<pid_t> ranks{
        expects(seat(0, 2, port), 60s, errc::system, {"does not speak as rank 0", "MASTER_PORT"}),
        expects(seat(1, 2, port), 60s, errc::system, {"does not speak as rank 0", "MASTER_PORT"})};
    std::array<unique_fd, 2> calls;
    for (auto& call : calls) {
      call.reset(::accept(squatter.get(), nullptr, nullptr));
      const std::string answer(500, 'H');
      CHECK(::send(call.get(), answer.data(), answer.size(), MSG_NOSIGNAL) == 500);
    }
    CHECK(all_as_expected(ranks));
  }
}

TEST_CASE("environment: another user's socket is no rendezvous point") {
  if (::geteuid() != 0) return;  // Only root can be two users.
  const time_limit limit;
  const auto port = fresh_port();
  const peerbus::detail::rendezvous_point place{seat(0, 2, port)};
  int ready[2];
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  const unique_fd reading{ready[0]};
  const unique_fd writing{ready[1]};
  const pid_t squatter = in_child([&] {
    require(::setresuid(65534, 65534, 65534) == 0, "another user");
    const unique_fd socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    require(::bind(socket.get(), place.get(), place.bytes) == 0, "the name");
    require(::listen(socket.get(), 64) == 0, "callers");
    require(::write(writing.get(), "x", 1) == 1, "a byte");
    for (;;) ::pause();
    return 0;
  });
  char byte = 0;
  REQUIRE(::read(reading.get(), &byte, 1) == 1);
  CHECK(all_as_expected(
      {expects(seat(0, 2, port), 60s, errc::system, {"belongs to user 65534", "MASTER_PORT"}),
       expects(seat(1, 2, port), 60s, errc::system, {"belongs to user 65534", "MASTER_PORT"})}));
  ::kill(squatter, SIGKILL);
  status_of(squatter);
}

TEST_CASE("environment: strangers who call at the rendezvous neither break nor delay it") {
  const time_limit limit;
  const belongings before;
  const auto port = fresh_port();
  const auto run = [=](std::size_t rank) {
    return in_child([=] {
      environment_bootstrap boot{seat(rank, 3, port), patience()};
      (void)boot.allgather({}, patience(), "together");
      return 0;
    });
  };
  std::vector<pid_t> ranks{run(0), run(1)};
  std::mt19937_64 random{7};
  std::vector<unique_fd> silent;
  for (int i = 0; i < 400; ++i) {
    unique_fd call = call_at(port);
    std::array<std::byte, 64> noise;
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    switch (i % 4) {
      case 0: break;  // hangs up at once
      case 1: silent.push_back(std::move(call)); break;
      case 2: (void)!::send(call.get(), noise.data(), random() % 64, MSG_NOSIGNAL); break;
      default:
        (void)!::send(call.get(), noise.data(), 5, MSG_NOSIGNAL);
        silent.push_back(std::move(call));
    }
  }
  ranks.push_back(run(2));
  CHECK(all_as_expected(ranks));
  silent.clear();
  CHECK(belongings{} == before);
}

TEST_CASE("environment: strangers who call without end do not keep rank 0 from its deadline") {
  const time_limit limit;
  // More callers than rank 0 can take: their queue at its socket never gets empty. Those of another
  // user, which only root can make, are hung up on as soon as they are taken.
  constexpr int callers = 6;
  constexpr auto calling = 40s;
  for (const bool of_another_user : {false, true}) {
    if (of_another_user && ::geteuid() != 0) {
      MESSAGE("only root can call as another user");
      continue;
    }
    CAPTURE(of_another_user);
    const auto port = fresh_port();
    const peerbus::detail::rendezvous_point place{seat(0, 2, port)};
    std::vector<pid_t> strangers;
    for (int i = 0; i < callers; ++i)
      strangers.push_back(in_child([&] {
        if (of_another_user) require(::setresuid(65534, 65534, 65534) == 0, "another user");
        for (const auto until = deadline::after(calling); !until.expired();) {
          const unique_fd call{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
          (void)::connect(call.get(), place.get(), place.bytes);
        }
        return 0;
      }));
    const auto start = deadline::clock::now();
    CHECK(all_as_expected(
        {expects(seat(0, 2, port), 300ms, errc::timed_out, {"rank 1 of 2 did not join within "})}));
    CHECK(deadline::clock::now() - start < calling / 2);
    for (const pid_t stranger : strangers) {
      ::kill(stranger, SIGKILL);
      status_of(stranger);
    }
  }
}

TEST_CASE("environment: a sandbox that forbids abstract Unix sockets is named at once") {
  const time_limit limit;
  CHECK(status_of(in_child([] {
          forbid_calls(offsetof(seccomp_data, nr), SYS_connect, EPERM);
          const auto caught =
              error_of([] { environment_bootstrap boot{seat(1, 2, fresh_port()), patience()}; });
          require(caught.code() == errc::system, caught.what());
          for (const std::string& part :
               {std::string{"abstract Unix socket"}, own_address(), std::string{"Landlock"},
                std::string{"Operation not permitted"}})
            require(contains(caught.what(), part), part + " in: " + caught.what());
          return 0;
        })) == 0);
}

TEST_CASE("environment: a rank of another build is told so") {
  const time_limit limit;
  const auto port = fresh_port();
  const pid_t first =
      expects(seat(0, 2, port), 60s, errc::mismatch, {"protocol 99", "expected one build"});
  const auto call = call_at(port);
  greet(call, {.version = {.protocol = 99}, .rank = 1, .size = 2, .process = {}});
  CHECK(status_of(first) == 0);
}

TEST_CASE("environment: the destructor tells how the rank ended") {
  const time_limit limit;
  const auto port = fresh_port();
  std::vector<pid_t> ranks;
  ranks.reserve(8);
  for (std::size_t rank = 0; rank < 3; ++rank)
    ranks.push_back(in_child([=] {
      try {
        environment_bootstrap boot{seat(rank, 3, port), patience()};
        if (rank == 1) return 0;
        if (rank == 2) throw std::runtime_error{"enough"};
        const auto until = patience();
        const auto& members = boot.members();
        while (!until.expired() && (members->state(rank_id{1}) == peerbus::rank_state::running ||
                                    members->state(rank_id{2}) == peerbus::rank_state::running)) {
        }
        require(members->describe_missing() == "rank 1 left, rank 2 failed",
                "both fates, not: " + members->describe_missing());
      } catch (const std::runtime_error& caught) {
        return std::string{caught.what()} == "enough" ? 0 : 1;
      }
      return 0;
    }));
  CHECK(all_as_expected(ranks));
}

TEST_CASE("environment: long addresses and jobs keep apart") {
  const time_limit limit;
  const auto port = fresh_port();
  std::vector<pid_t> ranks;
  ranks.reserve(8);
  for (const char* job : {"a", "b"})
    for (std::size_t rank = 0; rank < 2; ++rank)
      ranks.push_back(in_child([=] {
        auto settings = seat(rank, 2, port);
        settings.address += std::string(300, 'x');
        settings.job = job;
        environment_bootstrap boot{settings, patience()};
        const auto given = boot.allgather({bytes_of(job), {}}, patience(), "jobs");
        require(text_of(given[0].bytes) == job && text_of(given[1].bytes) == job, "one job");
        return 0;
      }));
  CHECK(all_as_expected(ranks));
}

}  // namespace environment_test

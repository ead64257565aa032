// SPDX-License-Identifier: MIT
//
// Where and how ranks that meet over TCP are told to meet.
#include <openssl/conf.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/detail/tcp_environment.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "tcp_support.hpp"

namespace tcp_settings_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::rank_id;
using peerbus::detail::connect_once;
using peerbus::detail::listen_for_ranks;
using peerbus::detail::resolve;

namespace {

using variables = std::vector<std::pair<const char*, std::string>>;

/// Runs `f` in a process that has these variables, and none of a launcher's. Returns: its status.
template <class F>
int with_variables(const variables& set, F f) {
  return status_of(in_child([&] {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
          "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
          "SLURM_NTASKS", "SLURM_STEP_ID", "TORCHELASTIC_USE_AGENT_STORE", "PEERBUS_PORT",
          "PEERBUS_MESH", "PEERBUS_OUT_OF_REACH_MS", "PEERBUS_SECRET", "PEERBUS_SECRET_FILE"})
      ::unsetenv(name);
    for (const auto& [name, value] : set) ::setenv(name, value.c_str(), 1);
    return f();
  }));
}

/// Whether `from_environment` throws `code` at once with all of `parts` in its text.
bool refuses(const variables& set, errc code, const std::vector<std::string>& parts) {
  return with_variables(set, [&] {
           const auto caught = error_of([] { (void)tcp_bootstrap::from_environment(patience()); });
           require(caught.code() == code, caught.what());
           for (const auto& part : parts)
             require(contains(caught.what(), part), part + " in: " + caught.what());
           return 0;
         }) == 0;
}

/// A file that is gone with this object.
class scratch_file {
 public:
  explicit scratch_file(const std::string& text) {
    const peerbus::unique_fd made{::mkstemp(name_.data())};
    require(static_cast<bool>(made), "a file");
    std::ofstream{name_} << text;
  }
  scratch_file(const scratch_file&) = delete;
  scratch_file& operator=(const scratch_file&) = delete;
  ~scratch_file() { ::unlink(name_.c_str()); }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::string name_ = "/tmp/peerbus-secret-XXXXXX";
};

}  // namespace

TEST_CASE("tcp: settings that make no sense are refused") {
  const auto code_of = [](const tcp_settings& settings) {
    return error_of([&] { tcp_bootstrap boot{settings, patience()}; }).code();
  };
  CHECK(code_of(tcp_seat(0, 0, 1)) == errc::invalid_argument);
  CHECK(code_of(tcp_seat(2, 2, 1)) == errc::invalid_argument);
  CHECK(code_of(tcp_seat(0, 70'000, 1)) == errc::invalid_argument);
  CHECK(code_of(tcp_seat(0, 2, 0)) == errc::invalid_argument);
  auto short_secret = tcp_seat(0, 2, 1);
  short_secret.secret = "fifteen bytes..";
  CHECK(code_of(short_secret) == errc::invalid_argument);
  auto long_job = tcp_seat(0, 2, 1);
  long_job.job = std::string(129, 'j');
  CHECK(code_of(long_job) == errc::invalid_argument);
}

TEST_CASE("tcp: without a secret only this host may be the place") {
  const time_limit limit;
  for (const char* address : {"127.0.0.1", "::1"}) {
    const auto port = free_tcp_port();
    std::vector<pid_t> ranks;
    ranks.reserve(3);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      auto settings = tcp_seat(rank, 3, port, address);
      settings.secret.clear();
      ranks.push_back(joins(settings));
    }
    CHECK(all_as_expected(ranks));
  }
  for (const char* address : {"192.0.2.1", "2001:db8::1", "0.0.0.0", "::", "::ffff:192.0.2.1"})
    for (std::size_t rank : {0U, 1U}) {
      auto settings = tcp_seat(rank, 2, free_tcp_port(), address);
      settings.secret.clear();
      const auto caught = error_of([&] { tcp_bootstrap boot{settings, patience()}; });
      CHECK(caught.code() == errc::invalid_argument);
      CHECK(contains(caught.what(), "PEERBUS_SECRET"));
      CHECK(contains(caught.what(), address));
    }
}

TEST_CASE("tcp: the port is open no wider than it has to be") {
  const time_limit limit;
  const auto port = free_tcp_port();
  const auto can_reach = [port](const char* address) {
    return static_cast<bool>(connect_once(resolve(address, port, patience()), patience()));
  };
  {
    // As a host whose name is an address of the network: all addresses, of both families.
    auto settings = tcp_seat(0, 2, port, "192.0.2.1");
    const auto open = listen_for_ranks(settings, resolve("192.0.2.1", port, patience()));
    CHECK(can_reach("127.0.0.1"));
    CHECK(can_reach("::1"));
    CHECK(can_reach("127.0.0.2"));
    CHECK(listen_for_ranks(settings, resolve("192.0.2.1", port, patience())).empty());
  }
  CHECK_FALSE(can_reach("127.0.0.1"));
  {
    const auto open =
        listen_for_ranks(tcp_seat(0, 2, port), resolve("127.0.0.1", port, patience()));
    CHECK(can_reach("127.0.0.1"));
    CHECK_FALSE(can_reach("127.0.0.2"));
    CHECK_FALSE(can_reach("::1"));
  }
  {
    // The host's own name, which others know by another address: open to them if there is a secret.
    auto settings = tcp_seat(0, 2, port, "this-host");
    const auto place = resolve("127.0.1.1", port, patience());
    const auto with_secret = listen_for_ranks(settings, place);
    CHECK(can_reach("127.0.0.2"));
  }
  {
    auto settings = tcp_seat(0, 2, port, "this-host");
    settings.secret.clear();
    const auto without = listen_for_ranks(settings, resolve("127.0.1.1", port, patience()));
    CHECK(can_reach("127.0.1.1"));
    CHECK_FALSE(can_reach("127.0.0.2"));
  }
}

TEST_CASE("tcp: of several addresses one that answers is enough") {
  const time_limit limit;
  const auto port = free_tcp_port();
  auto place = resolve("::1", port, patience());
  place.push_back(resolve("127.0.0.2", port, patience())[0]);
  place.push_back(resolve("127.0.0.1", port, patience())[0]);
  CHECK_FALSE(connect_once(place, patience()));
  const auto listening = squat(port);
  CHECK(connect_once(place, patience()));
}

TEST_CASE("tcp: variables that are missing or wrong are named, with what was expected") {
  const time_limit limit;
  const variables two{{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  const auto with = [&two](const variables& more) {
    auto all = two;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto invalid = errc::invalid_argument;
  CHECK(refuses({}, invalid, {"RANK and WORLD_SIZE are not set"}));
  CHECK(refuses(with({{"PEERBUS_SECRET", ""}}), invalid, {"PEERBUS_SECRET is empty"}));
  CHECK(refuses(with({{"PEERBUS_SECRET", "short"}}), invalid, {"5 bytes", "at least 16"}));
  CHECK(refuses(with({{"PEERBUS_SECRET", test_secret}, {"PEERBUS_SECRET_FILE", "/x"}}), invalid,
                {"both set"}));
  CHECK(refuses(with({{"PEERBUS_SECRET_FILE", "/no/such/file"}}), errc::system,
                {"PEERBUS_SECRET_FILE '/no/such/file'", "No such file"}));
  CHECK(refuses(with({{"PEERBUS_SECRET_FILE", "/"}}), invalid,
                {"PEERBUS_SECRET_FILE '/' is a folder", "expected a regular file"}));
  const scratch_file fifo{""};  // Nobody writes to it, so whoever opens it to read waits.
  REQUIRE(::unlink(fifo.name().c_str()) == 0);
  REQUIRE(::mkfifo(fifo.name().c_str(), 0600) == 0);
  CHECK(refuses(with({{"PEERBUS_SECRET_FILE", fifo.name()}}), invalid,
                {fifo.name(), "is a FIFO, expected a regular file"}));
  const scratch_file shared_file{std::string{test_secret}};
  for (const auto& [mode, said] :
       {std::pair{0666U, "0666"}, std::pair{0620U, "0620"}, std::pair{0604U, "0604"}}) {
    REQUIRE(::chmod(shared_file.name().c_str(), mode) == 0);
    CHECK(refuses(with({{"PEERBUS_SECRET_FILE", shared_file.name()}}), invalid,
                  {shared_file.name(), "has mode ", said, ", expected at most 06", "chmod 600"}));
  }
  const scratch_file empty{"\n"};
  CHECK(refuses(with({{"PEERBUS_SECRET_FILE", empty.name()}}), invalid, {"nothing in it"}));
  const scratch_file huge{std::string(100'000, 'x')};
  CHECK(refuses(with({{"PEERBUS_SECRET_FILE", huge.name()}}), invalid, {"too much in it"}));
  CHECK(refuses(with({{"MASTER_PORT", "0"}}), invalid, {"port 0"}));
  CHECK(refuses(with({{"MASTER_ADDR", "192.0.2.7"}}), invalid,
                {"MASTER_ADDR 192.0.2.7", "no secret", "PEERBUS_SECRET"}));
  CHECK(refuses(with({{"LOCAL_WORLD_SIZE", "1"}}), invalid,
                {"MASTER_ADDR is not set although LOCAL_WORLD_SIZE is 1 but WORLD_SIZE is 2"}));
}

TEST_CASE("tcp: the port is MASTER_PORT, unless torchrun listens there or another is given") {
  const time_limit limit;
  const auto port_of = [](const variables& more) {
    shared<std::atomic<int>> port;
    variables all{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}};
    all.insert(all.end(), more.begin(), more.end());
    CHECK(with_variables(all, [&] {
            *port = peerbus::detail::read_tcp_settings().port;
            return 0;
          }) == 0);
    return port->load();
  };
  CHECK(port_of({}) == 29500);
  CHECK(port_of({{"MASTER_PORT", "4000"}}) == 4000);
  CHECK(port_of({{"MASTER_PORT", "4000"}, {"TORCHELASTIC_USE_AGENT_STORE", "False"}}) == 4000);
  CHECK(port_of({{"MASTER_PORT", "4000"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}) == 4001);
  CHECK(port_of({{"MASTER_PORT", "65535"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}) == 65534);
  CHECK(port_of({{"MASTER_PORT", "4000"},
                 {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                 {"PEERBUS_PORT", "5000"}}) == 5000);
  CHECK(refuses({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"PEERBUS_PORT", "0"}}, errc::invalid_argument,
                {"PEERBUS_PORT is '0'", "from 1 to 65535"}));
}

TEST_CASE("tcp: a mesh is made where the environment says so") {
  const time_limit limit;
  const auto status_with = [](const variables& more, bool is_mesh) {
    variables all{{"RANK", "0"}, {"WORLD_SIZE", "1"}};
    all.insert(all.end(), more.begin(), more.end());
    return with_variables(all, [&] {
      const auto boot = tcp_bootstrap::from_environment(patience());
      return (boot.messages() != nullptr) == is_mesh ? 0 : 1;
    });
  };
  CHECK(status_with({}, false) == 0);
  CHECK(status_with({{"PEERBUS_MESH", "0"}}, false) == 0);
  CHECK(status_with({{"PEERBUS_MESH", "1"}}, true) == 0);
  CHECK(refuses({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"PEERBUS_MESH", "yes"}},
                errc::invalid_argument, {"PEERBUS_MESH is 'yes'", "0 or 1"}));
}

TEST_CASE("tcp: how long a host may be out of reach is between 2 s and an hour") {
  const time_limit limit;
  for (const char* const text : {"1999", "3600001", "soon"})
    CHECK(refuses({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"PEERBUS_OUT_OF_REACH_MS", text}},
                  errc::invalid_argument,
                  {"PEERBUS_OUT_OF_REACH_MS is '", "milliseconds from 2000 to 3600000"}));
  auto seat = tcp_seat(0, 1, 2000);
  seat.out_of_reach_after = std::chrono::milliseconds{1};
  const auto caught = error_of([&] { tcp_bootstrap{seat, patience()}; });
  CHECK(caught.code() == errc::invalid_argument);
  CHECK(contains(caught.what(), "out_of_reach_after is 1 ms, expected 2000 to 3600000"));
}

TEST_CASE("tcp: from the environment, with the secret in a variable and in a file") {
  const time_limit limit;
  const std::string port = std::to_string(free_tcp_port());
  const scratch_file file{std::string{test_secret} + "\n"};
  std::vector<pid_t> ranks;
  ranks.reserve(2);
  for (const std::size_t rank : {0U, 1U})
    ranks.push_back(in_child([&, rank] {
      return with_variables({{"RANK", std::to_string(rank)},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "1"},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", port},
                             rank == 0 ? std::pair{"PEERBUS_SECRET", std::string{test_secret}}
                                       : std::pair{"PEERBUS_SECRET_FILE", file.name()}},
                            [rank] {
                              const auto boot = tcp_bootstrap::from_environment(patience());
                              require(boot.rank() == rank_id{rank}, "the rank");
                              require(boot.size() == 2, "the size");
                              require(boot.local_rank() == 1, "the local rank");
                              return 0;
                            });
    }));
  CHECK(all_as_expected(ranks));
}

TEST_CASE("tcp: a name that means nothing") {
  const time_limit limit;
  for (std::size_t rank : {0U, 1U}) {
    const auto caught = error_of([&] {
      tcp_bootstrap boot{tcp_seat(rank, 2, 1, "no-such-host.invalid"), deadline::after(300ms)};
    });
    CHECK(caught.code() == errc::system);
    CHECK(contains(caught.what(), "MASTER_ADDR 'no-such-host.invalid' cannot be resolved: "));
  }
}

namespace {

/// Gives this process a table of hosts of its own, without the file that other processes see.
bool replace_hosts(const std::string& file) {
  // Root may do so, and often any user.
  return (::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount(file.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) == 0;
}

}  // namespace

TEST_CASE("tcp: a policy of OpenSSL that forbids the cipher suite is named") {
  const time_limit limit;
  const auto joins_at_level = [](const std::string& level) {
    const scratch_file policy{
        "openssl_conf = first\n[first]\nssl_conf = second\n[second]\nsystem_default = third\n"
        "[third]\nCipherString = DEFAULT@SECLEVEL=" +
        level + "\n"};
    return status_of(in_child([&] {
             require(::CONF_modules_load_file(policy.name().c_str(), nullptr, 0) == 1, "a policy");
             const auto port = free_tcp_port();
             if (level == "2")
               return all_as_expected({joins(tcp_seat(0, 2, port)), joins(tcp_seat(1, 2, port))})
                          ? 0
                          : 1;
             const auto caught =
                 error_of([&] { tcp_bootstrap boot{tcp_seat(0, 2, port), patience()}; });
             require(caught.code() == errc::unsupported, caught.what());
             for (const std::string& part :
                  {std::string{"OpenSSL policy"}, "security level " + level})
               require(contains(caught.what(), part), caught.what());
             return 0;
           })) == 0;
  };
  CHECK(joins_at_level("2"));
  CHECK(joins_at_level("4"));
  CHECK(joins_at_level("5"));
}

TEST_CASE("tcp: a name that does not resolve yet is asked for again") {
  const time_limit limit;
  const scratch_file hosts{"127.0.0.1 localhost\n"};
  constexpr int no_namespace = 77;
  const int status = status_of(in_child([&] {
    if (!replace_hosts(hosts.name())) return no_namespace;
    const auto port = free_tcp_port();
    const char* const name = "pod-0.peerbus.invalid";
    const pid_t early = joins(tcp_seat(1, 2, port, name));
    ::usleep(300'000);  // The rank comes first if it is not very slow, and passes in any case.
    std::ofstream{hosts.name(), std::ios::app} << "127.0.0.1 " << name << "\n";
    return all_as_expected({early, joins(tcp_seat(0, 2, port, name))}) ? 0 : 1;
  }));
  if (status == no_namespace) {
    MESSAGE("not tested: this machine allows no mount namespace");
    return;
  }
  CHECK(status == 0);
}

}  // namespace tcp_settings_test

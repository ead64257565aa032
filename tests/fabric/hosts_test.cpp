// SPDX-License-Identifier: MIT
//
// Ranks of two hosts. Each host is a network namespace with a name and a loopback interface of its
// own, and a cable, a pair of virtual interfaces, joins the two.
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "bootstrap/support.hpp"
#include "conformance/exchange_suite.hpp"
#include "conformance/window_suite.hpp"
#include "fabric/support.hpp"
#include "support/ranks.hpp"

namespace hosts_test {

namespace {

using peerbus::codec::int8_per_token;

constexpr int no_namespace = 77;

/// A message from one host to the other that something is done.
class event {
 public:
  event() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) throw std::runtime_error{"expected a pipe"};
  }
  void tell() const { static_cast<void>(!::write(ends_[1], "", 1)); }
  /// Returns: whether it was told; false if whoever would tell has ended.
  [[nodiscard]] bool wait() const {
    ::close(ends_[1]);
    char byte{};
    return ::read(ends_[0], &byte, 1) == 1;
  }

 private:
  std::array<int, 2> ends_{};
};

/// Writes `text` into a file of /proc. Returns: whether the system took it.
bool write_file(const char* name, const std::string& text) {
  const int file = ::open(name, O_WRONLY | O_CLOEXEC);
  const bool is_written =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (file >= 0) ::close(file);
  return is_written;
}

/// Moves this process to a host of its own. Root may do so, and often any user. Returns: whether
/// the system allowed it.
bool enter_host(const std::string& name) {
  constexpr int spaces = CLONE_NEWNET | CLONE_NEWUTS;
  if (::unshare(spaces) != 0) {
    const std::string user = "0 " + std::to_string(::geteuid()) + " 1";
    if (::unshare(spaces | CLONE_NEWUSER) != 0 || !write_file("/proc/self/uid_map", user))
      return false;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // The system forgets it with the user.
  }
  return ::sethostname(name.data(), name.size()) == 0;
}

/// Runs commands. Returns: whether all succeeded.
bool shell(const std::string& commands) {
  return std::system(("PATH=$PATH:/usr/sbin:/sbin; " + commands).c_str()) == 0;
}
bool switch_on(const std::string& interface, const std::string& address) {
  return shell("ip address add " + address + "/24 dev " + interface + " && ip link set " +
               interface + " up && ip link set lo up");
}

/// Adds what Docker adds: an interface for containers, which carries data and has the same address
/// on each host.
bool add_bridge() {
  return shell(
      "ip link add docker0 type bridge && ip address add 172.17.0.1/16 dev docker0 && "
      "ip link set docker0 up && ip link add inside0 type veth peer name inside1 && "
      "ip link set inside0 master docker0 up && ip link set inside1 up");
}

/// Waits until `interface` carries data: its other end is up too, and the system has taken note.
bool wait_for_cable(const std::string& interface) {
  const peerbus::unique_fd any{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  ifreq request{};
  std::copy(interface.begin(), interface.end(), std::begin(request.ifr_name));
  for (const auto until = test::patience(); !until.expired(); ::sched_yield())
    if (::ioctl(any.get(), SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0)
      return true;
  return false;
}

/// Runs ranks `first` to `first + count`, of `n`, in processes. Returns: the worst exit status.
template <class F>
int run_ranks(std::size_t first, std::size_t count, std::size_t n, F& f) {
  std::vector<pid_t> children;
  for (std::size_t rank = first; rank < first + count; ++rank)
    children.push_back(test::in_child([&] {
      peerbus::tcp_bootstrap boot{test::tcp_seat(rank, n, 29500, "10.77.0.1"), test::patience()};
      test::expect_equal(boot.near_ranks().size(), n / 2, "ranks of a host");
      f(boot);
      return 0;
    }));
  int worst = 0;
  for (const pid_t child : children) worst = std::max(worst, test::status_of(child));
  return worst;
}

/// Half of the `n` ranks on either host. They end with the test, and the hosts with them.
/// Returns: the worst exit status, or `no_namespace`.
template <class F>
int run_on_two_hosts(std::size_t n, F f) {
  return test::status_of(test::in_child([&] {
    if (!enter_host("first")) return no_namespace;
    const event entered;
    const event joined;
    const pid_t second = test::in_child([&] {
      if (!enter_host("second")) return no_namespace;
      entered.tell();
      if (!joined.wait() || !switch_on("far1", "10.77.0.2")) return no_namespace;
      test::expect(wait_for_cable("far1"), "a cable");
      if (add_bridge()) test::expect(wait_for_cable("docker0"), "a bridge");
      return run_ranks(n / 2, n / 2, n, f);
    });
    if (!entered.wait() ||
        !shell("ip link add far0 type veth peer name far1 netns " + std::to_string(second)) ||
        !switch_on("far0", "10.77.0.1"))
      return no_namespace;
    joined.tell();
    test::expect(wait_for_cable("far0"), "a cable");
    if (add_bridge()) test::expect(wait_for_cable("docker0"), "a bridge");
    const int worst = run_ranks(0, n / 2, n, f);
    return std::max(worst, test::status_of(second));
  }));
}

/// The group that this rank has joined, for a transport of its own each time.
template <peerbus::transport Transport>
struct joined_over {
  using transport = Transport;
  template <class F>
  static int start(std::size_t /*ranks*/, F f) {
    f(*joined);
    return 0;
  }
  static inline peerbus::bootstrap* joined = nullptr;
};

using peerbus::fabric;
using planes = peerbus::planes<peerbus::unified_bus, fabric>;
using both = test::any_over<peerbus::any_transport, joined_over<fabric>, joined_over<planes>>;

}  // namespace

TEST_CASE("puts, signals, barriers, dispatch and combine between hosts") {
  constexpr std::size_t ranks = 4;
  // What does not hold throws, here in the ranks.
  const int status = run_on_two_hosts(ranks, [](peerbus::bootstrap& boot) {
    const std::string provider = fabric{boot}.describe_provider();
    test::expect(provider.find("domain far") != std::string::npos, "the cable, not ", provider);
    joined_over<fabric>::joined = &boot;
    joined_over<planes>::joined = &boot;
    conformance::check_all_to_all<both>(ranks);
    conformance::check_stream<both>(ranks);
    conformance::check_barrier<both>(ranks, 20);
    conformance::check_exchange<both, int8_per_token>({16, 256, 4, 24, oracle::routes::zipf},
                                                      ranks);
  });
  if (status == no_namespace) {
    MESSAGE("not tested: this machine gives no network namespaces, or no `ip` to join them");
    return;
  }
  CHECK(status == 0);
}

}  // namespace hosts_test

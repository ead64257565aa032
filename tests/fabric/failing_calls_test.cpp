// SPDX-License-Identifier: MIT
// ctest: search unsanitized timeout=86400
//
// Any system call of one rank that has to do with sockets fails, once, while ranks connect over
// fabric and put to each other: libfabric and the bootstrap both make such calls. Each rank must
// end, in time, with right data or with an error. As many seconds as PEERBUS_SEARCH_SECONDS says;
// PEERBUS_FAIL_SEED gives other calls.
#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <random>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fabric.hpp>

#include "support/process.hpp"
#include "support/put_to_all.hpp"
#include "support/ranks.hpp"
#include "support/search.hpp"
#include "support/tally.hpp"

namespace failing_calls_test {

namespace {

enum class call : std::uint8_t {
  socket,
  connect,
  bind,
  listen,
  accept,
  accept4,
  epoll_create1,
  epoll_ctl,
  eventfd,
  setsockopt,
  getsockopt,
  getsockname,
  send,
  recvmsg,
  sendmsg
};
struct way {
  const char* name;
  std::array<int, 2> reasons;  ///< why such a call may fail
};
constexpr way ways[]{{"socket", {EMFILE, ENOBUFS}},       {"connect", {ECONNREFUSED, ENETUNREACH}},
                     {"bind", {EADDRINUSE, EACCES}},      {"listen", {EADDRINUSE, EOPNOTSUPP}},
                     {"accept", {EMFILE, ECONNABORTED}},  {"accept4", {EMFILE, ECONNABORTED}},
                     {"epoll_create1", {EMFILE, ENOMEM}}, {"epoll_ctl", {ENOSPC, ENOMEM}},
                     {"eventfd", {EMFILE, ENOMEM}},       {"setsockopt", {ENOBUFS, EPERM}},
                     {"getsockopt", {ENOBUFS, EPERM}},    {"getsockname", {ENOBUFS, ENOTSOCK}},
                     {"send", {EPIPE, ECONNRESET}},       {"recvmsg", {ECONNRESET, ETIMEDOUT}},
                     {"sendmsg", {EPIPE, ECONNRESET}}};
constexpr std::size_t calls = std::size(ways);

/// The call of this process that fails next.
struct plan {
  bool is_armed = false;
  call which{};
  int reason = 0;
  std::uint64_t before = 0;  ///< such calls that succeed before it
};
plan next;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): calls take no argument.

/// A connection over which a call failed is gone: Linux lets no later call succeed. (tcp of
/// libfabric relies on that: it sends what comes behind a message that it could not send.)
template <call Which>
void end_connection(int fd) {
  if constexpr (Which == call::send || Which == call::sendmsg || Which == call::recvmsg)
    ::shutdown(fd, SHUT_RDWR);
}

/// Passes a call on to the C library, unless it is to fail.
template <call Which, class Result, class First, class... Arguments>
Result pass(First first, Arguments... arguments) {
  using function = Result(First, Arguments...);
  static auto* const real =
      reinterpret_cast<function*>(::dlsym(RTLD_NEXT, ways[static_cast<std::size_t>(Which)].name));
  if (next.is_armed && next.which == Which && next.before-- == 0) {
    next.is_armed = false;
    end_connection<Which>(first);
    errno = next.reason;
    return -1;
  }
  return real(first, arguments...);
}

}  // namespace

// These take the place of the C library's functions in the whole program, libfabric included; recv
// is left out, because flood_test.cpp has taken it. Their names here differ, so that they agree
// with any declaration.
extern "C" {
int failing_socket(int domain, int type, int protocol) __asm__("socket");
int failing_socket(int domain, int type, int protocol) {
  return pass<call::socket, int>(domain, type, protocol);
}
int failing_connect(int fd, const sockaddr* to, socklen_t length) __asm__("connect");
int failing_connect(int fd, const sockaddr* to, socklen_t length) {
  return pass<call::connect, int>(fd, to, length);
}
int failing_bind(int fd, const sockaddr* to, socklen_t length) __asm__("bind");
int failing_bind(int fd, const sockaddr* to, socklen_t length) {
  return pass<call::bind, int>(fd, to, length);
}
int failing_listen(int fd, int backlog) __asm__("listen");
int failing_listen(int fd, int backlog) { return pass<call::listen, int>(fd, backlog); }
int failing_accept(int fd, sockaddr* from, socklen_t* length) __asm__("accept");
int failing_accept(int fd, sockaddr* from, socklen_t* length) {
  return pass<call::accept, int>(fd, from, length);
}
int failing_accept4(int fd, sockaddr* from, socklen_t* length, int flags) __asm__("accept4");
int failing_accept4(int fd, sockaddr* from, socklen_t* length, int flags) {
  return pass<call::accept4, int>(fd, from, length, flags);
}
int failing_epoll_create1(int flags) __asm__("epoll_create1");
int failing_epoll_create1(int flags) { return pass<call::epoll_create1, int>(flags); }
int failing_epoll_ctl(int set, int what, int fd, epoll_event* event) __asm__("epoll_ctl");
int failing_epoll_ctl(int set, int what, int fd, epoll_event* event) {
  return pass<call::epoll_ctl, int>(set, what, fd, event);
}
int failing_eventfd(unsigned start, int flags) __asm__("eventfd");
int failing_eventfd(unsigned start, int flags) { return pass<call::eventfd, int>(start, flags); }
int failing_setsockopt(int fd, int level, int name, const void* value,
                       socklen_t length) __asm__("setsockopt");
int failing_setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  return pass<call::setsockopt, int>(fd, level, name, value, length);
}
int failing_getsockopt(int fd, int level, int name, void* value,
                       socklen_t* length) __asm__("getsockopt");
int failing_getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  return pass<call::getsockopt, int>(fd, level, name, value, length);
}
int failing_getsockname(int fd, sockaddr* own, socklen_t* length) __asm__("getsockname");
int failing_getsockname(int fd, sockaddr* own, socklen_t* length) {
  return pass<call::getsockname, int>(fd, own, length);
}
ssize_t failing_send(int fd, const void* from, std::size_t bytes, int flags) __asm__("send");
ssize_t failing_send(int fd, const void* from, std::size_t bytes, int flags) {
  return pass<call::send, ssize_t>(fd, from, bytes, flags);
}
ssize_t failing_recvmsg(int fd, msghdr* message, int flags) __asm__("recvmsg");
ssize_t failing_recvmsg(int fd, msghdr* message, int flags) {
  return pass<call::recvmsg, ssize_t>(fd, message, flags);
}
ssize_t failing_sendmsg(int fd, const msghdr* message, int flags) __asm__("sendmsg");
ssize_t failing_sendmsg(int fd, const msghdr* message, int flags) {
  return pass<call::sendmsg, ssize_t>(fd, message, flags);
}
}

namespace {

using peerbus::any_transport;
using peerbus::deadline;
using peerbus::errc;
using peerbus::rank_id;
using std::chrono::seconds;

constexpr std::size_t ranks = 3;

}  // namespace

TEST_CASE("any call of one rank about sockets fails") {
  const std::uint64_t seed = test::number_from_environment("PEERBUS_FAIL_SEED", 32);
  std::mt19937_64 random{seed};
  std::uint64_t rounds = 0;
  const test::tally errors;
  for (const auto until = deadline::after(seconds{test::search_seconds()}); !until.expired();
       ++rounds) {
    const std::size_t which = random() % calls;
    const int reason = ways[which].reasons[random() % 2];
    const std::uint64_t before = random() % (std::uint64_t{1} << random() % 10);
    const rank_id victim{random() % ranks};
    CAPTURE(rounds);
    const std::string name = ways[which].name;
    CAPTURE(name);
    CAPTURE(reason);
    CAPTURE(before);
    CAPTURE(victim.index());
    const int worst_status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
      ::alarm(60);  // Ends a rank that hangs.
      const std::size_t files = test::open_files();
      if (boot.rank() == victim) next = {true, static_cast<call>(which), reason, before};
      try {
        peerbus::communicator comm{
            any_transport{
                peerbus::fabric{boot, {.stall_timeout = seconds{3}, .setup_timeout = seconds{3}}}},
            {.timeout = seconds{3}}};
        for (const std::size_t bytes : {100U, 100'000U}) test::put_to_all(comm, bytes);
      } catch (const peerbus::error&) {
        errors.add();
      }
      next.is_armed = false;
      // libfabric 1.17 keeps a connection that it has accepted and whose first message it cannot
      // read, by `recvmsg`.
      const std::size_t kept = static_cast<call>(which) == call::recvmsg ? 1 : 0;
      test::expect(test::open_files() <= files + kept, "no more descriptors than before");
    });
    CHECK(worst_status == 0);
  }
  std::printf("failing_calls: %llu rounds, %zu errors, PEERBUS_FAIL_SEED=%llu\n",
              static_cast<unsigned long long>(rounds), errors.count(),
              static_cast<unsigned long long>(seed));
}

}  // namespace failing_calls_test

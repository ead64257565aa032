// SPDX-License-Identifier: MIT
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/unique_fd.hpp>

#ifdef PEERBUS_TEST_TCP
#include <peerbus/bootstrap/tcp.hpp>
#endif

namespace test {

using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;

/// Far beyond what anything here takes: who runs into it has hung.
inline deadline patience() { return deadline::after(std::chrono::seconds{60}); }

/// A check in a rank, where doctest's do not reach: makes the rank fail, and says why.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error{"expected: " + what};
}

/// Ends the test program if a test hangs, whatever hangs.
class time_limit {
 public:
  explicit time_limit(unsigned seconds = 120) { ::alarm(seconds); }
  time_limit(const time_limit&) = delete;
  time_limit& operator=(const time_limit&) = delete;
  ~time_limit() { ::alarm(0); }
};

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}
inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Zeroed memory for a T that forked children share with the test.
template <class T>
class shared {
 public:
  shared()
      : at_{::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)} {
    if (at_ == MAP_FAILED) throw std::bad_alloc{};
    object_ = new (at_) T{};
  }
  shared(const shared&) = delete;
  shared& operator=(const shared&) = delete;
  ~shared() { ::munmap(at_, sizeof(T)); }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }

 private:
  void* at_;
  T* object_ = nullptr;
};

/// Entries of `folder` with `part` in their names.
inline std::size_t entries_of(const char* folder, const char* part = "") {
  std::size_t count = 0;
  DIR* open = ::opendir(folder);
  if (open == nullptr) return 0;
  while (const dirent* entry = ::readdir(open))
    if (std::strstr(entry->d_name, part) != nullptr) ++count;
  ::closedir(open);
  return count;
}

/// From now on the kernel answers `code` to system calls that have `value` at `offset` of
/// `seccomp_data`: ENOSYS as an old one or a container's filter, EPERM as a sandbox.
inline void forbid_calls(std::uint32_t offset, std::uint32_t value, std::uint32_t code = ENOSYS) {
  std::array<sock_filter, 4> program{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offset},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, value},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | code},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog filter{program.size(), program.data()};
  require(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
              ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0,
          "a system call filter");
}

/// Names the rendezvous points of this test program: an address is no more than a name.
inline std::string own_address() {
  static const std::string address = "test-of-" + std::to_string(::getpid());
  return address;
}

/// Everything that the library could leave behind.
struct belongings {
  std::size_t descriptors = entries_of("/proc/self/fd");
  std::size_t shared_files = entries_of("/dev/shm", "peerbus");
  std::size_t rendezvous_points = count_rendezvous_points();
  bool no_children = ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;

  friend bool operator==(const belongings&, const belongings&) = default;

 private:
  static std::size_t count_rendezvous_points() {
    std::ifstream sockets{"/proc/net/unix"};
    std::size_t count = 0;
    for (std::string line; std::getline(sockets, line);)
      if (line.find(own_address()) != std::string::npos) ++count;
    return count;
  }
};

/// What `f` and its children write to stderr.
template <class F>
std::string stderr_of(F&& f) {
  const peerbus::unique_fd file{::memfd_create("stderr", MFD_CLOEXEC)};
  const peerbus::unique_fd before{::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)};
  ::dup2(file.get(), STDERR_FILENO);
  try {
    f();
  } catch (...) {
    ::dup2(before.get(), STDERR_FILENO);
    throw;
  }
  ::dup2(before.get(), STDERR_FILENO);
  std::string text(static_cast<std::size_t>(::lseek(file.get(), 0, SEEK_END)), '\0');
  if (::pread(file.get(), text.data(), text.size(), 0) < 0) text.clear();
  return text;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Runs `f` in a child, as a process of its own. Returns: its pid.
template <class F>
pid_t in_child(F&& f) {
  const pid_t parent = ::getpid();
  // What doctest has buffered is its to write.
  std::cout.flush();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  int status = 1;
  try {
    status = f();
  } catch (const std::exception& caught) {
    ::dprintf(STDERR_FILENO, "%s\n", caught.what());
  }
  ::_exit(status);
}

/// Waits for `child`. Returns: its exit status, 128 + signal if it was killed.
inline int status_of(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Starts a process that kills the one whose pid `victim` becomes, each `attempt` a little later
/// than the one before: the moment is arbitrary. Returns: its pid; it ends with 0 once it has.
inline pid_t start_killer(const std::atomic<int>& victim, unsigned attempt) {
  return in_child([&] {
    for (const auto until = patience(); victim.load() == 0; std::this_thread::yield())
      require(!until.expired(), "a victim");
    const auto until = deadline::after(std::chrono::microseconds{attempt * 173});
    while (!until.expired()) std::this_thread::yield();
    return ::kill(victim.load(), SIGKILL) == 0 ? 0 : 1;
  });
}

/// A port that no other group of this program has used.
inline std::uint16_t fresh_port() {
  static std::uint16_t next = 1000;
  return next++;
}

/// A TCP port at which nobody listens. Below those that the system gives to callers, and for each
/// process from another place on, so that tests that run side by side do not meet.
inline std::uint16_t free_tcp_port() {
  constexpr unsigned first = 12'000;
  constexpr unsigned count = 20'000;
  static unsigned next = static_cast<unsigned>(::getpid()) * 97U;
  for (unsigned attempt = 0; attempt < count; ++attempt) {
    const auto port = static_cast<std::uint16_t>(first + next++ % count);
    const peerbus::unique_fd probe{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    const int yes = 1;
    (void)::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(port);
    // Of both families, as IPv6 sockets are unless told otherwise.
    if (::bind(probe.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0) return port;
  }
  throw std::runtime_error{"no free TCP port"};
}

/// Starts one process per rank, each of which calls `f` with the bootstrap that `meet(rank)` makes.
/// Returns: the worst exit status.
template <class Meet, class F>
int run_each(std::size_t n, Meet meet, F f) {
  std::vector<pid_t> children;
  children.reserve(n);
  for (std::size_t rank = 0; rank < n; ++rank)
    children.push_back(in_child([&] {
      auto boot = meet(rank);
      if constexpr (std::is_void_v<std::invoke_result_t<F&, bootstrap&>>) {
        f(boot);
        return 0;
      } else {
        return static_cast<int>(f(boot));
      }
    }));
  int worst = 0;
  for (const pid_t child : children) worst = std::max(worst, status_of(child));
  return worst;
}

/// As a launcher would: one process per rank, told its place by variables.
template <class F>
int run_launched(std::size_t n, F f) {
  const std::string port = std::to_string(fresh_port());
  const std::string address = own_address();
  return run_each(
      n,
      [&](std::size_t rank) {
        ::setenv("RANK", std::to_string(rank).c_str(), 1);
        ::setenv("WORLD_SIZE", std::to_string(n).c_str(), 1);
        ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
        ::setenv("MASTER_ADDR", address.c_str(), 1);
        ::setenv("MASTER_PORT", port.c_str(), 1);
        return peerbus::environment_bootstrap::from_environment(patience());
      },
      std::move(f));
}

struct as_threads {
  static constexpr bool are_threads = true;
  static constexpr bool descriptors = true;
  template <class F>
  static int run(std::size_t n, F f) {
    return peerbus::run_threads(n, f);
  }
};
struct as_local {
  static constexpr bool are_threads = false;
  static constexpr bool descriptors = true;
  template <class F>
  static int run(std::size_t n, F f) {
    return peerbus::run_local(n, f);
  }
};
struct as_launched {
  static constexpr bool are_threads = false;
  static constexpr bool descriptors = true;
  template <class F>
  static int run(std::size_t n, F f) {
    return run_launched(n, f);
  }
};
#ifdef PEERBUS_TEST_TCP
inline constexpr const char* test_secret = "a secret for tests only";

/// The settings of a rank of a group that meets over TCP.
inline peerbus::tcp_settings tcp_seat(std::size_t rank, std::size_t size, std::uint16_t port,
                                      const char* address = "127.0.0.1") {
  peerbus::tcp_settings settings;
  settings.rank = rank;
  settings.size = size;
  settings.address = address;
  settings.port = port;
  settings.secret = test_secret;
  return settings;
}

/// One process per rank, which meet over TCP.
template <class F>
int run_over_tcp(std::size_t n, F f) {
  const auto port = free_tcp_port();
  return run_each(
      n,
      [&](std::size_t rank) { return peerbus::tcp_bootstrap{tcp_seat(rank, n, port), patience()}; },
      std::move(f));
}

struct over_tcp {
  static constexpr bool are_threads = false;
  static constexpr bool descriptors = false;
  template <class F>
  static int run(std::size_t n, F f) {
    return run_over_tcp(n, f);
  }
};
#endif

/// Calls `f` and returns the error that it throws; throws if there is none.
template <class F>
peerbus::error error_of(F f) {
  try {
    f();
  } catch (const peerbus::error& caught) {
    return caught;
  }
  throw std::runtime_error{"expected an error, got none"};
}

}  // namespace test

/// The bootstraps that are tested, for TEST_CASE_TEMPLATE. ThreadSanitizer sees nothing between
/// processes.
#if defined(__SANITIZE_THREAD__)
#define PEERBUS_ALL_OF_PROCESSES test::as_local
#define PEERBUS_ALL_BOOTSTRAPS test::as_threads
#else
#ifdef PEERBUS_TEST_TCP
#define PEERBUS_ALL_OF_PROCESSES test::as_local, test::as_launched, test::over_tcp
#else
#define PEERBUS_ALL_OF_PROCESSES test::as_local, test::as_launched
#endif
#define PEERBUS_ALL_BOOTSTRAPS test::as_threads, PEERBUS_ALL_OF_PROCESSES
#endif

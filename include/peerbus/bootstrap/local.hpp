// SPDX-License-Identifier: MIT
#pragma once

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/children.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/pin.hpp>
#include <peerbus/bootstrap/detail/run_rank.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

struct run_options {
  /// Rank i runs on the i-th core that this process may use, counted round and round.
  bool pin = false;
  /// How long the other ranks may go on after the first one died or threw, before they are killed.
  std::chrono::milliseconds grace{10'000};
};

namespace detail {

class local_bootstrap final : public star_bootstrap {
 public:
  local_bootstrap(rank_id rank, std::size_t size, const state_page& states, star connections)
      : star_bootstrap{rank, size, states, std::move(connections)} {}

  /// Patient, as hundreds of processes may share a core; deaths end it at once.
  void meet_all(const state_page& states) {
    meet(states, deadline::after(std::chrono::minutes{2}));
  }
};

/// Room for the descriptors of a big group, which the usual soft limit of 1024 may not have, while
/// the group runs: its ranks inherit it. Small groups leave the limit alone.
class descriptor_room {
 public:
  explicit descriptor_room(std::size_t ranks) noexcept {
    const rlim_t wanted = 4 * ranks + 256;
    rlimit raised{};
    if (::getrlimit(RLIMIT_NOFILE, &raised) != 0 || raised.rlim_cur >= wanted) return;
    const rlimit before = raised;
    raised.rlim_cur = std::min(raised.rlim_max, wanted);
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) before_ = before;
  }
  descriptor_room(const descriptor_room&) = delete;
  descriptor_room& operator=(const descriptor_room&) = delete;
  ~descriptor_room() {
    if (before_) ::setrlimit(RLIMIT_NOFILE, &*before_);
  }

 private:
  std::optional<rlimit> before_;
};

/// What is the rank's own of the connections made so far. Any copy of an end that stayed open would
/// hide that its owner has died.
inline star take_connections(rank_id rank, std::vector<unique_fd>& hub_ends,
                             unique_fd& spoke_end) noexcept {
  if (rank.index() == 0) return hub{std::move(hub_ends)};
  hub_ends.clear();
  return spoke{std::move(spoke_end)};
}

/// What a child does with its life. The status goes to `_exit`: nothing of the parent's that the
/// child has a copy of is destroyed or flushed twice.
template <rank_function F>
[[noreturn]] void live_as_rank(F& f, rank_id rank, std::size_t size, const run_options& options,
                               const state_page& states, star connections) noexcept {
  const auto life = [&] {
    local_bootstrap boot{rank, size, states, std::move(connections)};
    const rank_end met = call_reporting(rank, [&] {
      if (options.pin) {
        const auto cores = usable_core_numbers();
        if (!cores.empty()) pin_to_core(cores[rank.index() % cores.size()]);
      }
      boot.meet_all(states);
      return 0;
    });
    if (met.state == rank_state::left) return run_rank(f, boot);
    boot.members()->announce(met.state);
    return met.status;
  };
  int status = call_reporting(rank, life).status;
  try {
    std::cout.flush();
  } catch (...) {  // The program may have asked for exceptions from it.
    if (status == 0) status = 1;
  }
  if (std::fflush(nullptr) != 0 && status == 0) status = 1;
  ::_exit(status);
}

inline void die_with_parent(pid_t parent) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have died before the request stood.
  if (::getppid() != parent) ::_exit(128 + SIGKILL);
}

inline void refuse_lost_statuses() {
  struct sigaction action{};
  if (::sigaction(SIGCHLD, nullptr, &action) == 0 &&
      ((action.sa_flags & SA_NOCLDWAIT) != 0 ||
       ((action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN)))
    throw error{errc::invalid_argument,
                "SIGCHLD is ignored in this process, so that exit statuses are lost; run_local "
                "expects the default action or a handler"};
}

}  // namespace detail

/// Runs `f(bootstrap&)` as `n` ranks, each a forked child process of its own copy of `f` and of
/// everything else. A rank ends with what `f` returns (0 for void; what does not fit into 0 to 255
/// counts as 255), or with 1 and a line on stderr if it throws. If a rank throws or dies, the waits
/// of the others end with peer_dead, and what still runs after `options.grace` is killed; a death
/// is reported on stderr.
/// Nothing outlives the call, nor this process if it is killed: the children die with the thread
/// that called. There is nothing in the file system to be left behind.
/// Returns: the worst exit status of all ranks, 128 + signal for one that was killed.
/// Threads: only the calling thread exists in the ranks; call it before starting others, or make
/// sure that `f` needs no lock that another thread may hold.
/// Throws: `error` invalid_argument if `n` is 0 or SIGCHLD is ignored, system if not all processes
/// could be started (those that were are gone then).
template <rank_function F>
[[nodiscard]] int run_local(std::size_t n, F f, run_options options = {}) {
  detail::refuse_empty_world(n, "run_local");
  detail::refuse_lost_statuses();
  const detail::descriptor_room room{n};
  const detail::state_page states{n};
  std::vector<unique_fd> hub_ends(n);
  // After the connections, so that on an error here the ranks end before those do.
  detail::children ranks{states.words()};
  ranks.reserve(n);
  const pid_t parent = ::getpid();
  // What is buffered here would be written by every child again.
  std::cout.flush();
  std::fflush(nullptr);

  // Rank 0 comes last: by then all its ends of the connections exist, and only those.
  for (std::size_t i = 1; i <= n; ++i) {
    const rank_id rank{i % n};
    unique_fd spoke_end;
    if (rank.index() != 0) {
      int pair[2] = {-1, -1};
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        throw detail::system_failure(detail::concat("connecting rank 0 and ", rank), errno);
      hub_ends[rank.index()].reset(pair[0]);
      spoke_end.reset(pair[1]);
    }
    const pid_t pid = ::fork();
    if (pid < 0)
      throw detail::system_failure(detail::concat("starting the process of ", rank, " of ", n),
                                   errno);
    if (pid == 0) {
      detail::die_with_parent(parent);
      ranks.forget();
      detail::live_as_rank(f, rank, n, options, states,
                           detail::take_connections(rank, hub_ends, spoke_end));
    }
    ranks.add(rank, pid);
  }
  hub_ends.clear();
  return ranks.wait(options.grace);
}

}  // namespace peerbus

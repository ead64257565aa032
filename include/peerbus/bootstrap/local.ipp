// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/children.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/pin.hpp>
#include <peerbus/bootstrap/detail/run_rank.hpp>
#include <peerbus/bootstrap/detail/star.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/bootstrap/detail/star_root.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/home_process.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

extern "C" {
#ifdef __clang__
/// Writes the counts of a program that was built with --coverage. Null in other programs.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
[[gnu::weak, gnu::visibility("hidden")]] void __gcov_dump();
/// Writes the counts of a program that was built with -fprofile-instr-generate. Null in other
/// programs. In LLVM_PROFILE_FILE `%p` is the process that started the ranks, so that all ranks
/// would overwrite one file. With `%m` the ranks add up their counts in one file.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
[[gnu::weak, gnu::visibility("hidden")]] int __llvm_profile_write_file();
#else
/// Writes the counts of a program that was built with --coverage, as exit(3) does. Null in other
/// programs. A weak reference to `__gcov_dump` would not make the linker fetch that function.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
[[gnu::weak, gnu::visibility("hidden")]] void __gcov_exit();
#endif
}

namespace peerbus::detail {

/// Writes the counts of this process in a build for coverage, because `_exit` does not write them.
inline void keep_coverage() noexcept {
#ifdef __clang__
  if (&__gcov_dump != nullptr) __gcov_dump();
  if (&__llvm_profile_write_file != nullptr) static_cast<void>(__llvm_profile_write_file());
#else
  if (&__gcov_exit != nullptr) __gcov_exit();
#endif
}

/// A rank that `run_local` started.
class local_bootstrap final : public star_bootstrap {
 public:
  local_bootstrap(rank_id rank, std::size_t size, const state_page& states,
                  std::unique_ptr<star> connections)
      : star_bootstrap{rank, size, states, std::move(connections)} {}

  /// Meets the other ranks. The deadline is long because hundreds of processes may share a core. If
  /// a rank dies, the call ends at once.
  void meet_all(const state_page& states) {
    meet(states, deadline::after(std::chrono::minutes{2}));
  }
};

/// A raised limit of open files while a big group runs, because the usual soft limit of 1024 may be
/// too low. The ranks inherit it, and the destructor restores the old limit. For small groups the
/// limit stays as it is.
class descriptor_room {
 public:
  explicit descriptor_room(std::size_t rank_count) noexcept {
    const rlim_t wanted = 4 * rank_count + 256;
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

/// Returns the connection ends that belong to `rank` and closes the other ends that exist so far. A
/// copy of an end that stayed open would hide the death of its owner.
inline std::unique_ptr<star> take_connections(rank_id rank, std::vector<connection>& root_ends,
                                              unique_fd& leaf_end) noexcept {
  if (rank.index() == 0) return std::make_unique<star_root>(std::move(root_ends));
  root_ends.clear();
  return std::make_unique<star_leaf>(std::move(leaf_end));
}

/// Returns whether a write to the standard output has failed in this process.
inline bool has_lost_output() noexcept { return std::ferror(stdout) != 0 || std::cout.bad(); }

/// Writes what is buffered.
/// Returns: whether that and the earlier writes of this rank succeeded.
/// `had_lost`: whether one had failed before the rank began.
inline bool flush_output(bool had_lost) noexcept {
  // Without a standard stream, as in a daemon, there is nobody to whom output could be lost. stdio
  // comes first, because the stream, which flushes it too, would take its errors.
  const bool is_flushed = std::fflush(nullptr) == 0 || errno == EBADF;
  bool has_thrown = false;
  try {
    std::cout.flush();
  } catch (...) {  // The program may have enabled exceptions of the stream.
    has_thrown = true;
  }
  const bool has_output = ::fcntl(STDOUT_FILENO, F_GETFD) >= 0;
  return is_flushed && (had_lost || !has_output || !(has_thrown || has_lost_output()));
}

/// Runs `body` as a rank in a child process and ends the process. Ends it by `_exit`, so that the
/// child destroys and flushes nothing that it has copied from the parent. Leaves the status in
/// `left` before.
[[noreturn]] inline void live_as_rank(rank_body body, rank_id rank, std::size_t size,
                                      const run_options& options, const state_page& states,
                                      membership::state_word& left,
                                      std::unique_ptr<star> connections) noexcept {
  const home_process home;
  const bool had_lost = has_lost_output();
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
    if (met.state == rank_state::left) return run_rank(body, boot);
    boot.members()->announce(met.state);
    return met.status;
  };
  int status = call_reporting(rank, life).status;
  if (!flush_output(had_lost) && status == 0) status = 1;
  keep_coverage();
  // A child that the rank forked may return here, too. order: release; pairs with the acquire in
  // `children::reap`.
  if (home.is_here())
    left.store(children::status_left + static_cast<std::uint32_t>(status),
               std::memory_order_release);
  ::_exit(status);
}

/// Makes the kernel kill this process when the parent's thread that forked it ends.
inline void die_with_parent(pid_t parent) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the request took effect.
  if (::getppid() != parent) ::_exit(128 + SIGKILL);
}

/// Checks that the exit statuses of children can be read.
/// Throws: `error` invalid_argument if SIGCHLD is ignored.
inline void refuse_lost_statuses() {
  struct sigaction action{};
  if (::sigaction(SIGCHLD, nullptr, &action) == 0 &&
      ((action.sa_flags & SA_NOCLDWAIT) != 0 ||
       ((action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN)))
    throw error{errc::invalid_argument,
                "SIGCHLD is ignored in this process, so that exit statuses are lost; run_local "
                "expects the default action or a handler"};
}

PEERBUS_INLINE int run_processes(std::size_t n, rank_body body, const run_options& options) {
  refuse_bad_world(n, "run_local");
  refuse_lost_statuses();
  const descriptor_room room{n};
  const auto states = state_page::make_named(state_page::name_of_own_ranks, n);
  const state_page statuses{n};
  std::vector<connection> root_ends(n);
  // Declared after the connections, so that on an error here the ranks end before the connections
  // do.
  children ranks{states.words(), statuses.words()};
  ranks.reserve(n);
  const pid_t parent = ::getpid();
  // Otherwise every child would write the buffered output again.
  std::cout.flush();
  std::fflush(nullptr);

  // Rank 0 starts last. All its ends of the connections exist by then, and no other ends do.
  for (std::size_t i = 1; i <= n; ++i) {
    const rank_id rank{i % n};
    unique_fd leaf_end;
    if (rank.index() != 0) {
      auto [root_end, own_end] = connected_pair(rank);
      root_ends[rank.index()] = std::move(root_end);
      leaf_end = std::move(own_end);
    }
    const pid_t pid = ::fork();
    if (const int number = errno; pid < 0)
      throw system_failure(concat("starting the process of ", rank, " of ", n,
                                  number == EAGAIN ? limits_of_processes : ""),
                           number);
    if (pid == 0) {
      die_with_parent(parent);
      ranks.forget();
      live_as_rank(body, rank, n, options, states, statuses.words()[rank.index()],
                   take_connections(rank, root_ends, leaf_end));
    }
    ranks.add(rank, pid);
  }
  root_ends.clear();
  return ranks.wait(options.grace);
}

}  // namespace peerbus::detail

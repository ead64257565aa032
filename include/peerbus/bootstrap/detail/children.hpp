// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/run_rank.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The processes of a group as their parent sees them. Those that still run when it is destroyed
/// are killed; all are reaped. Only ever waits for its own: the program may have other children.
class children {
 public:
  /// `states` are the words in which the ranks say how they ended, one for each child to come.
  explicit children(membership::state_word* states) noexcept : states_{states} {}
  children(const children&) = delete;
  children& operator=(const children&) = delete;
  ~children() {
    reporting_ = false;
    kill_running();
    for (child& one : all_)
      if (one.pid > 0) reap(one, 0);
  }

  void reserve(std::size_t count) { all_.resize(count); }
  void add(rank_id rank, pid_t pid) noexcept {
    all_[rank.index()].pid = pid;
    all_[rank.index()].handle = open_pidfd(pid);
  }

  /// In a child: the others are not its children, and their handles not its own.
  void forget() noexcept { all_.clear(); }

  /// Waits for all. After the first that did not end in good order the others get `grace`.
  /// Returns: the worst exit status, 128 + signal for killed ones.
  [[gnu::cold]] int wait(std::chrono::milliseconds grace) {
    auto until = deadline::never();
    bool all_watched = true;
    for (const child& one : all_) all_watched = all_watched && one.handle;
    // Without pidfds nothing but SIGCHLD would tell, and that is the program's to handle.
    const auto slice = all_watched ? std::chrono::milliseconds{60'000} : look_around;
    std::vector<pollfd> entries;
    while (running() != 0) {
      entries.clear();
      for (const child& one : all_)
        if (one.pid > 0 && one.handle) entries.push_back({one.handle.get(), POLLIN, 0});
      poll_for(entries, until, slice);
      const bool orderly_before = abnormal_ == 0;
      for (child& one : all_)
        if (one.pid > 0) reap(one, WNOHANG);
      if (orderly_before && abnormal_ != 0) until = deadline::after(grace);
      if (until.expired() && running() != 0) {
        print_line(concat(describe_ranks(running_ranks()), " did not end within ",
                          describe_span(deadline::saturated(grace)),
                          " of the first failure: killed"));
        kill_running();
        until = deadline::never();
        reporting_ = false;
      }
    }
    return worst_;
  }

 private:
  struct child {
    pid_t pid = 0;  ///< 0 before it started and after it was reaped
    unique_fd handle;
  };

  [[nodiscard]] std::vector<rank_id> running_ranks() const {
    std::vector<rank_id> ranks;
    for (const rank_id rank : all_ranks{all_.size()})
      if (all_[rank.index()].pid > 0) ranks.push_back(rank);
    return ranks;
  }
  [[nodiscard]] std::size_t running() const { return running_ranks().size(); }

  /// By pid, which stays theirs until they are reaped.
  void kill_running() noexcept {
    for (const child& one : all_)
      if (one.pid > 0) ::kill(one.pid, SIGKILL);
  }

  void reap(child& one, int flags) noexcept {
    int status = 0;
    pid_t got = 0;
    do {
      got = ::waitpid(one.pid, &status, flags);
    } while (got < 0 && errno == EINTR);
    if (got == 0) return;
    const rank_id rank{static_cast<std::size_t>(&one - all_.data())};
    one.pid = 0;
    one.handle.reset();
    judge(rank, got > 0, status);
  }

  [[gnu::cold]] void judge(rank_id rank, bool known, int status) noexcept {
    // order: acquire; pairs with the release in `membership::announce`.
    const auto said =
        static_cast<rank_state>(states_[rank.index()].load(std::memory_order_acquire));
    int result = 1;
    std::string how;
    if (!known) {
      how = "its exit status was taken by another wait() of this process";
    } else if (WIFSIGNALED(status)) {
      const int number = WTERMSIG(status);
      result = 128 + number;
      how = concat("killed by signal ", number, " (", ::strsignal(number), ")");
    } else {
      result = WEXITSTATUS(status);
      how = concat("ended the process with status ", result, " without returning");
      // It did not do its part, whatever it says.
      if (said == rank_state::running) result = std::max(result, 1);
    }
    worst_ = std::max(worst_, result);
    // The others may have no pidfds to see it by.
    membership::announce(states_[rank.index()], rank_state::died);
    if (said == rank_state::left && known && WIFEXITED(status)) return;
    ++abnormal_;
    // A rank that failed has said why itself.
    const bool said_why =
        (said == rank_state::failed || said == rank_state::followed) && known && WIFEXITED(status);
    if (reporting_ && !said_why) print_line(concat(rank, " died: ", how));
  }

  membership::state_word* states_;
  std::vector<child> all_;
  int worst_ = 0;
  std::size_t abnormal_ = 0;
  bool reporting_ = true;
};

}  // namespace peerbus::detail

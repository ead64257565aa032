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
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/run_rank.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/cgroup.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The child processes of a group, held by their parent. The destructor kills the processes that
/// still run, and reaps all. It waits for these processes only, because the program may have other
/// children.
class children {
 public:
  /// The number that a rank adds to the status that it leaves in memory. 0 means that it has left
  /// none.
  static constexpr std::uint32_t status_left = 0x100;

  /// Makes an empty list. `states` has the words in which the ranks announce their states.
  /// `statuses` has the words in which they leave their exit statuses. Both have one word for each
  /// later child.
  children(membership::state_word* states, const membership::state_word* statuses)
      : states_{states}, statuses_{statuses} {}
  children(const children&) = delete;
  children& operator=(const children&) = delete;
  ~children() {
    reporting_ = false;
    kill_running();
    for (child& process : all_)
      if (process.pid > 0) reap(process, 0);
  }

  void reserve(std::size_t count) { all_.resize(count); }
  void add(rank_id rank, pid_t pid) noexcept {
    all_[rank.index()].pid = pid;
    all_[rank.index()].handle = open_pidfd(pid);
  }

  /// Drops all processes. For use in a child, because the processes are not its children and the
  /// handles are not its own.
  void forget() noexcept { all_.clear(); }

  /// Waits for all processes. After the first process that did not end normally, the others have
  /// `grace` to end or to go on without it. Those that do neither are killed.
  /// Returns: the greatest exit status. A process that was killed counts as 128 + signal.
  int wait(std::chrono::milliseconds grace) {
    auto until = deadline::never();
    bool all_watched = true;
    for (const child& process : all_) all_watched = all_watched && process.handle;
    // Without pidfds only SIGCHLD reports an end, and its handler belongs to the program. So the
    // processes are looked at every few milliseconds.
    const auto slice = all_watched ? std::chrono::milliseconds{60'000} : poll_pause;
    std::vector<pollfd> entries;
    while (running() != 0) {
      entries.clear();
      for (const child& process : all_)
        if (process.pid > 0 && process.handle) entries.push_back({process.handle.get(), POLLIN, 0});
      poll_for(entries, until, slice);
      if (others_went_on()) {
        abnormal_ = 0;
        until = deadline::never();
      }
      const bool orderly_before = abnormal_ == 0;
      for (child& process : all_)
        if (process.pid > 0) reap(process, WNOHANG);
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
    pid_t pid = 0;  ///< 0 before the process has started and after it was reaped
    unique_fd handle;
    bool is_abnormal = false;  ///< whether the process has ended otherwise than a rank that leaves
  };

  [[nodiscard]] std::vector<rank_id> running_ranks() const {
    std::vector<rank_id> ranks;
    for (const rank_id rank : all_ranks{all_.size()})
      if (all_[rank.index()].pid > 0) ranks.push_back(rank);
    return ranks;
  }
  [[nodiscard]] std::size_t running() const { return running_ranks().size(); }

  /// Returns whether the ranks that run have excluded all ranks that did not end normally.
  [[nodiscard]] bool others_went_on() const noexcept {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      // order: relaxed; the word guards no data.
      const auto state = static_cast<rank_state>(states_[i].load(std::memory_order_relaxed));
      if (all_[i].is_abnormal && state != rank_state::excluded) return false;
    }
    return true;
  }

  /// Kills all running processes by pid. This is safe because a pid is not reused before its
  /// process is reaped.
  void kill_running() noexcept {
    for (const child& process : all_)
      if (process.pid > 0) ::kill(process.pid, SIGKILL);
  }

  void reap(child& process, int flags) noexcept {
    int status = 0;
    pid_t got = 0;
    do {
      got = ::waitpid(process.pid, &status, flags);
    } while (got < 0 && errno == EINTR);
    if (got == 0) return;
    const rank_id rank{static_cast<std::size_t>(&process - all_.data())};
    process.pid = 0;
    process.handle.reset();
    if (got > 0) return judge(rank, true, status);
    // A handler of SIGCHLD in the program may reap all children. A wait status has the exit status
    // in its second byte. order: acquire; pairs with the release in `live_as_rank`.
    const std::uint32_t left = statuses_[rank.index()].load(std::memory_order_acquire);
    judge(rank, left != 0, static_cast<int>((left & 0xff) << 8U));
  }

  /// Counts the end of a rank in the worst status. Announces `died` if the rank has announced no
  /// state itself. Prints a line if the end was abnormal and the rank has not reported it. `known`
  /// is false if `status` could not be read.
  void judge(rank_id rank, bool known, int status) noexcept {
    // order: acquire; pairs with the release in `membership::announce`.
    const auto announced =
        static_cast<rank_state>(states_[rank.index()].load(std::memory_order_acquire));
    int result = 1;
    std::string how;
    if (!known) {
      how = "its exit status was taken by another wait() of this process";
    } else if (WIFSIGNALED(status)) {
      const int number = WTERMSIG(status);
      result = 128 + number;
      how = concat("killed by signal ", number, " (", ::strsignal(number), ")",
                   number == SIGKILL ? memory_.describe() : "");
    } else {
      result = WEXITSTATUS(status);
      how = concat("ended the process with status ", result, " without returning");
      // The rank has not done its part, so the status 0 does not count as success.
      if (announced == rank_state::running) result = std::max(result, 1);
    }
    worst_ = std::max(worst_, result);
    // The other ranks may have no pidfds that report the death.
    membership::announce(states_[rank.index()], rank_state::died);
    if (announced == rank_state::left && known && WIFEXITED(status)) return;
    ++abnormal_;
    all_[rank.index()].is_abnormal = true;
    // A rank that failed has reported its exception itself.
    const bool has_explained =
        (announced == rank_state::failed || announced == rank_state::followed ||
         announced == rank_state::excluded) &&
        known && WIFEXITED(status);
    if (reporting_ && !has_explained) print_line(concat(rank, " died: ", how));
  }

  membership::state_word* states_;
  const membership::state_word* statuses_;
  std::vector<child> all_;
  memory_kills memory_;
  int worst_ = 0;
  std::size_t abnormal_ = 0;
  bool reporting_ = true;
};

}  // namespace peerbus::detail

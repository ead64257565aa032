// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>
#include <vector>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// Work that a rank does while it waits in a collective of its bootstrap. A transport adds a task
/// if its device makes progress only when the rank attends to it. Peers can then still reach a rank
/// that waits.
///
/// Threads: any. `add` and `remove` wait while tasks advance.
class idle_work {
 public:
  /// An activity that makes progress only when its rank calls it.
  class task {
   public:
    task() = default;
    task(const task&) = delete;
    task& operator=(const task&) = delete;

    /// Does the work that is due. Must not wait, and must not call the bootstrap or the `idle_work`
    /// that it belongs to.
    virtual void advance() noexcept = 0;

   protected:
    ~task() = default;
  };

  /// The longest time between two advances of a task while its rank waits.
  static constexpr std::chrono::milliseconds longest_pause{2};

  /// Adds a task, which is called until it is removed. `added` must live until then.
  void add(task& added) {
    const std::lock_guard lock{mutex_};
    tasks_.push_back(&added);
  }
  /// Removes a task. After the return, the task is not called any more. Does nothing if it was not
  /// added.
  void remove(const task& removed) noexcept {
    const std::lock_guard lock{mutex_};
    std::erase(tasks_, &removed);
  }

  /// Advances every task. Bootstraps call this each time before they sleep in a collective.
  /// Returns: the time for which they may then sleep, at most `longest`.
  [[nodiscard]] std::chrono::milliseconds advance(std::chrono::milliseconds longest) noexcept {
    const std::lock_guard lock{mutex_};
    for (task* const added : tasks_) added->advance();
    return tasks_.empty() ? longest : std::min(longest, longest_pause);
  }

 private:
  std::mutex mutex_;
  std::vector<task*> tasks_;
};

}  // namespace peerbus

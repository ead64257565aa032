// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>
#include <vector>

namespace peerbus {

/// Work that a rank does while it waits in a collective of its bootstrap. A transport adds a task
/// if its device stands still unless the rank looks after it, so that peers get through to a rank
/// that waits for them there.
///
/// Threads: any. `add` and `remove` wait while tasks advance.
class idle_work {
 public:
  /// Something that its rank has to move along.
  class task {
   public:
    task() = default;
    task(const task&) = delete;
    task& operator=(const task&) = delete;

    /// Does what there is to do now. Waits for nothing, and calls neither the bootstrap nor the
    /// `idle_work` that it belongs to.
    virtual void advance() noexcept = 0;

   protected:
    ~task() = default;
  };

  /// How long a task is left alone at most while its rank waits.
  static constexpr std::chrono::milliseconds longest_pause{2};

  /// `added` advances from now on until it is removed.
  void add(task& added) {
    const std::lock_guard lock{mutex_};
    tasks_.push_back(&added);
  }
  /// `removed`, if it was added, is not called any more once this returns.
  void remove(const task& removed) noexcept {
    const std::lock_guard lock{mutex_};
    std::erase(tasks_, &removed);
  }

  /// Advances every task. For bootstraps, each time before they sleep in a collective.
  /// Returns: for how long they may then sleep, `longest` or less.
  [[nodiscard]] std::chrono::milliseconds advance(std::chrono::milliseconds longest) noexcept {
    const std::lock_guard lock{mutex_};
    for (task* const one : tasks_) one->advance();
    return tasks_.empty() ? longest : std::min(longest, longest_pause);
  }

 private:
  std::mutex mutex_;
  std::vector<task*> tasks_;
};

}  // namespace peerbus

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/bulletin.hpp>
#include <peerbus/core/object_bytes.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// Tells the ranks of each other's waits if they share no memory. Each rank has a copy of the lines
/// of all. A rank tells of its own wait once it has lasted a quarter of a second, and again each
/// time that its duration has doubled. It tells of the end in its next wait. After the first 32
/// notices there are ten seconds between two. So a rank that makes no call for hours still has room
/// for them, and fast operations send nothing.
///
/// Threads: any number.
class told_activity {
 public:
  /// Makes the lines of `rank_count` ranks. All ranks must make this object in the same order as
  /// the other readers of `by`.
  told_activity(std::shared_ptr<bulletin> by, std::size_t rank_count)
      : by_{std::move(by)},
        lines_(rank_count),
        channel_{by_->subscribe({.take = [this](rank_id from, std::span<const std::byte> message) {
          take(from, message);
        }})} {}
  told_activity(const told_activity&) = delete;
  told_activity& operator=(const told_activity&) = delete;
  ~told_activity() { by_->unsubscribe(channel_); }

  /// Returns the copies of the lines: [ranks].
  [[nodiscard]] std::vector<activity_line*> lines() {
    std::vector<activity_line*> found;
    found.reserve(lines_.size());
    for (activity_line& line : lines_) found.push_back(&line);
    return found;
  }

  /// Tells the others of the wait on `own`, if a notice is due. Called while a wait goes on.
  void tell_if_due(const activity_line& own) noexcept {
    const auto wait = own.tell();
    const std::unique_lock held{telling_, std::try_to_lock};
    if (!held) return;  // Another thread tells.
    const activity_line::ticks present = activity_line::now();
    const bool is_told = wait.word == told_.word && present - wait.age - begun_ < first_after / 2;
    if (told_.word != 0 && !is_told) {
      told_.age = present - begun_;
      publish(told_.ended());
      told_ = {};
    }
    if (wait.age < (is_told ? 2 * told_.age : first_after) || present < next_) return;
    told_ = wait;
    begun_ = present - wait.age;
    next_ = ++count_ < without_pause ? 0 : present + pause;
    publish(wait);
  }

 private:
  static constexpr activity_line::ticks first_after = 250'000'000;
  static constexpr activity_line::ticks pause = 10'000'000'000;
  static constexpr int without_pause = 32;

  void publish(const activity_line::notice& wait) noexcept {
    try {
      by_->publish(channel_, object_bytes(wait));
    } catch (const std::exception&) {
      told_ = {};  // Without memory for it, errors say less.
    }
  }

  void take(rank_id from, std::span<const std::byte> message) noexcept {
    activity_line::notice notice;
    if (message.size() != sizeof notice) return;
    std::memcpy(&notice, message.data(), sizeof notice);
    lines_[from.index()].hear(notice);
  }

  std::shared_ptr<bulletin> by_;
  std::vector<activity_line> lines_;
  std::uint32_t channel_;
  std::mutex telling_;              ///< guards the members below
  activity_line::notice told_;      ///< the wait that was told last, unless its end was told
  activity_line::ticks begun_ = 0;  ///< the time at which that wait began
  activity_line::ticks next_ = 0;   ///< the earliest time of the next notice of a wait
  int count_ = 0;                   ///< the number of notices so far
};

}  // namespace peerbus::detail

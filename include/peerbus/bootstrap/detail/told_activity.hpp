// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/bulletin.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// What ranks that share no memory were last seen doing: each has a copy of the others' lines, and
/// tells of its own wait once that has gone on for a quarter of a second, and again each time that
/// it has gone on for twice as long. So fast operations send nothing, and a rank that is stopped
/// gets few messages.
///
/// Threads: any number.
class told_activity {
 public:
  /// Of `rank_count` ranks, all of which make theirs in the same order as what else reads `by`.
  told_activity(std::shared_ptr<bulletin> by, std::size_t rank_count)
      : by_{std::move(by)},
        lines_(rank_count),
        channel_{by_->subscribe({.take = [this](rank_id from, std::span<const std::byte> message) {
          take(from, message);
        }})} {}
  told_activity(const told_activity&) = delete;
  told_activity& operator=(const told_activity&) = delete;
  ~told_activity() { by_->unsubscribe(channel_); }

  /// Returns the copies: [ranks].
  [[nodiscard]] std::vector<activity_line*> lines() {
    std::vector<activity_line*> found;
    found.reserve(lines_.size());
    for (activity_line& line : lines_) found.push_back(&line);
    return found;
  }

  /// Tells the others of the wait on `own`, if that is due. For waits that go on.
  void tell_if_due(const activity_line& own) noexcept {
    const auto wait = own.tell();
    if (wait.word == 0 || wait.age < first_after) return;
    const activity_line::ticks begun = activity_line::now() - wait.age;
    // order: relaxed; a thread that is late tells once more than needed.
    const bool is_known = begun - begun_.load(std::memory_order_relaxed) < first_after / 2;
    if (is_known && wait.age < due_.load(std::memory_order_relaxed)) return;
    begun_.store(begun, std::memory_order_relaxed);
    due_.store(2 * wait.age, std::memory_order_relaxed);
    try {
      by_->publish(channel_, std::as_bytes(std::span{&wait, 1}));
    } catch (const std::exception&) {  // Only errors say what is lost with it.
    }
  }

 private:
  static constexpr activity_line::ticks first_after = 250'000'000;

  void take(rank_id from, std::span<const std::byte> message) noexcept {
    activity_line::notice told;
    if (message.size() != sizeof told) return;
    std::memcpy(&told, message.data(), sizeof told);
    lines_[from.index()].hear(told);
  }

  std::shared_ptr<bulletin> by_;
  std::vector<activity_line> lines_;
  std::uint32_t channel_;
  std::atomic<activity_line::ticks> begun_{0};  ///< when the wait began of which was told last
  std::atomic<activity_line::ticks> due_{0};    ///< the age at which to tell of it again
};

}  // namespace peerbus::detail

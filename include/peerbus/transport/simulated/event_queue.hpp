// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <utility>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// A virtual time or span of time of a simulation, in picoseconds. Times begin at 0.
using virtual_time = std::int64_t;
inline constexpr virtual_time end_of_time = std::numeric_limits<virtual_time>::max();

/// An event of type `what`, about `number`, that happens at time `at`.
struct timed_event {
  virtual_time at;
  std::uint32_t what;
  std::uint32_t number;
};

/// A queue of events in the order of their times. Events of one time keep the order in which they
/// were added. It is a radix heap, so no added event may be earlier than the latest taken event. An
/// event lies in the bucket of the highest bit in which its time differs from that event's time,
/// and moves to lower buckets as time goes by. It moves along with its neighbours in memory, so
/// that millions of events cost few cache misses, and take no more memory than their own size.
class event_queue {
 public:
  /// The largest number of events with which `take` calls `prepare`.
  static constexpr std::size_t most_prepared = 64;

  /// Returns whether there are no events.
  [[nodiscard]] bool empty() const noexcept { return used_ == 0; }
  /// Returns the time of the earliest event. The queue must not be empty.
  [[nodiscard]] virtual_time earliest() const noexcept { return earliest_[first_used()]; }
  /// Adds an event, which must not be earlier than the latest taken event.
  void add(const timed_event& added) {
    const auto bucket = bucket_of(added.at);
    if ((used_ & bit(bucket)) == 0) earliest_[bucket] = added.at;
    earliest_[bucket] = std::min(earliest_[bucket], added.at);
    used_ |= bit(bucket);
    buckets_[bucket].push_back(added);
  }
  /// Takes the earliest event. The queue must not be empty. From time to time, first calls
  /// `prepare(const std::deque<timed_event>&)` with up to `most_prepared` events that will be taken
  /// next, unless earlier events are added.
  template <class Prepare>
  [[nodiscard]] timed_event take(Prepare&& prepare) {
    const std::size_t first = first_used();
    if (first != 0) {
      latest_ = earliest_[first];
      used_ &= ~bit(first);
      moved_.swap(buckets_[first]);
      if (prepared_ == 0 && moved_.size() <= most_prepared) {
        prepared_ = moved_.size();
        prepare(std::as_const(moved_));
      }
      for (const timed_event& each : moved_) add(each);
      moved_.clear();
    }
    if (prepared_ != 0) --prepared_;
    auto& due = buckets_[0];
    const timed_event taken = due.front();
    due.pop_front();
    if (due.empty()) used_ &= ~bit(0);
    return taken;
  }

 private:
  [[nodiscard]] static constexpr std::uint64_t bit(std::size_t bucket) noexcept {
    return std::uint64_t{1} << bucket;
  }
  /// Returns the bucket of an event at `at`. Times are not negative, so they differ in no more than
  /// 63 bits.
  [[nodiscard]] std::size_t bucket_of(virtual_time at) const noexcept {
    return std::size_t{64} -
           static_cast<unsigned>(std::countl_zero(static_cast<std::uint64_t>(at ^ latest_)));
  }
  [[nodiscard]] std::size_t first_used() const noexcept {
    return static_cast<std::size_t>(std::countr_zero(used_));
  }

  std::array<std::deque<timed_event>, 64> buckets_;
  std::array<virtual_time, 64> earliest_{};
  std::deque<timed_event> moved_;
  std::uint64_t used_ = 0;    ///< one bit for each bucket, set if the bucket has events
  std::size_t prepared_ = 0;  ///< number of events that `prepare` was called with and that are not
                              ///< taken yet
  virtual_time latest_ = 0;   ///< the time of the latest event taken
};

}  // namespace peerbus::detail

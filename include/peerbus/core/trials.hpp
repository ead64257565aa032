// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/compiled.hpp>

namespace peerbus::detail {

/// When two ways of doing the same are tried in turns, by the number of the call alone, so that all
/// ranks try the same way in the same call without asking each other.
///
/// A trial is eight laps of a few calls: the first way, the second, the second, the first, and so
/// once more. The first calls of a lap find in the caches what the lap before has left, and are not
/// timed. The order makes a machine that slows down meanwhile meet both ways alike. Every second
/// trial begins with the second way, and gaps are odd, so that what repeats, as the layers of a
/// model do, meets both ways too.
class trial_schedule {
 public:
  /// Says how to carry out a call.
  struct turn {
    bool is_trial = false;   ///< whether it takes `way`, else what was decided
    bool is_timed = false;   ///< whether its time counts
    bool may_decide = true;  ///< whether all times of earlier trials are there
    std::size_t way = 0;     ///< 0 or 1
  };

  /// The first trial begins with call number `first`. Of each lap, `skipped` calls are not timed
  /// and `timed` are. A time may come `skipped` calls late.
  constexpr trial_schedule(std::uint64_t first, std::size_t skipped, std::size_t timed) noexcept
      : begin_{first}, skipped_{skipped}, timed_{timed} {}

  /// Returns what call `number` does. Numbers grow.
  [[nodiscard]] constexpr turn at(std::uint64_t number) noexcept {
    while (number >= end() + gap_) {
      begin_ = end() + gap_;
      gap_ = std::min(2 * gap_ + 1, most_gap);
      begins_with_second_ = !begins_with_second_;
    }
    if (number < begin_ || number >= end())
      return {.may_decide = number < begin_ || number >= end() + skipped_};
    const std::uint64_t lap = (number - begin_) / lap_size();
    const bool is_second = lap % 4 == 1 || lap % 4 == 2;
    return {.is_trial = true,
            .is_timed = (number - begin_) % lap_size() >= skipped_,
            .may_decide = false,
            .way = is_second != begins_with_second_ ? 1U : 0U};
  }
  /// Returns the number of the first call after the first trial that may decide.
  [[nodiscard]] static constexpr std::uint64_t first_decision(std::uint64_t first,
                                                              std::size_t skipped,
                                                              std::size_t timed) noexcept {
    return first + laps * (skipped + timed) + skipped;
  }

  /// The laps of a trial.
  static constexpr std::size_t laps = 8;
  /// Calls between two trials: at first, and at most. The number doubles, and stays odd.
  static constexpr std::uint64_t least_gap = 511;
  static constexpr std::uint64_t most_gap = 16383;

 private:
  [[nodiscard]] constexpr std::uint64_t lap_size() const noexcept { return skipped_ + timed_; }
  [[nodiscard]] constexpr std::uint64_t end() const noexcept { return begin_ + laps * lap_size(); }

  std::uint64_t begin_;
  std::uint64_t gap_ = least_gap;
  std::size_t skipped_;
  std::size_t timed_;
  bool begins_with_second_ = false;
};

/// The choice between two ways by their times.
///
/// Of the times of a way the lower quartile counts, as whatever disturbs a machine makes times
/// longer. Times are kept until there are enough of both ways, over several trials if need be. Then
/// the choice changes only if the other way took `least_gain` less, on average over this decision
/// and earlier ones, of which the latest weighs half.
class measured_choice {
 public:
  /// Notes a time of `way`, 0 or 1. Of each way the latest `most_times` count.
  void add(std::size_t way, double time) noexcept {
    sample& noted = of_way_[way];
    noted.times[noted.next] = static_cast<float>(time);
    noted.next = static_cast<std::uint8_t>((noted.next + 1U) % most_times);
    noted.count = static_cast<std::uint8_t>(std::min<std::size_t>(noted.count + 1U, most_times));
  }
  /// Decides, if there are enough times. `assumed` is the choice before the first decision.
  void decide(std::size_t assumed) noexcept;

  /// Returns whether a decision was made.
  [[nodiscard]] bool is_measured() const noexcept { return is_measured_; }
  /// Returns the way that was chosen, once one was.
  [[nodiscard]] std::size_t way() const noexcept { return way_; }
  /// Returns the time of `way` at the last decision.
  [[nodiscard]] double found(std::size_t way) const noexcept { return found_[way]; }

  /// The most times of a way that are kept. Half of them are enough.
  static constexpr std::size_t most_times = 12;
  /// The least part of the time that the other way must save to be taken.
  static constexpr double least_gain = 0.03;

 private:
  /// The latest times of a way since the last decision.
  struct sample {
    std::array<float, most_times> times;
    std::uint8_t count = 0;
    std::uint8_t next = 0;
  };

  std::array<sample, 2> of_way_;
  std::array<double, 2> found_{};
  double gain_ = 0;  // The mean logarithm of the time of way 0 over that of way 1.
  std::size_t way_ = 0;
  bool is_measured_ = false;
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/trials.ipp>  // IWYU pragma: keep
#endif

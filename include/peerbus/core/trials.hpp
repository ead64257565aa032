// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/compiled.hpp>

namespace peerbus::detail {

/// The turns in which two ways of doing the same are tried. They depend only on the number of the
/// call, so that all ranks try the same way in the same call without communication.
///
/// A trial is eight laps of a few calls, in the order first, second, second, first way, twice. The
/// first calls of a lap are not timed, because they find the data of the previous lap in the
/// caches. The order exposes both ways equally to a machine that slows down. Every second trial
/// begins with the second way, and gaps are odd, so that periodic work, such as the layers of a
/// model, meets both ways too.
class trial_schedule {
 public:
  /// The way in which a call is carried out.
  struct turn {
    bool is_trial = false;   ///< whether the call tries `way`; if not, it uses the decision
    bool is_timed = false;   ///< whether the time of the call counts
    bool may_decide = true;  ///< whether all times of earlier trials have been added
    std::size_t way = 0;     ///< the way that is tried, 0 or 1
  };

  /// Starts the first trial at call `first`. Each lap has `skipped` calls without timing, then
  /// `timed` calls with timing. A time may be added up to `skipped` calls late.
  constexpr trial_schedule(std::uint64_t first, std::size_t skipped, std::size_t timed) noexcept
      : begin_{first}, skipped_{skipped}, timed_{timed} {}

  /// Returns the turn of call `number`, which must not be below the number of an earlier call.
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
  /// Returns the number of the first call after the first trial that may decide. Arguments as the
  /// constructor.
  [[nodiscard]] static constexpr std::uint64_t first_decision(std::uint64_t first,
                                                              std::size_t skipped,
                                                              std::size_t timed) noexcept {
    return first + laps * (skipped + timed) + skipped;
  }

  /// The number of laps of a trial.
  static constexpr std::size_t laps = 8;
  /// The smallest number of calls between two trials. The gap doubles after each trial, and stays
  /// odd.
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
/// Compares the lower quartile of each way's times, because disturbances only make times longer.
/// Times are kept, over several trials if needed, until both ways have enough. After the first
/// decision, the choice changes only if the other way took `least_gain` less on average over this
/// decision and earlier ones, with the latest weighing half.
class measured_choice {
 public:
  /// Notes a time of `way`, 0 or 1. Keeps the latest `most_times` times of each way.
  void add(std::size_t way, double time) noexcept {
    sample& noted = of_way_[way];
    noted.times[noted.next] = static_cast<float>(time);
    noted.next = static_cast<std::uint8_t>((noted.next + 1U) % most_times);
    noted.count = static_cast<std::uint8_t>(std::min<std::size_t>(noted.count + 1U, most_times));
  }
  /// Decides if both ways have enough times, and forgets these times. `assumed` is the choice
  /// before the first decision, which the first decision keeps unless the other way is faster by
  /// `least_gain`.
  void decide(std::size_t assumed) noexcept;

  /// Returns the number of decisions.
  [[nodiscard]] std::size_t decisions() const noexcept { return decisions_; }
  /// Returns whether there has been a decision.
  [[nodiscard]] bool is_measured() const noexcept { return decisions_ != 0; }
  /// Returns the chosen way. Requires `is_measured()`.
  [[nodiscard]] std::size_t way() const noexcept { return way_; }
  /// Returns the time of `way` at the last decision, or 0 before the first one.
  [[nodiscard]] double found(std::size_t way) const noexcept { return found_[way]; }
  /// Returns the mean over the decisions, the latest weighing half, of the logarithm of the time of
  /// way 0 over that of way 1.
  [[nodiscard]] double gain() const noexcept { return gain_; }
  /// Returns the way that `gain` speaks for, or `otherwise` if it is below `least_gain`.
  [[nodiscard]] static constexpr std::size_t way_by(double gain, std::size_t otherwise) noexcept {
    return gain > least_gain ? 1 : gain < -least_gain ? 0 : otherwise;
  }

  /// The number of times that are kept per way. A decision needs half as many of both ways.
  static constexpr std::size_t most_times = 12;
  /// The smallest gain for which the other way is chosen, as a part of the time.
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
  double gain_ = 0;
  std::size_t way_ = 0;
  std::size_t decisions_ = 0;
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/trials.ipp>  // IWYU pragma: keep
#endif

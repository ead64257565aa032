// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/pattern.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/trials.hpp>

namespace peerbus::collective::detail {

/// The trials that find the faster of two ways for calls of a team, for each operation and each
/// size of rows, in classes of a factor of two. Operations that reduce go in one shot or in two;
/// others stage operands in pages or read them in private memory.
///
/// The time of a call is from the arrival of its last rank until its last rank has left. Ranks tell
/// each other both times by notices (`timed_calls`), so all ranks add the same times and choose the
/// same way.
/// Memory: 30 KiB.
class way_trials {
 public:
  /// A call between its notices.
  struct running {
    std::uint16_t class_index = 0;
    std::uint8_t way = 0;     ///< 0: staged, or in one shot; 1: read, or in two shots
    bool counts = false;      ///< whether it is a call of its class
    bool is_timed = false;    ///< whether ranks tell when they have left
    std::uint32_t began = 0;  ///< when the last rank came
  };

  /// Returns the way of the next call of its class. Calls that ranks refuse do not count. `assumed`
  /// is the way before both ways are measured.
  [[nodiscard]] running begin(operation_kind what, std::size_t bytes,
                              std::size_t assumed) noexcept {
    const std::size_t index = class_of(what, bytes);
    one_class& of_size = classes_[index];
    const auto turn = of_size.trials.at(of_size.calls + 1);
    if (turn.may_decide) of_size.choice.decide(assumed);
    const std::size_t way = turn.is_trial                  ? turn.way
                            : of_size.choice.is_measured() ? of_size.choice.way()
                                                           : assumed;
    return {.class_index = static_cast<std::uint16_t>(index),
            .way = static_cast<std::uint8_t>(way),
            .counts = true,
            .is_timed = turn.is_timed};
  }
  /// Counts a call that ranks have carried out.
  void count(const running& call) noexcept { ++classes_[call.class_index].calls; }
  /// Adds the time of a timed call. `ended` is when its last rank left.
  void add(const running& call, std::uint32_t ended) noexcept {
    // Unsigned, so that a clock that begins again with 0 meanwhile does no harm.
    classes_[call.class_index].choice.add(call.way, (ended - call.began) / 1000.0);
  }
  /// Returns the choice of a class, for programs that inspect it.
  [[nodiscard]] const peerbus::detail::measured_choice& choice(operation_kind what,
                                                               std::size_t bytes) const noexcept {
    return classes_[class_of(what, bytes)].choice;
  }

  /// The call of a class with which the first trial begins, and the calls of each lap that are not
  /// timed and that are timed.
  static constexpr std::uint64_t first_trial = 5;
  static constexpr std::size_t skipped_in_lap = 1;
  static constexpr std::size_t timed_in_lap = 2;
  /// The first call of a class that takes the result of the first trial.
  static constexpr std::uint64_t first_decision =
      peerbus::detail::trial_schedule::first_decision(first_trial, skipped_in_lap, timed_in_lap);

 private:
  struct one_class {
    peerbus::detail::trial_schedule trials{first_trial, skipped_in_lap, timed_in_lap};
    peerbus::detail::measured_choice choice;
    std::uint64_t calls = 0;
  };
  // Rows of less than 8 KiB, of less than 16 KiB, and so on to those of 8 MiB and more; of
  // reductions, up to 1 KiB, up to 2 KiB, and so on to more than 1 MiB.
  static constexpr std::size_t sizes = 12;
  static constexpr std::size_t operations =
      static_cast<std::size_t>(operation_kind::reduce_scatter_v) + 1;

  [[nodiscard]] static std::size_t class_of(operation_kind what, std::size_t bytes) noexcept {
    // Of reductions, sizes up to a power of two, for which costs choose alike (`algorithm_choice`).
    const bool reduces = pattern_of(what).reduces;
    const std::size_t least_log2 = reduces ? 10 : 13;
    const std::size_t log2 =
        static_cast<unsigned>(std::bit_width(bytes - (reduces && bytes != 0 ? 1 : 0)));
    const std::size_t size = log2 <= least_log2 ? 0 : std::min(log2 - least_log2, sizes - 1);
    return static_cast<std::size_t>(what) * sizes + size;
  }

  std::array<one_class, operations * sizes> classes_{};
};

/// Returns the algorithm that a way of `way_trials` stands for.
[[nodiscard]] constexpr algorithm algorithm_of_way(std::size_t way) noexcept {
  return way == 0 ? algorithm::one_shot : algorithm::two_shots;
}

}  // namespace peerbus::collective::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/compiled.hpp>
#include <peerbus/moe/stores.hpp>

namespace peerbus::moe::detail {

/// The stores of one batch, as `store_trials` orders them.
struct batch_stores {
  std::size_t stream_from = 0;  ///< for the `row_stream`s of the batch
  bool timed = false;           ///< whether `store_trials::add` wants the time of the batch
  store_kind kind = store_kind::plain;
  std::uint8_t size_class = 0;
  double us_per_token = 0;  ///< so far, of the parts that are timed
};

/// Finds out by trial which stores an exchange should use, for each size of batch.
///
/// The better stores depend on what the caches hold when rows are written and read, and no rule
/// knows what the caller does between the calls. So from time to time there is a trial: eight laps
/// of a few dispatches, with plain stores, streaming, streaming, plain, and so once more. The first
/// dispatches of a lap find in the caches what the lap before has left, and are not timed. The
/// order makes a machine that slows down meanwhile meet both kinds alike. Every second trial begins
/// with streaming, and gaps are odd, so that what repeats, as the layers of a model do, meets both
/// kinds too. Which dispatches are a trial depends on their numbers only. So all ranks try the same
/// stores at the same time, without asking each other, and what a rank reads meanwhile was written
/// by the stores that it tries.
///
/// Sizes are classes of a factor of two. Times are those of a token, so that batches of different
/// sizes compare. Of the times of a kind the lower quartile counts, as whatever disturbs a machine
/// makes times longer. Times are kept until there are enough of both kinds, over several trials if
/// need be. Then the kind of the size changes only if the other one took `least_gain` less, on
/// average over this decision and earlier ones, of which the latest weighs half.
/// Cost: half of the dispatches of a trial use the worse stores: 16 of the first 550, and in the
/// end 16 of 16 415 (with `in_flight` 1). A timed batch reads the clock six times, and reads what
/// it received and summed once more. A batch that is in no trial costs a few instructions. Threads:
/// one at a time.
class store_trials {
 public:
  /// Uses `stream_from`, the bytes from which rows are streamed, for sizes that were not measured.
  /// `by` is what is to decide: unless `measured`, nothing is tried.
  store_trials(std::size_t stream_from, store_reason by, std::size_t in_flight) noexcept
      : stream_from_{stream_from}, by_{by}, skipped_{in_flight} {}

  /// Returns the stores of dispatch `number`, whose rows have `bytes` bytes in all. Numbers grow.
  /// An empty batch is not timed.
  [[nodiscard]] batch_stores begin(std::uint64_t number, std::size_t bytes) noexcept;
  /// Notes the time of a batch that is `timed`.
  void add(const batch_stores& batch) noexcept;
  /// Returns the choice for batches whose rows have `bytes` bytes, with the times of one token.
  [[nodiscard]] store_choice choice(std::size_t bytes) const noexcept;

  /// The dispatches before the first trial, which touch memory for the first time.
  static constexpr std::uint64_t dispatches_before = 8;
  /// Laps of a trial, and timed dispatches of a lap.
  static constexpr std::size_t laps = 8;
  static constexpr std::size_t timed_in_lap = 3;
  /// Dispatches between two trials: at first, and at most. The number doubles, and stays odd.
  static constexpr std::uint64_t least_gap = 511;
  static constexpr std::uint64_t most_gap = 16383;
  /// The least part of the time that the other kind must save to be taken.
  static constexpr double least_gain = 0.03;
  /// Returns the number of the dispatch that decides on a size which all of the first trial had.
  [[nodiscard]] static constexpr std::uint64_t first_decision(std::size_t in_flight) noexcept {
    return dispatches_before + 1 + laps * (in_flight + timed_in_lap) + in_flight;
  }

 private:
  static constexpr std::size_t most_times = laps / 2 * timed_in_lap;
  /// The latest times of a kind since the last decision, in microseconds a token.
  struct sample {
    std::array<double, most_times> times;
    std::uint8_t count = 0;
    std::uint8_t next = 0;
  };
  struct size_class {
    std::array<sample, 2> of_kind;        ///< plain, streaming
    std::array<double, 2> found{};        ///< by the last decision; 0: none yet
    double gain = 0;                      ///< mean logarithm of plain over streaming time
    store_kind kind = store_kind::plain;  ///< once `measured`
    bool measured = false;
  };
  static constexpr std::size_t class_count = 8 * sizeof(std::size_t) + 1;
  [[nodiscard]] static std::uint8_t class_of(std::size_t bytes) noexcept {
    return static_cast<std::uint8_t>(8 * sizeof(bytes) -
                                     static_cast<unsigned>(std::countl_zero(bytes)));
  }

  [[nodiscard]] std::uint64_t lap_size() const noexcept { return skipped_ + timed_in_lap; }
  [[nodiscard]] std::uint64_t trial_size() const noexcept { return laps * lap_size(); }
  [[nodiscard]] store_kind assumed(std::size_t bytes) const noexcept {
    return bytes >= stream_from_ ? store_kind::streaming : store_kind::plain;
  }
  /// Decides from the times of a size, if there are enough.
  void decide(size_class& sizes, std::size_t bytes) const noexcept;

  std::size_t stream_from_;
  store_reason by_;
  std::size_t skipped_;  ///< dispatches of each lap that are not timed
  std::uint64_t trial_begin_ = dispatches_before + 1;
  std::uint64_t gap_ = least_gap;
  bool streams_first_ = false;
  std::array<size_class, class_count> classes_{};
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/control/store_trials.ipp>  // IWYU pragma: keep
#endif

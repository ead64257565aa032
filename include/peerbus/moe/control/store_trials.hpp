// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/trials.hpp>
#include <peerbus/moe/stores.hpp>

namespace peerbus::moe::detail {

/// The stores of one batch, as `store_trials` orders them.
struct batch_stores {
  std::size_t stream_from = 0;  ///< bytes from which the `row_stream`s of the batch stream
  bool timed = false;           ///< true if `store_trials::add` wants the time of the batch
  store_kind kind = store_kind::plain;
  std::uint8_t size_class = 0;
  double us_per_token = 0;  ///< time of the timed parts so far
};

/// The trials by which an exchange finds out which stores to use, for each size of batch.
///
/// The better stores depend on what the caches hold when rows are written and read, and no rule
/// knows what the caller does between the calls. So from time to time there is a trial of both
/// kinds, as `trial_schedule` says, with the numbers of dispatches. All ranks try the same stores
/// at the same time, so that a rank meanwhile reads rows that the stores on trial wrote.
///
/// Sizes are classes of a factor of two. Times are those of a token, so that batches of different
/// sizes compare.
/// Cost: half of the dispatches of a trial use the worse stores: 16 of the first 550, and in the
/// end 16 of 16 415 (with `in_flight` 1). A timed batch reads the clock six times, and reads the
/// rows that it received and the sums once more. A batch that is in no trial costs a few
/// instructions.
/// Threads: one thread at a time.
class store_trials {
 public:
  /// Uses `stream_from`, the bytes from which rows are streamed, for sizes that were not measured.
  /// Unless `by` is `measured`, nothing is tried.
  store_trials(std::size_t stream_from, store_reason by, std::size_t in_flight) noexcept
      : stream_from_{stream_from}, by_{by}, trials_{first_trial, in_flight, timed_in_lap} {}

  /// Starts the size of batches of `bytes` bytes from the times of a token that another exchange
  /// measured, both above 0, until this one has decided. Ignored if nothing is tried.
  void start_from(std::size_t bytes, double plain_us, double streaming_us) noexcept;
  /// Returns the stores of dispatch `number`, whose rows have `bytes` bytes in all. `number` must
  /// increase from call to call. An empty batch is not timed.
  [[nodiscard]] batch_stores begin(std::uint64_t number, std::size_t bytes) noexcept;
  /// Notes the time of a batch that is `timed`.
  void add(const batch_stores& batch) noexcept;
  /// Returns the choice for batches whose rows have `bytes` bytes, with the times of one token.
  [[nodiscard]] store_choice choice(std::size_t bytes) const noexcept;
  /// Returns the times by which another exchange would choose as this one, which has measured the
  /// size. The mean over all trials is in their ratio, which `choice` reports for the latest trial.
  [[nodiscard]] store_choice lasting_choice(std::size_t bytes) const noexcept;
  /// Returns the least bytes of each size that was dispatched or that `start_from` named, in
  /// ascending order. The bytes of a size are below twice these. Allocates.
  [[nodiscard]] std::vector<std::size_t> sizes() const;

  /// The dispatch that begins the first trial. Earlier dispatches touch memory for the first time.
  static constexpr std::uint64_t first_trial = 9;
  /// The number of timed dispatches in a lap.
  static constexpr std::size_t timed_in_lap = 3;
  /// Returns the number of the dispatch that first decides, if all batches have one size.
  [[nodiscard]] static constexpr std::uint64_t first_decision(std::size_t in_flight) noexcept {
    return peerbus::detail::trial_schedule::first_decision(first_trial, in_flight, timed_in_lap);
  }

 private:
  static constexpr std::size_t class_count = 8 * sizeof(std::size_t) + 1;
  [[nodiscard]] static std::uint8_t class_of(std::size_t bytes) noexcept {
    return static_cast<std::uint8_t>(8 * sizeof(bytes) -
                                     static_cast<unsigned>(std::countl_zero(bytes)));
  }
  [[nodiscard]] store_kind by_rule(std::size_t bytes) const noexcept {
    return bytes >= stream_from_ ? store_kind::streaming : store_kind::plain;
  }
  /// Returns the stores before the first decision.
  [[nodiscard]] store_kind assumed(std::size_t bytes) const noexcept {
    const store_choice& learned = learned_[class_of(bytes)];
    return learned.why == store_reason::learned ? learned.kind : by_rule(bytes);
  }

  std::size_t stream_from_;
  store_reason by_;
  peerbus::detail::trial_schedule trials_;
  std::array<peerbus::detail::measured_choice, class_count> classes_{};
  std::array<store_choice, class_count> learned_{};  // `learned` where `start_from` was called.
  std::array<bool, class_count> dispatched_{};
};

}  // namespace peerbus::moe::detail

namespace peerbus::moe {

/// Returns the number of the first dispatch whose stores were measured, if all batches have one
/// size.
[[nodiscard]] constexpr std::uint64_t first_measured_dispatch(std::size_t in_flight) noexcept {
  return detail::store_trials::first_decision(in_flight);
}

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/control/store_trials.ipp>  // IWYU pragma: keep
#endif

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/per_batch.hpp>

namespace peerbus::deep_ep::detail {

/// The progress of a batch. In `sent` and `returning`, a hook or an event must still be called.
enum class stage : std::uint8_t { idle, sent, received, returning, combined };

/// The state that batches of all kinds of calls share. Each kind of call adds members of its own.
struct batch_state {
  stage progress = stage::idle;
  std::uint64_t number = 0;  ///< number of the dispatch in its exchange
  std::uint64_t call = 0;    ///< number of the call in progress, or of the latest one
  std::uint64_t plan = 0;    ///< number of the call that made the handle
  std::size_t tokens = 0;
  std::optional<deadline> until{};
  tensor waited{};  ///< wait statistics of the call in progress
};

/// Returns the options for the exchange's call: the deadline and the wait statistics of `batch`.
template <class Options>
Options options_of(const batch_state& batch) {
  Options options;
  options.until = batch.until;
  if constexpr (requires { options.waited; })
    if (batch.waited) options.waited = batch.waited.values<std::int64_t>();
  return options;
}

/// The batches of one exchange, found by the numbers of their dispatches. Operation 2n is dispatch
/// n, and operation 2n + 1 is the combine of dispatch n.
template <std::derived_from<batch_state> Batch>
class batch_slots {
 public:
  /// Makes the slots. `mode` is the prefix of the names of the calls, for errors.
  batch_slots(std::string_view mode, std::vector<Batch> batches) noexcept
      : mode_{mode}, batches_{std::move(batches)} {}

  [[nodiscard]] Batch& at(std::uint64_t number) noexcept { return batches_.of(number); }
  [[nodiscard]] const Batch& at(std::uint64_t number) const noexcept { return batches_.of(number); }

  /// Returns the batch that the next dispatch, `number`, will use.
  /// Throws: `error` invalid_argument if a hook or event of the earlier dispatch in this batch was
  /// not called yet.
  [[nodiscard]] Batch& next(std::uint64_t number) {
    Batch& batch = at(number);
    if (batch.progress == stage::sent || batch.progress == stage::returning)
      throw error{
          errc::invalid_argument,
          concat(mode_, "dispatch ", number, ": the hook or event of ", mode_,
                 batch.progress == stage::sent ? "dispatch " : "combine ", batch.number,
                 " was never called; expected it before its memory is used again (in_flight ",
                 batches_.size(), ")")};
    return batch;
  }

  /// Returns whether dispatch `number` has been received and not replaced. It may have been
  /// combined.
  [[nodiscard]] bool is_received(std::uint64_t number) const noexcept {
    return number != 0 && batches_.of(number).number == number && has_rows(batches_.of(number));
  }
  /// Returns the batch of a handle.
  /// Throws: `error` invalid_argument unless `is_received`.
  [[nodiscard]] Batch& received(const argument& handle, std::uint64_t number) {
    Batch& batch = at(number);
    handle.require(number != 0 && batch.number == number, "is of ", mode_, "dispatch ", number,
                   ", which ", batch.number, " has replaced; expected one of the latest ",
                   batches_.size());
    handle.require(batch.progress != stage::sent, "is of ", mode_, "dispatch ", number,
                   ", whose hook or event was not called; expected that first");
    handle.require(batch.progress != stage::returning, "is of ", mode_, "dispatch ", number,
                   ", the hook or event of whose combine was not called; expected that first");
    handle.require(has_rows(batch), "is of ", mode_, "dispatch ", number,
                   ", which was refused; expected one that was not");
    return batch;
  }

  /// Returns whether the hook or event of `operation` must still be called.
  [[nodiscard]] bool is_pending(std::uint64_t operation) const noexcept {
    const Batch& batch = batches_.of(operation / 2);
    return batch.number == operation / 2 &&
           batch.progress == (operation % 2 == 0 ? stage::sent : stage::returning);
  }
  /// Returns the batch of an operation.
  /// Throws: `error` invalid_argument unless `is_pending`.
  [[nodiscard]] Batch& pending(std::uint64_t operation) {
    if (!is_pending(operation))
      throw error{
          errc::invalid_argument,
          concat("hook of ", mode_, operation % 2 == 0 ? "dispatch " : "combine ", operation / 2,
                 " was called, expected it once: its results are received already")};
    return at(operation / 2);
  }
  /// Calls `visit(batch)` for each batch that has a dispatch, in the order of the dispatches.
  template <class Visit>
  void for_each(Visit&& visit) {
    for (Batch* const batch : in_order<Batch>(*this)) visit(*batch);
  }
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const Batch* const batch : in_order<const Batch>(*this)) visit(*batch);
  }
  [[nodiscard]] bool anything_pending() const noexcept {
    return std::any_of(batches_.begin(), batches_.end(), [](const Batch& batch) {
      return batch.progress == stage::sent || batch.progress == stage::returning;
    });
  }

 private:
  template <class Entry, class Self>
  [[nodiscard]] static std::vector<Entry*> in_order(Self& self) {
    std::vector<Entry*> known;
    for (std::size_t set = 0; set < self.batches_.size(); ++set)
      if (Entry& batch = self.batches_.of(set); batch.number != 0) known.push_back(&batch);
    std::sort(known.begin(), known.end(),
              [](const Batch* a, const Batch* b) { return a->number < b->number; });
    return known;
  }
  [[nodiscard]] static bool has_rows(const Batch& batch) noexcept {
    return batch.progress == stage::received || batch.progress == stage::combined;
  }

  std::string_view mode_;
  moe::per_batch<Batch> batches_;
};

}  // namespace peerbus::deep_ep::detail

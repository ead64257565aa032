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

/// How far a batch has come. In `sent` and `returning` a hook or an event is to be called.
enum class stage : std::uint8_t { idle, sent, received, returning };

/// What every batch of a buffer's calls has; each kind of call adds its own.
struct batch_state {
  stage at = stage::idle;
  std::uint64_t number = 0;  ///< of the dispatch, as its exchange counts
  std::size_t tokens = 0;
  std::optional<deadline> until{};
  tensor waited{};  ///< statistics of the call under way
};

/// What a batch's call tells its exchange.
template <class Options>
Options options_of(const batch_state& one) {
  Options with;
  with.until = one.until;
  if constexpr (requires { with.waited; })
    if (one.waited) with.waited = one.waited.values<std::int64_t>();
  return with;
}

/// The batches of one exchange, by the numbers of its dispatches. Operation 2n is dispatch n,
/// operation 2n + 1 its combine.
template <std::derived_from<batch_state> Batch>
class batch_slots {
 public:
  /// `mode` is what the names of the calls begin with.
  batch_slots(std::string_view mode, std::vector<Batch> batches) noexcept
      : mode_{mode}, batches_{std::move(batches)} {}

  [[nodiscard]] Batch& at(std::uint64_t number) noexcept { return batches_.of(number); }

  /// The batch that dispatch `number` will use, the next one.
  /// Throws: `error` invalid_argument if a hook or event still waits for what is in it.
  [[nodiscard]] Batch& next(std::uint64_t number) {
    Batch& one = at(number);
    if (one.at == stage::sent || one.at == stage::returning)
      throw error{
          errc::invalid_argument,
          concat(mode_, "dispatch ", number, ": the hook or event of ", mode_,
                 one.at == stage::sent ? "dispatch " : "combine ", one.number,
                 " was never called; expected it before its memory is used again (in_flight ",
                 batches_.size(), ")")};
    return one;
  }

  /// Whether dispatch `number` is received, not combined and not replaced.
  [[nodiscard]] bool is_received(std::uint64_t number) const noexcept {
    return number != 0 && batches_.of(number).number == number &&
           batches_.of(number).at == stage::received;
  }
  /// The batch of a handle. Throws: `error` invalid_argument unless `is_received`.
  [[nodiscard]] Batch& received(const argument& handle, std::uint64_t number) {
    Batch& one = at(number);
    handle.require(number != 0 && one.number == number, "is of ", mode_, "dispatch ", number,
                   ", which ", one.number, " has replaced; expected one of the latest ",
                   batches_.size());
    handle.require(one.at != stage::sent, "is of ", mode_, "dispatch ", number,
                   ", whose hook or event was not called; expected that first");
    handle.require(one.at == stage::received, "is of ", mode_, "dispatch ", number,
                   ", which is combined already or was refused; expected one that is not");
    return one;
  }

  [[nodiscard]] bool is_pending(std::uint64_t operation) const noexcept {
    const Batch& one = batches_.of(operation / 2);
    return one.number == operation / 2 &&
           one.at == (operation % 2 == 0 ? stage::sent : stage::returning);
  }
  /// Throws: `error` invalid_argument unless `is_pending`.
  [[nodiscard]] Batch& pending(std::uint64_t operation) {
    if (!is_pending(operation))
      throw error{
          errc::invalid_argument,
          concat("hook of ", mode_, operation % 2 == 0 ? "dispatch " : "combine ", operation / 2,
                 " was called, expected it once: its results are received already")};
    return at(operation / 2);
  }
  [[nodiscard]] bool anything_pending() const noexcept {
    return std::any_of(batches_.begin(), batches_.end(), [](const Batch& one) {
      return one.at == stage::sent || one.at == stage::returning;
    });
  }

 private:
  std::string_view mode_;
  moe::per_batch<Batch> batches_;
};

}  // namespace peerbus::deep_ep::detail

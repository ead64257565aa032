// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>
#include <type_traits>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/element_work.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/operation.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::collective {

/// The second half of a collective operation whose first half was done by `start_all_gather`,
/// `start_all_reduce` or a similar function. A rank may compute between the halves. To other ranks
/// it makes no difference whether a rank calls an operation whole or in halves.
///
/// The first half publishes the first slice of the input, or the place of an input `in_window` or
/// in private memory. It waits for no rank. Therefore a rank that computes does not delay its peers
/// in an operation of one slice by `one_shot`, or in an operation that has no other algorithm,
/// except the variable forms. The second half of all ranks is needed for further slices, for
/// further rounds of other algorithms, and for the round that ends an operation on operands that
/// peers read in a window or in private memory (`team_options::private_bytes`: unless set, a
/// contribution of 8 KiB or more to another rank). An `all_reduce` of more than 512 bytes is
/// certain to use `one_shot` only up to `team_options::one_shot_bytes`. A larger
/// `team_options::scratch_bytes` makes slices larger. The first half of a variable form tells the
/// peers the sizes of their parts, and all data moves in the second half.
///
/// From the first half until `finish` returns, operands belong to the operation: the input must not
/// change, the output must not be accessed, and both must live. Peers may write an operand
/// `in_window` in place at any time. Ranges are not copied, and neither is the window of an
/// `in_window`. A reduction is copied.
///
/// The next operation of the same team must come after `finish`. An earlier operation throws
/// `error` invalid_argument on this rank only, and has no effect on the other ranks. Other teams
/// are independent.
///
/// Errors of the call, bad arguments included, are thrown by `finish`, as by the whole operation.
/// The first half throws: `error` poisoned; view_changed; invalid_argument if the team has an
/// operation that is not finished; peer_dead or unreachable, which poison the communicator.
///
/// A handle that is destroyed or replaced before `finish` discards the operation. It neither waits
/// nor accesses operands, which need not exist any longer. It poisons the communicator, because the
/// ranks are then out of step: later operations throw poisoned with this reason. Peers that need
/// more of this rank wait until their deadlines. If the communicator has continued without ranks
/// since the first half, the operation is already discarded, and nothing is poisoned.
///
/// Cost: no allocation; about 500 bytes in the handle.
/// Threads: the halves may run on different threads, one after the other. The first half takes one
/// lane; several may carry out the second half together. The team must outlive the handle.
class [[nodiscard]] pending {
 public:
  /// Makes an empty handle.
  pending() noexcept = default;
  /// Does the first half of an operation. For the functions `start_...`.
  pending(detail::operation begun, const request& given, const detail::kept_work& work = {});
  pending(const pending&) = delete;
  pending& operator=(const pending&) = delete;
  /// Takes the operation of `other`, which becomes empty.
  pending(pending&& other) noexcept;
  /// Discards the operation of this handle, if any, and takes that of `other`, which becomes empty.
  pending& operator=(pending&& other) noexcept;
  /// Discards the operation of this handle, if any.
  ~pending();

  /// Returns whether the handle has an operation.
  [[nodiscard]] bool has_operation() const noexcept { return begun_.has_value(); }

  /// Does the rest of the operation. Returns when the output is complete; the caller may then reuse
  /// the operands. The handle is empty afterwards, also if this throws. `until` replaces the
  /// deadline of the first half. Without either, the default timeout of the communicator begins at
  /// the first wait.
  /// Throws: `error` invalid_argument on this rank only if the handle is empty; view_changed if the
  /// communicator has continued without ranks since the first half; otherwise as the whole
  /// operation.
  void finish(std::optional<deadline> until = std::nullopt) {
    finish(call_options{.until = until});
  }
  /// Does the rest of the operation by the lanes of `options.as`, which must all call this for the
  /// same handle. The lanes share the copies and reductions of all further rounds, as in the whole
  /// operation. All lanes return or throw the same error. Otherwise as the other `finish`.
  /// Throws also: `error` timed_out or invalid_argument if the lanes do not fit together. The
  /// communicator is then poisoned, and the handle may keep the operation, which cannot be
  /// finished.
  void finish(const call_options& options);

 private:
  void abandon() noexcept;

  std::optional<detail::operation> begun_;
  request given_;
  detail::kept_work work_;
};

namespace detail {

/// A range that the first half of an operation accepts: its elements outlive the expression, so a
/// temporary vector is rejected.
template <class R>
concept lasting_range =
    std::is_lvalue_reference_v<R> || std::ranges::enable_borrowed_range<std::remove_cvref_t<R>> ||
    is_window_range<std::remove_cvref_t<R>>;

/// A reduction that the first half of an operation can copy.
template <class Op, class T>
concept kept_reduction =
    reduction<Op, T> && std::is_trivially_copyable_v<Op> && sizeof(Op) <= kept_work::most_bytes;

}  // namespace detail

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/pending.ipp>  // IWYU pragma: keep
#endif

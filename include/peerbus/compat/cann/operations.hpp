// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/detail/agreeing_channels.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/compat/deep_ep/detail/refused_combine.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::cann::detail {

/// The guard that keeps the operations of all ranks in step. It knows the latest dispatches. It
/// makes all ranks refuse an operation if a rank gives a result that the operation cannot use, or
/// if ranks give different results.
template <class Exchange>
class operations final : private peerbus::deep_ep::detail::agreeing_channels {
 public:
  using rows_type = typename Exchange::received_type;
  using kind = peerbus::deep_ep::detail::started_operation::kind;

  /// Allocates the memory through which ranks agree. Collective. `comm` must outlive this object.
  /// Throws: as `communicator::make_window`.
  template <transport Transport>
  operations(communicator<Transport>& comm, std::size_t in_flight, deadline until)
      : agreement_{comm, {"dispatch", "combine", "dispatched", "the operators"}, {}, *this, until},
        latest_{std::vector<operation>(in_flight)} {}
  operations(const operations&) = delete;
  operations& operator=(const operations&) = delete;
  ~operations() override = default;

  /// Sets the exchange that carries out the operations. Its waits call the agreement from now on.
  void serve(Exchange& moe) {
    moe_ = &moe;
    moe.watch_waits(&agreement_);
  }

  /// Counts the next collective call.
  void begin() noexcept { agreement_.begin(); }
  /// Calls `carry_out()`, which makes the exchange's next dispatch with `tokens` tokens of this
  /// rank, and returns the received rows.
  /// Throws: as `carry_out()`, or the reason if the ranks have refused the call.
  template <class Dispatch>
  rows_type dispatch(std::size_t tokens, const std::optional<deadline>& until,
                     Dispatch&& carry_out) {
    const std::uint64_t number = moe_->next_dispatch();
    const std::uint64_t call = agreement_.started({.number = number, .what = kind::dispatch});
    rows_type rows = with_reason(call, until, std::forward<Dispatch>(carry_out));
    operation& made = latest_.of(number);
    made = {number, call, tokens, false, {}};
    made.rows.emplace(rows);
    return rows;
  }
  /// Returns whether `rows` belong to one of the latest dispatches.
  [[nodiscard]] bool knows(const rows_type& rows) const noexcept {
    return rows.ticket().exchange == moe_ &&
           latest_.of(rows.ticket().number).number == rows.ticket().number;
  }
  /// Returns whether `rows` have been combined and not reopened. They must be known.
  [[nodiscard]] bool is_combined(const rows_type& rows) const noexcept {
    return latest_.of(rows.ticket().number).is_combined;
  }
  /// Calls `carry_out()`, which combines `rows`. They must be known and not combined.
  /// Throws: as `carry_out()`, or the reason if the ranks have refused the call.
  template <class Combine>
  void combine(const rows_type& rows, const std::optional<deadline>& until, Combine&& carry_out) {
    operation& dispatched = latest_.of(rows.ticket().number);
    with_reason(started(dispatched, kind::combine), until, std::forward<Combine>(carry_out));
    dispatched.is_combined = true;
  }
  /// Reopens `rows`, which must be known and combined. They are open afterwards even if the ranks
  /// have refused the call.
  /// Throws: as `Exchange::reopen`, or the reason if the ranks have refused the call.
  void reopen(const rows_type& rows, const std::optional<deadline>& until) {
    operation& dispatched = latest_.of(rows.ticket().number);
    const std::uint64_t call = started(dispatched, kind::reopen);
    moe_->reopen(rows, {.until = until});
    dispatched.is_combined = false;
    if (const auto refused = agreement_.take_refusal(call, until)) throw error{*refused};
  }
  /// Calls `misuse()`, which throws an error. Makes all ranks refuse the call, and throws that
  /// error.
  template <class Misuse>
  void refuse_misuse(const std::optional<deadline>& until, Misuse&& misuse) {
    agreement_.or_refuse(until, std::forward<Misuse>(misuse));
  }

  /// Refuses the exchange's next dispatch, which the other ranks make.
  void refuse_dispatch(const std::optional<deadline>& until) {
    const moe::routing none{std::span<const std::int32_t>{}, std::span<const float>{}};
    try {
      static_cast<void>(moe_->dispatch_send({}, none, {.until = until, .refuse = true}));
    } catch (const error& refusal) {
      if (refusal.code() != errc::invalid_argument) throw;
    }
  }

 private:
  struct operation {
    std::uint64_t number = 0;  ///< number of the dispatch
    std::uint64_t call = 0;    ///< number of the call that made it
    std::size_t tokens = 0;    ///< number of tokens of this rank
    bool is_combined = false;
    std::optional<rows_type> rows;
  };

  [[nodiscard]] std::uint64_t started(const operation& dispatched, kind what) noexcept {
    return agreement_.started({.number = dispatched.number, .what = what, .plan = dispatched.call});
  }
  /// Calls `carry_out()` and returns its result.
  /// Throws: as `carry_out()`, or the reason if the ranks have refused the call.
  template <class CarryOut>
  decltype(auto) with_reason(std::uint64_t call, const std::optional<deadline>& until,
                             CarryOut&& carry_out) {
    try {
      return std::forward<CarryOut>(carry_out)();
    } catch (const error& problem) {
      if (problem.code() == errc::refused)
        if (const auto refused = agreement_.take_refusal(call, until)) throw error{*refused};
      throw;
    }
  }

  // --- what the agreement asks of the exchange ---

  [[nodiscard]] peerbus::deep_ep::detail::call_key key_of(
      const peerbus::deep_ep::detail::started_operation& /*begun*/) const override {
    return {};
  }
  void refuse(const peerbus::deep_ep::detail::started_operation& begun, deadline until) override {
    if (begun.what == kind::dispatch) return refuse_dispatch(until);
    operation& dispatched = latest_.of(begun.number);
    if (dispatched.is_combined) moe_->reopen(*dispatched.rows, {.until = until});
    dispatched.is_combined = false;
    if (begun.what == kind::combine)
      moe_->combine_send(*dispatched.rows, {.until = until, .refuse = true});
  }
  void finish_refusal(const peerbus::deep_ep::detail::started_operation& begun,
                      deadline until) override {
    if (begun.what != kind::combine) return;
    const operation& dispatched = latest_.of(begun.number);
    peerbus::deep_ep::detail::finish_refused_combine(*moe_, *dispatched.rows, dispatched.tokens,
                                                     until);
  }

  peerbus::deep_ep::detail::call_agreement agreement_;
  moe::per_batch<operation> latest_;
  Exchange* moe_ = nullptr;
};

}  // namespace peerbus::cann::detail

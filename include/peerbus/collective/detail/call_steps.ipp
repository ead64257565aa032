// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/algorithm_choice.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

using order_need = algorithm_choice::order_need;

/// Returns how much a reduction of operands says about the order of ranks.
inline order_need order_need_of(const request& given, const short_text<8>& reduction) noexcept {
  // A residual is added behind the operands of all ranks.
  if (given.residual) return order_need::sources;
  // Integers wrap around, so that these reductions of them do not depend on the order.
  const bool is_integer =
      given.element.name.characters[0] == 'i' || given.element.name.characters[0] == 'u';
  const bool is_known =
      reduction == short_text<8>{sum::name} || reduction == short_text<8>{product::name} ||
      reduction == short_text<8>{minimum::name} || reduction == short_text<8>{maximum::name};
  return is_integer && is_known ? order_need::none : order_need::result;
}

PEERBUS_INLINE way_trials::running call_rounds::trial_of(team& on, const request& given) noexcept {
  const bool is_all_reduce =
      given.what == operation_kind::all_reduce || given.what == operation_kind::all_reduce_add;
  const std::size_t bytes = given.input.size();
  if (!is_all_reduce || given.input_in.part_of != nullptr || !on.choice_.is_close(bytes) ||
      whole_slice(algorithm::two_shots, choice_of::all_reduce, on.shape_, given.element.bytes) == 0)
    return {};
  const bool is_divided =
      on.choice_.of_all_reduce(bytes, order_need::sources) == algorithm::two_shots;
  return on.pages_->trials().begin(operation_kind::all_reduce, bytes, is_divided ? 1 : 0);
}

PEERBUS_INLINE algorithm call_rounds::algorithm_of_all_reduce(
    const team& on, const request& given, const short_text<8>& reduction) noexcept {
  // Over loads, all algorithms keep the order.
  return on.choice_.of_all_reduce(given.input.size(), on.shape_.access == page_access::loads
                                                          ? order_need::sources
                                                          : order_need_of(given, reduction));
}

PEERBUS_INLINE algorithm call_rounds::algorithm_of_reduce_scatter(
    const team& on, const request& given, const short_text<8>& reduction) noexcept {
  if (on.shape_.access == page_access::loads) return algorithm::one_shot;  // The only possible one.
  return on.choice_.of_reduce_scatter(given.output.size(), order_need_of(given, reduction));
}

PEERBUS_INLINE void call_rounds::begin_steps() {
  is_in_steps_ = true;
  if (check_.is_first(++on_.round_)) check_.write(on_.round_);
}

PEERBUS_INLINE void call_rounds::send_step(std::uint64_t step, rank_id peer, std::size_t slot,
                                           byte_range range) {
  const bool is_first = check_.is_first(on_.round_);
  if (const errc code = pages_.send_step(on_.round_, step, peer, slot, is_first, range);
      code != errc::ok)
    check_.fail(code, on_.round_);
}

PEERBUS_INLINE void call_rounds::await_step(std::uint64_t step, rank_id peer,
                                            peerbus::detail::function_ref<bool(rank_id)> is_told) {
  if (!until_) until_ = pages_.communicator().default_deadline();
  check_.begin_wait(what_);
  if (const errc code = pages_.await_step(on_.round_, step, peer, *until_); code != errc::ok)
    check_.fail(code, on_.round_, peer, step);
  check_.end_wait(on_.round_, peer);
  if (!check_.is_first(on_.round_)) return;
  // A peer that has found a difference, or makes a call without steps, publishes the round to all.
  if (pages_.has_published(on_.round_, peer) || !check_.is_same(on_.round_, peer))
    leave_steps(is_told);
}

PEERBUS_ERROR_PATH void call_rounds::leave_steps(
    peerbus::detail::function_ref<bool(rank_id)> is_told) {
  // The others have the header already, and may be reading it.
  for (const rank_id peer : peers())
    if (!is_told(peer))
      if (const errc code = pages_.send_header(on_.round_, peer); code != errc::ok)
        check_.fail(code, on_.round_);
  signal();
  await_peers();
  check_.find_difference(on_.round_);
  // A rank leaves the steps only because calls differ, so that this is not reached.
  pages_.group().fail(
      errc::mismatch,
      check_.title() + " was left by a rank, although all ranks make the same call");
}

}  // namespace peerbus::collective::detail

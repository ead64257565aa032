// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/algorithm_choice.hpp>
#include <peerbus/collective/detail/team_access.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void team_access::require_ready(const team& team, std::string_view operation) {
  team.pages_->communicator().require_healthy(operation, team.view_);
  if (team.pending_) throw_pending(team, operation);
}

PEERBUS_ERROR_PATH void team_access::throw_pending(const team& team, std::string_view operation) {
  throw error{errc::invalid_argument,
              peerbus::detail::concat(operation, " was called while ", team.pending_->view(),
                                      " (collective call ", team.calls_, ") is not finished")};
}

using order_need = algorithm_choice::order_need;

/// Returns how the result of a reduction depends on the order of ranks.
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

PEERBUS_INLINE way_trials::running team_access::trial_of(team& team,
                                                         const request& given) noexcept {
  const bool is_all_reduce =
      given.what == operation_kind::all_reduce || given.what == operation_kind::all_reduce_add;
  const std::size_t bytes = given.input.size();
  if (!is_all_reduce || given.input_in.part_of != nullptr || !team.choice_.is_close(bytes) ||
      whole_slice(algorithm::two_shots, choice_of::all_reduce, team.shape_, given.element.bytes) ==
          0)
    return {};
  const bool is_divided =
      team.choice_.of_all_reduce(bytes, order_need::sources) == algorithm::two_shots;
  return team.pages_->trials().begin(operation_kind::all_reduce, bytes, is_divided ? 1 : 0);
}

PEERBUS_INLINE algorithm team_access::algorithm_of_all_reduce(
    const team& team, const request& given, const short_text<8>& reduction) noexcept {
  // Over loads, all algorithms keep the order.
  return team.choice_.of_all_reduce(given.input.size(), team.shape_.access == page_access::loads
                                                            ? order_need::sources
                                                            : order_need_of(given, reduction));
}

PEERBUS_INLINE algorithm team_access::algorithm_of_reduce_scatter(
    const team& team, const request& given, const short_text<8>& reduction) noexcept {
  if (team.shape_.access == page_access::loads)
    return algorithm::one_shot;  // The only possible one.
  return team.choice_.of_reduce_scatter(given.output.size(), order_need_of(given, reduction));
}

}  // namespace peerbus::collective::detail

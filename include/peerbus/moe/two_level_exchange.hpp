// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/group_grid.hpp>
#include <peerbus/moe/detail/two_levels.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/row_traffic.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe {

/// An exchange over near and far ranks in which a token may cross the far plane once for each group
/// of near ranks, instead of once for each expert or rank. `relay` chooses.
///
/// With `relay::never` it is an `exchange`, with the same bytes, memory and errors.
///
/// With `relay::always` a dispatch has two levels. Say that a token's home rank has place p in its
/// group: p is its index among the ranks of the group, in ascending order. The token goes once to
/// the rank of place p in each group that holds one of its experts. That rank hands the row on to
/// the ranks of the experts, as it is encoded: no byte changes. Combine takes the same way back.
/// The rank that handed a row on computes the group's sum for it, and the home rank adds the sums
/// of the groups. docs/planes.md draws this. If groups differ in size, and the smallest has m
/// ranks, only the first m ranks of each group hand on, and the token goes to place p modulo m.
///
/// Differences between `always` and `exchange`:
///
/// - The rows of a block are ordered by the place of the rank that handed on, then by the group of
///   the home rank, then by home rank, then by token. `origin` says the home rank and token.
///   Numbers of source ranks (`row_block::count_from`, `rows_from`) are places of ranks that handed
///   on.
/// - out[t] = the sum over groups in ascending order of the group's sum, which is the sum over the
///   copies of the token in the group as `exchange` defines it. Each of these sums is computed in
///   f32 by fused multiply-add and rounded to bf16 once, also those of the groups.
/// - `dispatch_recv` also waits for the other ranks of the group to call it, and `combine_recv` for
///   those of equal place, modulo m. `dispatch_send` with bad input waits for the ranks of equal
///   place only; that of the batch `in_flight` later then waits for the group.
/// - Batches are received in the order in which they were sent, else `dispatch_recv` throws `error`
///   invalid_argument on that rank. It hands on the rows of its batch; no other call does.
///   `combine_send` does not advance the first level.
/// - A refused dispatch gives up the rows of the dispatch `in_flight` before it.
/// - There is no output attachment. Calls with `combine_terms` other than biases are refused on all
///   ranks, as bad input. Outputs lie at the expert.
///
/// Groups are the near ranks of `Transport`, in the order of their lowest ranks. `always` needs
/// groups that hold top_k experts or more. `automatic` is `always` where `estimate_relay` finds it
/// cheaper and `always` would not be refused when the exchange is made, else `never`. `chosen`
/// tells which, and why.
///
/// Cost of `always`, over that of `exchange`: two windows for data instead of one, which hold also
/// rows and outputs for groups x max_tokens tokens (if groups differ in size, for the tokens of all
/// ranks that equal places modulo m have); to (groups - 1) + (ranks of a group - 1) peers the
/// signals and counts that `exchange` sends to all; the bytes that docs/planes.md lists; notes
/// travel once more. Threads: as `exchange`.
template <partly_direct_transport Transport, token_codec Codec, row_layout Layout = compact>
class two_level_exchange {
  using one_level = exchange<Transport, Codec, Layout>;
  using two_levels = detail::two_levels<Transport, Codec, Layout>;

 public:
  /// The result of a dispatch, as that of `exchange`.
  using received_type = typename one_level::received_type;
  /// The element type of tokens.
  using token = token_of<Codec>;

  /// Makes the exchange. Collective, with equal arguments on all ranks. `comm` outlives the
  /// exchange. `until` is the deadline; without it, the default timeout of `comm` applies.
  /// Cost: some agreements; a window that is given back; one that stays, with two levels four; and
  /// all memory that the exchange will use, mostly untouched.
  /// Throws, on all ranks: as `exchange`; `error` unsupported if `choice` is `always` and a group
  /// has fewer than top_k experts, `config` has output attachments, or a level would exceed the
  /// limits of an exchange.
  two_level_exchange(communicator<Transport>& comm, const exchange_config& config, relay choice,
                     Codec codec = {}, Layout layout = {},
                     std::optional<deadline> until = std::nullopt);

  /// Returns the choice between one level and two, with the reason. The same on all ranks.
  [[nodiscard]] const relay_choice& chosen() const noexcept { return chosen_; }
  /// Returns the experts that each rank holds.
  [[nodiscard]] const expert_map& placement() const noexcept { return experts_; }
  /// Returns the bytes that this rank needs in windows, without signals: the total of `memory_map`,
  /// with two levels of both. Windows of two levels have the size that the largest group needs.
  [[nodiscard]] std::size_t window_bytes() const noexcept {
    return flat_ ? flat_->map().total : levels_->far_map().total + levels_->near_map().total;
  }
  /// Returns the number of the next dispatch, as `exchange`.
  [[nodiscard]] std::uint64_t next_dispatch() const noexcept {
    return flat_ ? flat_->next_dispatch() : levels_->next_dispatch();
  }

  ///@{
  /// Contract as the function of the same name in `exchange`, except for the differences above.
  [[nodiscard]] received_type dispatch(std::span<const token> tokens, const routing& route,
                                       const dispatch_options& options = {});
  void combine(const received_type& rows, std::span<bf16> out, const combine_options& options = {});
  [[nodiscard]] moe::ticket dispatch_send(std::span<const token> tokens, const routing& route,
                                          const dispatch_options& options = {});
  [[nodiscard]] received_type dispatch_recv(moe::ticket ticket,
                                            const receive_options& options = {});
  void combine_send(const received_type& rows, const publish_options& options = {});
  void combine_recv(const received_type& rows, std::span<bf16> out,
                    const sum_options& options = {});
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> note(moe::ticket ticket, rank_id source) {
    const auto bytes = flat_ ? flat_->note(ticket, source) : levels_->note(ticket, source);
    return {peerbus::detail::placed<T>(bytes.data()), bytes.size() / sizeof(T)};
  }
  ///@}

  ///@{
  /// Contract as the function of the same name in `exchange`. With two levels, there are no output
  /// attachments, and the call throws `error` unsupported.
  [[nodiscard]] bool attached_by(moe::ticket ticket, rank_id rank) {
    return with_attachments("attached_by").attached_by(ticket, rank);
  }
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> returned_attachment(moe::ticket ticket, std::size_t t,
                                                       std::size_t copy) {
    return with_attachments("returned_attachment").template returned_attachment<T>(ticket, t, copy);
  }
  ///@}

  /// Returns the rows that this rank sent to other ranks by the dispatch of `ticket`. With two
  /// levels, these are the rows of its tokens on the first level, and the rows that it handed on.
  /// Cost: looks at each copy. Throws: as `note`.
  [[nodiscard]] row_traffic traffic(moe::ticket ticket) {
    return flat_ ? flat_->traffic(ticket) : levels_->traffic(ticket);
  }

 private:
  struct plan;
  two_level_exchange(communicator<Transport>& comm, const exchange_config& config, Codec codec,
                     Layout layout, deadline until, plan&& made);

  /// Returns the exchange in one level. Throws: `error` unsupported if there are two.
  one_level& with_attachments(std::string_view doing) {
    if (flat_) return *flat_;
    throw error{errc::unsupported, peerbus::detail::concat(doing, ": relay is used, expected an ",
                                                           "exchange in one level, as partial ",
                                                           "sums have no output attachments")};
  }
  template <class Options>
  [[nodiscard]] deadline deadline_of(const Options& options) const noexcept {
    return options.until.value_or(comm_->default_deadline());
  }

  communicator<Transport>* comm_;
  relay_choice chosen_;
  expert_map experts_;
  std::unique_ptr<one_level> flat_;     ///< null with two levels
  std::unique_ptr<two_levels> levels_;  ///< null with one level
};

}  // namespace peerbus::moe

#include <peerbus/moe/two_level_exchange.ipp>  // IWYU pragma: keep

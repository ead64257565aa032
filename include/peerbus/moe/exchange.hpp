// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/engine/exchange_levels.hpp>
#include <peerbus/moe/engine/reporting_engine.hpp>
#include <peerbus/moe/exchange_queries.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/kept_rows.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/plan/objection.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/wait_watch.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::moe {

/// Sends tokens to their experts and brings the results home, over one window of fixed size.
///
/// A dispatch has two phases. First every rank sends each peer the numbers of its rows for each
/// block, or its refusal of bad input. From the counts of all ranks each rank computes the exact
/// place of each of its rows, writes the rows there and signals. With slots (`config().protocol` is
/// `one_phase`) it has one phase: rows leave at once, with counts or a refusal. A combine has one
/// phase: when all peers have signalled that their outputs are ready, the home rank sums them.
/// docs/proofs.md explains why no buffer is written too early.
///
/// `dispatch` and `combine` do a whole operation. `dispatch_send`, `dispatch_recv`, `combine_send`
/// and `combine_recv` do half of one, for callers that compute in the meantime. Of the halves, only
/// `dispatch_recv` and `combine_recv` wait for other ranks, except that `dispatch_send` waits if
/// its input is bad, or if its slots hold rows that were not combined. Up to `in_flight` batches
/// may be between `dispatch_send` and `combine_recv`, each with its own memory. Each of these calls
/// also advances earlier batches. Nothing advances between calls, because there is no hidden
/// thread.
///
/// All ranks make the same calls on an exchange in the same order, also with zero tokens. A whole
/// operation counts as its two halves. Batches may be received and combined in any order that is
/// the same on all ranks; otherwise ranks may wait for each other. Misusing a batch (in the wrong
/// order, twice, or with another exchange) throws `error` invalid_argument on the calling rank, and
/// has no effect on the others.
///
/// Cost: memory as in `memory_map`. No operation allocates, unless it fails. Queries do not
/// communicate, and take constant time unless stated otherwise.
/// Threads: one operation at a time per exchange, carried out by one thread or by several `lane`s.
/// Different exchanges are independent.
template <transport Transport, token_codec Codec, row_layout Layout = compact>
class exchange : public exchange_queries {
  using levels = detail::exchange_levels<Transport, Codec, Layout>;

 public:
  /// The result of a dispatch: `received<Codec>`; `rank_major`: `received_tokens<Codec>`;
  /// `expert_slots`, `automatic`: `received_slots`; `slots`, `automatic_by_rank`:
  /// `received_token_slots`.
  using received_type = typename levels::views::type;
  /// The element type of tokens.
  using token = token_of<Codec>;

  /// Makes the exchange. Collective, with equal arguments on all ranks. `comm` outlives the
  /// exchange. `until` is the deadline; without it, the default timeout of `comm` applies.
  /// Cost: one agreement, one window, and all memory that the exchange will use, mostly untouched.
  /// Throws, on all ranks: `error` invalid_argument for an impossible configuration, mismatch if
  /// ranks differ in configuration, codec or layout, out_of_memory, timed_out, peer_dead, poisoned.
  exchange(communicator<Transport>& comm, const exchange_config& config, Codec codec = {},
           Layout layout = {}, std::optional<deadline> until = std::nullopt);
  exchange(const exchange&) = delete;
  exchange& operator=(const exchange&) = delete;
  ~exchange();
  /// Returns the memory that an exchange with `config` would have. `objection_to` must accept
  /// `config`. An automatic layout chooses its protocol as the constructor does, also from
  /// `config.costs`. Give `reach`, the reach of the transport, if it is known only at run time
  /// (`any_transport`).
  [[nodiscard]] static constexpr memory_map map_for(
      const exchange_config& config, std::size_t ranks, Layout layout = {},
      peer_reach reach = levels::reach_by_type) noexcept;
  /// Returns the choices that an exchange over `comm` with `config` and one level would begin with.
  /// `relay` in the result is that of one level. Not collective.
  /// Cost: allocates, and reads small files of /sys.
  [[nodiscard]] static exchange_choices choices_for(communicator<Transport>& comm,
                                                    const exchange_config& config,
                                                    const Layout& layout = {}) {
    return levels::choices_for(comm, config, layout);
  }
  /// Returns the configuration, with `stream_from` and `protocol` set, without costs and spans,
  /// except for `experts_of_rank`, which is set unless each rank has its equal share of `experts`.
  [[nodiscard]] const exchange_config& config() const noexcept { return levels_.config(); }
  /// Returns the choice between one level and two, with the reason. Equal on all ranks.
  [[nodiscard]] const relay_choice& relay() const noexcept { return levels_.choices().relay; }
  /// Returns the places and sizes of all data in the window. With relay, the window is that of the
  /// near level.
  [[nodiscard]] const memory_map& map() const noexcept { return levels_.parts().map; }
  /// Returns the bytes that this rank needs in windows, without signals, on both levels. Windows
  /// have the size that the largest group needs.
  [[nodiscard]] std::size_t window_bytes() const noexcept {
    return levels_.parts().map.total + (levels_.far() ? levels_.far()->map.total : 0);
  }
  /// Returns the experts that each rank holds.
  [[nodiscard]] const expert_map& placement() const noexcept { return levels_.placement(); }
  /// Returns the window that contains the data of `map()`, for tools.
  [[nodiscard]] window<Transport>& memory() noexcept { return levels_.window().memory(); }
  /// Makes calls that wait for other ranks call `watch->look` from time to time, unless `watch` is
  /// null. `watch` must outlive the exchange. Each rank chooses for itself.
  /// Cost: for a call that waits, a clock read, and a short wake-up for each poll.
  void watch_waits(wait_watch* watch) noexcept { engine().watch(watch); }

  /// Sends each token to its experts and returns the rows for the experts of this rank. Collective.
  /// `tokens` is [count, hidden] and `route` [count, top_k]. `count` is no more than max_tokens and
  /// may differ between ranks. Returns when all rows for this rank have arrived. The caller may
  /// then reuse `tokens`, `route` and attachments.
  /// Cost: to each peer two signals and one count message of 64 bytes, 1, 2 or 4 bytes for each
  /// block of the group, and the note; with slots one signal, and to peers that get rows the counts
  /// for their blocks. More than 4 ranks over a direct transport raise a signal once for all, and
  /// write counts for all blocks once for all. Each copy of a token is sent once: row, scales, 8
  /// bytes of origin, slots (rank-major), attachments. Each token is encoded once.
  /// Throws, on all ranks: `error` invalid_argument on a rank whose input is bad, and `refused` on
  /// the others. No row is then written (with slots: read), and the exchange remains usable. Also
  /// timed_out, peer_dead and unreachable, which poison the communicator, and poisoned.
  [[nodiscard]] received_type dispatch(std::span<const token> tokens, const routing& route,
                                       const dispatch_options& options = {});

  /// Sums the outputs for each token of this rank into `out`. Collective. `rows` is the result of
  /// `dispatch` with all outputs filled. `out` is [count, hidden], with the count of that dispatch.
  /// Returns when `out` is complete. A batch is combined once, or again after `reopen`.
  ///
  /// out[t] = the sum over the copies of token t, in order, of factor times output, in f32 by fused
  /// multiply-add, rounded to bf16 once. In expert-major layouts a copy is a slot k with factor
  /// weight[t, k], and slots of -1 add nothing. In the rank-major layout a copy is a rank that
  /// holds experts of the token, in ascending order, with factor 1. See also `combine_terms`.
  /// Cost: one signal, to each peer or for all. Each output, 2 x hidden bytes, is read once, and
  /// first put home if the home rank cannot load it. `attached` adds the attachments and 48 bytes a
  /// peer.
  /// Throws: as `dispatch`. After a refusal, all ranks may combine the batch again.
  void combine(const received_type& rows, std::span<bf16> out, const combine_options& options = {});

  /// Begins a dispatch, the first half of `dispatch`, and returns its ticket. Invalidates the rows
  /// received `in_flight` dispatches earlier. The caller may reuse `route` on return. `tokens` and
  /// attachments must not change until `dispatch_recv` has returned.
  /// Cost: the first signal and the counts of `dispatch`. If all counts are there, also the cost of
  /// `dispatch_recv`.
  /// Throws: as `dispatch`, except that bad input throws on its rank only, after all ranks have
  /// called; the others throw in `dispatch_recv`. invalid_argument if the dispatch `in_flight`
  /// earlier still needs its `dispatch_recv` or `combine_recv`.
  [[nodiscard]] moe::ticket dispatch_send(std::span<const token> tokens, const routing& route,
                                          const dispatch_options& options = {});

  /// Completes the dispatch named by `ticket`. Contract as `dispatch`.
  /// Cost: the last signal of `dispatch` and this rank's rows, unless an earlier call sent them.
  [[nodiscard]] received_type dispatch_recv(moe::ticket ticket,
                                            const receive_options& options = {});

  /// Returns `received_type::columns` for the batch `ticket`, also before its rows have arrived.
  /// Throws: `error` invalid_argument unless `ticket` is one of the latest `in_flight` dispatches.
  [[nodiscard]] batch_columns<Codec> columns(moe::ticket ticket) {
    const set_view set = engine().columns(ticket);
    return {set, levels_.parts().batches.at(ticket.number).experts(set)};
  }

  /// Keeps the rows of a batch from being overwritten as long as the result lives, for late
  /// readers. All ranks refuse the calls that would overwrite the rows (`kept_rows`).
  /// Cost: an atomic addition.
  /// Throws: `error` invalid_argument unless `rows` are of the latest `in_flight` dispatches and,
  /// in layouts with slots, not combined; unsupported in these layouts with relay.
  [[nodiscard]] kept_rows keep(const received_type& rows) {
    return {engine().keepers(rows.ticket()), rows.ticket().number};
  }

  /// Writes the number of rows that the dispatch of `ticket` sent to each physical expert into
  /// `rows`: [physical experts], such as for `expert_load`. In layouts by expert without slots,
  /// these are the rows of all ranks, because the counts came with the dispatch. In other layouts
  /// and with relay, they are the rows of this rank's experts, and 0 elsewhere, so that the sum
  /// over ranks gives all. In layouts by rank a row counts for each of its experts.
  /// Returns: true if `rows` has the rows of all ranks.
  /// Throws: as `note`; invalid_argument unless `rows` has an entry for each physical expert.
  bool count_rows(moe::ticket ticket, std::span<std::uint32_t> rows);

  /// Makes the filled outputs available to their home ranks, the first half of `combine`. Outputs
  /// must not change afterwards. Each lane calls after all outputs that it fills are complete.
  /// Cost: that of `combine`, without reading the outputs.
  /// Throws: as `combine`, except that bad `rows` or `options` throw invalid_argument on this rank
  /// only. With `refuse` all ranks throw in `combine_recv`.
  void combine_send(const received_type& rows, const publish_options& options = {});

  /// Sums the outputs into `out`, the second half of `combine`.
  /// Cost: reads the 2 x hidden bytes of each copy's output once.
  /// Throws: as `combine`, except that bad `out` or `terms` throw invalid_argument on this rank
  /// only, before anything is written. The call can then be repeated.
  void combine_recv(const received_type& rows, std::span<bf16> out,
                    const sum_options& options = {});

  /// Allows the outputs of a combined batch to be written and combined once more. May be called any
  /// number of times until the memory of the batch is used again. Collective. Returns when all
  /// ranks have called it, because no rank reads the earlier outputs after that. The rows are valid
  /// too, in layouts with slots again.
  /// Cost: one signal to each peer.
  /// Throws: `error` invalid_argument on this rank only, unless `rows` are combined and of the
  /// latest `in_flight` dispatches; timed_out, peer_dead, unreachable, poisoned.
  void reopen(const received_type& rows, const receive_options& options = {}) {
    engine().reopen(rows.ticket(), options, deadline_of(options));
  }

  /// Continues in the present view of the communicator, after its `continue_without_the_dead`.
  /// Collective among the ranks of the view. Uses the memory that the exchange has; no other call
  /// that needs it may be under way. Experts of ranks that are gone get no rows from now on.
  /// `options` decides about their slots. `combine` sums the other slots of a token, as if the lost
  /// slots were -1.
  ///
  /// A batch that all ranks of the view have received, and not all have combined, can now be
  /// combined by all ranks, also by ranks that had. The exception is a batch whose memory a rank
  /// has begun to use for its next dispatch. `awaits_combine` is true for the batches that can be
  /// combined, on all ranks. All other batches are void: their tickets and rows must not be used
  /// any more, and their tokens must be dispatched again. Attachments that came home earlier are
  /// lost.
  /// Returns: the numbers of batches that all ranks have received and combined.
  /// Cost: a signal, and a wait for each rank of the view. Allocates.
  /// Throws: `error` invalid_argument if the exchange is in that view already; unsupported with
  /// relay; peer_dead, timed_out, poisoned.
  completed_batches resume(const resume_options& options = {}) {
    if (levels_.relay())
      throw error{errc::unsupported, "resume: expected an exchange that does not relay"};
    return levels_.parts().core.resume(options.lost, deadline_of(options));
  }

  /// Moves the experts to other places, between two batches. `physical_to_logical` is as in
  /// `exchange_config` and has the same length as before. Each rank keeps its number of physical
  /// experts. Collective, with the same table on all ranks. `replicas` is this rank's choice from
  /// now on. The caller moves the weights. Rows and tickets of earlier dispatches must not be used
  /// any more.
  /// Cost: one agreement and a `gather_in_view`. Allocates, but no memory of windows.
  /// Throws, on all ranks, which keep their experts: `error` invalid_argument for an impossible
  /// table or choice, or if a batch is between its dispatch and its combine; mismatch, with the
  /// entry and the ranks, if tables differ; out_of_memory, timed_out, peer_dead, poisoned.
  void install_experts(std::span<const std::uint32_t> physical_to_logical,
                       const replica_choice& replicas,
                       std::optional<deadline> until = std::nullopt);

 protected:
  /// Makes the exchange as the public constructor does. If `finds_groups`, `relay()` also has the
  /// groups with `never`.
  exchange(communicator<Transport>& comm, const exchange_config& config, Codec codec, Layout layout,
           deadline until, bool finds_groups);

 private:
  template <class Options>
  [[nodiscard]] deadline deadline_of(const Options& options) const noexcept {
    return options.until.value_or(comm_.default_deadline());
  }
  /// Throws the refusal of an operation, if there is one.
  void require_accepted(std::string_view operation, std::uint64_t number,
                        const std::optional<detail::refusal_of>& found) const {
    if (!found) return;
    if (is_of_peer(found->why.reason) && found->rank == comm_.rank())
      comm_.fail(errc::mismatch,
                 peerbus::detail::concat({operation, " ", number, ": ", describe(found->why)}));
    detail::throw_refusal(operation, number, comm_.rank(), *found);
  }

  communicator<Transport>& comm_;
  levels levels_;
  std::optional<detail::reporting_engine> reporting_;  ///< empty without listeners
  std::optional<received_type> arrived_;               ///< written by lane 0, then read by all
};

}  // namespace peerbus::moe

#include <peerbus/moe/exchange.ipp>  // IWYU pragma: keep

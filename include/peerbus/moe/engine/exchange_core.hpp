// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/lane_barrier.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/control/control_messages.hpp>
#include <peerbus/moe/control/control_protocol.hpp>
#include <peerbus/moe/control/store_trials.hpp>
#include <peerbus/moe/engine/batch_ring.hpp>
#include <peerbus/moe/engine/exchange_engine.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/any_row_path.hpp>
#include <peerbus/moe/path/batch_input.hpp>
#include <peerbus/moe/path/sum_copies.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/replica_choice.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/row_traffic.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/moe/stores.hpp>
#include <peerbus/moe/wait_watch.hpp>

namespace peerbus::moe::detail {

/// The exchange in one level. Each level of `relay_engine` is an `exchange_core` too, of which
/// `relay_engine` calls the parts of operations.
class exchange_core final : public exchange_engine {
 public:
  using step = control_messages::step;
  using phase = control_messages::phase;

  /// The parts of an exchange, which outlive its core.
  struct parts {
    const exchange_config& config;
    const memory_map& map;
    any_window& window;
    batch_ring& batches;
    any_row_path& path;
  };
  /// Makes the core of the exchange at `exchange`, the address in its tickets. `stores_by` decides
  /// between kinds of stores. The configuration must have a `stream_from`.
  exchange_core(const void* exchange, const parts& own_parts, store_reason stores_by)
      : exchange_{exchange},
        parts_{own_parts},
        messages_{own_parts.window, own_parts.map},
        protocol_{&control_protocol::of(own_parts.batches.at(0).leaving.geometry())},
        stores_{*own_parts.config.stream_from, stores_by, own_parts.config.in_flight} {
    const group_view& view = group().view();
    view_ = view.number();
    if (view_ != 0) parts_.batches.router().lose(view.gone());
  }

  [[nodiscard]] std::uint64_t next_dispatch() const noexcept override {
    return parts_.batches.latest() + 1;
  }
  void watch(wait_watch* watch) noexcept override { messages_.watch(watch); }
  [[nodiscard]] PEERBUS_INLINE std::optional<refusal_of> dispatch_send(
      const batch_input& input, const routing& route, const dispatch_options& options,
      deadline until) override;
  [[nodiscard]] PEERBUS_INLINE std::optional<refusal_of> dispatch_recv(
      ticket named, const receive_options& options, deadline until,
      peerbus::detail::function_ref<void(const batch&)> arrived) override;
  [[nodiscard]] PEERBUS_INLINE std::optional<refusal_of> combine(ticket rows,
                                                                 const combine_sum& wanted,
                                                                 const combine_options& options,
                                                                 deadline until) override;
  PEERBUS_INLINE void combine_send(ticket rows, const publish_options& options,
                                   deadline until) override;
  [[nodiscard]] PEERBUS_INLINE std::optional<refusal_of> combine_recv(ticket rows,
                                                                      const combine_sum& wanted,
                                                                      const sum_options& options,
                                                                      deadline until) override;
  PEERBUS_INLINE void reopen(ticket rows, const receive_options& options, deadline until) override;
  [[nodiscard]] completed_batches resume(lost_experts lost, deadline until);
  [[nodiscard]] bool awaits_combine(ticket rows) noexcept override {
    const batch& found = parts_.batches.at(rows.number);
    return rows.number != 0 && found.number == rows.number && found.reached == stage::received;
  }
  void install_experts(std::span<const std::uint32_t> physical_to_logical,
                       const replica_choice& replicas, deadline until);

  [[nodiscard]] row_keepers& keepers(ticket rows) override {
    const auto least = stage::received;
    if (batch_of("keep", rows, least).leaving.geometry().has_slots())
      static_cast<void>(parts_.batches.behind("keep", exchange_, rows, least));
    return parts_.batches.keepers(rows.number);
  }
  [[nodiscard]] set_view columns(ticket named) override {
    return local_set(batch_of("columns", named));
  }
  [[nodiscard]] PEERBUS_INLINE std::span<const std::byte> note(ticket named,
                                                               rank_id source) override;
  [[nodiscard]] PEERBUS_INLINE row_traffic traffic(ticket named) override;
  [[nodiscard]] std::span<const std::uint32_t> rows_of_blocks(ticket named) override {
    return batch_of("rows_of_blocks", named, stage::received).leaving.totals();
  }
  [[nodiscard]] PEERBUS_INLINE bool attached_by(ticket named, rank_id rank) override;
  [[nodiscard]] std::byte* returned_attachment(ticket named, std::size_t t,
                                               std::size_t copy) override {
    return local_set(batch_of("returned_attachment", named, stage::returned))
        .returned_attachment(t, copy);
  }

  [[nodiscard]] store_trials& stores() noexcept { return stores_; }
  /// Returns the bytes of the rows of a batch of `tokens` tokens, without the data beside them.
  [[nodiscard]] std::size_t row_bytes_of(std::size_t tokens) const noexcept {
    return tokens * parts_.map.copies * parts_.map.format.row_bytes;
  }
  /// Returns the batch of `named`, which must have reached at least `least`.
  [[nodiscard]] const batch& batch_of(std::string_view doing, ticket named,
                                      stage least = stage::counted) {
    return parts_.batches.of(doing, exchange_, named, least);
  }
  /// Returns the set of `this_batch` at this rank.
  [[nodiscard]] set_view local_set(const batch& this_batch) const noexcept {
    return messages_.local_set(parts_.batches.set_of(this_batch));
  }

  // The parts of operations, for an exchange that is a level of another.
  /// Posts the counts of the next batch. If this rank refuses it, because of `known` or by itself,
  /// posts and returns the refusal.
  [[nodiscard]] refusal begin_dispatch(const batch_input& input, const routing& route,
                                       const dispatch_options& options, const refusal& known,
                                       deadline until);
  /// Sends the rows of all batches whose rows may leave, in order. Unless `wanted` is null, waits
  /// until the rows of `wanted` and of earlier batches may. All lanes call it together.
  void advance(const batch* wanted, lane caller, deadline until,
               std::span<std::int64_t> waited = {});
  /// Publishes the outputs and signals the home ranks, or sends the refusal that `objection`
  /// returns. `brings` is the result of `brought_by` at other ranks if the batch is attached.
  void begin_combine(const char* doing, ticket rows, const publish_options& options, deadline until,
                     peerbus::detail::function_ref<refusal(const batch&)> objection,
                     std::optional<std::uint64_t> brings = std::nullopt);
  [[nodiscard]] std::optional<refusal_of> finish_combine(ticket rows, const combine_sum& wanted,
                                                         lane caller, deadline until,
                                                         std::span<std::int64_t> waited);
  /// Tells all ranks that this rank refuses dispatch `number`, the next one or a later. Does not
  /// wait. `batch_ring::skip` then uses up the number when it is the next one.
  void refuse_ahead(std::uint64_t number, const refusal& why);
  /// Waits until all ranks have learnt of the refusal of dispatch `number`, because they have
  /// called that dispatch too.
  void await_called(std::uint64_t number, deadline until);
  /// Sends the weights of the next combine of `rows`, [tokens, slots], to the ranks that have its
  /// rows. If `weights` is empty, sends those of the dispatch. If `refuses`, sends none. One lane
  /// calls it. Does not wait.
  void send_weights(ticket rows, std::span<const float> weights, bool refuses);
  /// Waits for the weights of all ranks. One lane calls it.
  void await_weights(ticket rows, deadline until, std::span<std::int64_t> waited);
  /// Returns the `brings` of `rank` in the combine of `named`; 0 if it attached nothing.
  [[nodiscard]] std::uint64_t brought_by(ticket named, rank_id rank);
  /// Tells all ranks that this rank refuses the next combine of `rows`, which it will not call.
  /// Does not wait.
  void refuse_combine(ticket rows, const refusal& why) {
    refuse_combine(parts_.batches.at(rows.number), why);
  }
  /// Allows all ranks to combine a combined batch again.
  void take_back(std::uint64_t number) noexcept {
    parts_.batches.at(number).reached = stage::received;
  }

 private:
  [[nodiscard]] rank_group& group() const noexcept { return parts_.window.group(); }
  [[nodiscard]] step step_of(const batch& this_batch, phase which) const noexcept {
    const bool is_combine = which == phase::outputs;
    return {is_combine ? group_operation::combine : group_operation::dispatch, this_batch.number,
            parts_.batches.set_of(this_batch), which,
            is_combine ? this_batch.combines : this_batch.number};
  }
  /// Returns the step in which counts and refusals of dispatch `number` travel.
  [[nodiscard]] step dispatch_step(std::uint64_t number) noexcept;

  /// Returns the next batch whose rows can be sent, or null. Waits as `advance`.
  [[nodiscard]] batch* next_ready(const batch* wanted, deadline until,
                                  std::span<std::int64_t> waited);
  /// Ends the dispatch when its rows have come. Returns the refusal of a peer, if any.
  [[nodiscard]] std::optional<refusal_of> end_dispatch(batch& this_batch, deadline until,
                                                       std::span<std::int64_t> waited);
  void refuse_combine(batch& this_batch, const refusal& why);
  void announce_outputs(batch& this_batch);
  [[nodiscard]] refusal objection_to_sum(const batch& this_batch,
                                         const combine_sum& wanted) const noexcept;
  /// Returns the step in which the weights of the next combine travel.
  [[nodiscard]] step weights_step(const batch& this_batch) const noexcept {
    return {group_operation::combine, this_batch.number, parts_.batches.set_of(this_batch),
            phase::weights, this_batch.combines + 1};
  }
  /// Returns `found` as a refusal of this rank, if it is one.
  [[nodiscard]] std::optional<refusal_of> own(const refusal& found) const {
    return found ? std::optional{refusal_of{group().rank(), found}} : std::nullopt;
  }

  /// Runs the first turn of a call, of which lanes must agree on the name, in lane 0.
  void serial(const char* call, lane caller, deadline until,
              peerbus::detail::function_ref<void()> turn) {
    team_.serial(
        caller, until, turn,
        [this](errc code, const std::string& text) { group().fail(code, text); }, call);
  }
  void serial(lane caller, deadline until, peerbus::detail::function_ref<void()> turn) {
    serial(nullptr, caller, until, turn);
  }
  /// Returns the batch as the path sees it.
  [[nodiscard]] row_path_batch on_path(const batch& this_batch) const noexcept {
    return this_batch.on_path(local_set(this_batch), parts_.batches.set_of(this_batch),
                              parts_.batches.buffers());
  }
  /// Returns 1 / `count`, or 1 if `count` is 0.
  [[nodiscard]] static double part_of(std::size_t count) noexcept {
    return 1.0 / static_cast<double>(std::max<std::size_t>(count, 1));
  }
  /// Returns whether a lane times its part of the batch: lane 0, if the batch is timed.
  [[nodiscard]] static bool times(const batch& this_batch, lane caller) noexcept {
    return this_batch.stores.timed && caller.index == 0;
  }
  /// Does `work`. If the lane times it, adds the time that it takes, times `share`.
  template <class Work>
  void timed(batch& this_batch, lane caller, double share, Work&& work) const {
    if (!times(this_batch, caller)) return work();
    const auto start = deadline::now();
    work();
    const std::chrono::duration<double, std::micro> spent = deadline::now() - start;
    this_batch.stores.us_per_token += spent.count() * share;
  }
  /// Reads the part of the arrived rows that one of `lanes` lanes would read.
  void read_rows(const batch& this_batch, std::size_t lanes) const noexcept;

  /// Records a failure of this lane, which the next `serial` reports. order: relaxed; `serial`
  /// makes it visible to lane 0, which reads it there.
  void record(errc code) noexcept {
    if (code != errc::ok) failure_.store(code, std::memory_order_relaxed);
  }
  /// Throws the failure of any lane, inside `serial`. order: relaxed; `serial` has made the stores
  /// of all lanes in `record` visible.
  void require_success(const step& this_step) {
    messages_.require(this_step, failure_.load(std::memory_order_relaxed));
  }

  /// The progress of a rank, or of all ranks, without void or repeated batches.
  struct position {
    completed_batches completed;
    std::uint64_t reopened = 0;
    std::uint64_t received_last = 0;  ///< the dispatch, without the numbers that views skip
    std::uint64_t begun_last = 0;     ///< the dispatch, likewise without skipped numbers
  };
  /// Returns the least progress of a rank of the view, with the largest `begun_last`.
  [[nodiscard]] position agree_on_position(deadline until);
  /// Brings `this_batch` to the progress of all ranks: if all have received it, it can be combined,
  /// unless all have done that. Forgets it if it is void.
  void carry_over(batch& this_batch, lost_experts lost) noexcept;
  /// Checks that the group is usable, and in the view of this exchange. Throws `error` if not.
  void require_healthy(std::string_view doing) const { group().require_healthy(doing, view_); }

  const void* exchange_;
  parts parts_;
  std::uint64_t view_ = 0;     ///< the number of the view in which the exchange is used
  std::uint64_t skipped_ = 0;  ///< numbers of dispatches that views have skipped
  position position_;
  control_messages messages_;
  const control_protocol* protocol_;  ///< the protocol of dispatches
  store_trials stores_;

  // Lane 0 writes these members inside `serial`, and all lanes read them after it.
  peerbus::detail::lane_barrier team_;
  batch* wanted_ = nullptr;
  batch* ready_ = nullptr;
  std::optional<refusal_of> refused_;  ///< the result of the call under way
  std::atomic<errc> failure_{errc::ok};
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/exchange_core.ipp>          // IWYU pragma: keep
#include <peerbus/moe/engine/exchange_core_combine.ipp>  // IWYU pragma: keep
#include <peerbus/moe/engine/install_experts.ipp>        // IWYU pragma: keep
#include <peerbus/moe/engine/late_weights.ipp>           // IWYU pragma: keep
#include <peerbus/moe/engine/resume.ipp>                 // IWYU pragma: keep
#endif

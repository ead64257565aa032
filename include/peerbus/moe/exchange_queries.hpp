// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/choices.hpp>
#include <peerbus/moe/engine/exchange_core.hpp>
#include <peerbus/moe/engine/exchange_engine.hpp>
#include <peerbus/moe/engine/learned_stores.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/row_traffic.hpp>
#include <peerbus/moe/stores.hpp>

namespace peerbus::moe {

/// The base of `exchange`: the queries that do not depend on its transport, codec and layout. They
/// do not communicate, and take constant time unless stated otherwise.
class exchange_queries {
 public:
  exchange_queries(const exchange_queries&) = delete;
  exchange_queries& operator=(const exchange_queries&) = delete;

  /// Returns the choices of this exchange, with their reasons.
  /// Cost: allocates, and looks at each size of batch.
  [[nodiscard]] exchange_choices choices() const {
    exchange_choices found = *choices_;
    found.stores = detail::choices_of(core_->stores(), core_->row_bytes_of(1));
    return found;
  }
  /// Returns the stores of this rank for batches of `tokens` tokens, with the reason
  /// (`exchange_config::stream_from`). With relay, the stores are those of the near level.
  [[nodiscard]] store_choice stores_for(std::size_t tokens) const noexcept {
    return detail::choice_of(core_->stores(), core_->row_bytes_of(1), core_->row_bytes_of(tokens));
  }
  /// Returns what this rank has learned about stores, as costs named `local.moe.stores...`, with
  /// the name of this machine; empty before anything was measured. A later exchange whose
  /// `exchange_config::costs` have them starts from them. Not collective; ranks may differ.
  /// Cost: as `choices`, and a small file of /proc.
  [[nodiscard]] cost_table learned_costs() const {
    return detail::costs_of(core_->stores(), core_->row_bytes_of(1));
  }

  /// Returns the number of the next dispatch, for callers that prepare their own data for it
  /// (`per_batch`). A refused dispatch uses up its number.
  [[nodiscard]] std::uint64_t next_dispatch() const noexcept { return engine_->next_dispatch(); }

  /// Returns whether the batch of `ticket` has been received, and not combined since.
  [[nodiscard]] bool awaits_combine(moe::ticket ticket) noexcept {
    return engine_->awaits_combine(ticket);
  }

  /// Returns the note that `source` gave to the batch `ticket`: [note_bytes / sizeof(T)], aligned
  /// to 8 bytes, or empty if it gave none. Valid until this rank has called `dispatch_send` or
  /// `dispatch` `in_flight` more times, refused calls included.
  /// Throws: `error` invalid_argument unless `ticket` is received and of the latest `in_flight`.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> note(moe::ticket ticket, rank_id source) {
    const auto bytes = engine_->note(ticket, source);
    return {peerbus::detail::placed<T>(bytes.data()), bytes.size() / sizeof(T)};
  }

  /// Returns the rows that this rank sent to other ranks by the dispatch of `ticket`.
  /// Cost: a look at each copy.
  /// Throws: as `note`.
  [[nodiscard]] row_traffic traffic(moe::ticket ticket) { return engine_->traffic(ticket); }

  /// Returns the number of rows that all ranks sent to each block by the dispatch of `ticket`.
  /// There is one block for each physical expert, or, in layouts by rank, for each rank. Empty in
  /// layouts with slots, whose counts go only to the ranks that need them. Valid as `note`.
  /// Throws: as `note`; unsupported with relay.
  [[nodiscard]] std::span<const std::uint32_t> rows_of_blocks(moe::ticket ticket) {
    return engine_->rows_of_blocks(ticket);
  }

  /// Returns whether `rank` sent output attachments home (`attached`) in the combine of `ticket`.
  /// Throws: `error` invalid_argument unless the batch is combined here and of the latest
  /// `in_flight`.
  [[nodiscard]] bool attached_by(moe::ticket ticket, rank_id rank) {
    return engine_->attached_by(ticket, rank);
  }

  /// Returns the attachment that came home beside the output of copy `copy` of this rank's token
  /// `t`: [output_attachment / sizeof(T)]. Copies are numbered as in `exchange::combine`: by slot,
  /// or, if rank-major, by rank of the token. The copy must have been sent, and `attached_by` be
  /// true for its rank; otherwise the bytes are those of an earlier batch. Valid as `note`.
  /// Throws: as `attached_by`.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> returned_attachment(moe::ticket ticket, std::size_t t,
                                                       std::size_t copy) {
    return {peerbus::detail::placed<T>(engine_->returned_attachment(ticket, t, copy)),
            output_attachment_ / sizeof(T)};
  }

 protected:
  /// Makes the object without an engine. `answer_by` must come before any query.
  exchange_queries() = default;
  ~exchange_queries() = default;

  /// Makes `engine` answer the queries, and `core`, which stores the rows, those about stores.
  /// `choices` are those made at the start. Output attachments have `output_attachment` bytes.
  void answer_by(detail::exchange_engine& engine, detail::exchange_core& core,
                 const exchange_choices& choices, std::size_t output_attachment) noexcept {
    engine_ = &engine;
    core_ = &core;
    choices_ = &choices;
    output_attachment_ = output_attachment;
  }
  /// Returns the engine that answers the queries.
  [[nodiscard]] detail::exchange_engine& engine() const noexcept { return *engine_; }

 private:
  detail::exchange_engine* engine_ = nullptr;
  detail::exchange_core* core_ = nullptr;
  const exchange_choices* choices_ = nullptr;
  std::size_t output_attachment_ = 0;
};

}  // namespace peerbus::moe

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/kept_rows.hpp>
#include <peerbus/moe/path/batch_input.hpp>
#include <peerbus/moe/path/sum_copies.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/replica_choice.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/row_traffic.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/moe/wait_watch.hpp>

namespace peerbus::moe::detail {

/// The operations of an exchange, for all transports, codecs and layouts. `exchange` adds the types
/// of tokens and of the rows that arrive, and states the contract of the functions that have the
/// same names there. Deadlines are arguments here. `exchange_core` sends rows straight to their
/// experts, and `relay_engine` by way of another rank.
///
/// `resume` and `install_experts` are not virtual, because every program would then contain
/// functions that few programs call. `exchange` calls those of its engine.
///
/// A refused operation is a result here: functions return the refusal and the rank that told it,
/// the same in all lanes, and `exchange` throws it. Misuse and failures are thrown.
class exchange_engine {
 public:
  exchange_engine() = default;
  exchange_engine(const exchange_engine&) = delete;
  exchange_engine& operator=(const exchange_engine&) = delete;
  virtual ~exchange_engine() = default;

  /// Returns the number of the next dispatch.
  [[nodiscard]] virtual std::uint64_t next_dispatch() const noexcept = 0;
  /// Makes waits ask `watch` from time to time, unless it is null.
  virtual void watch(wait_watch* watch) noexcept = 0;

  /// Begins the next dispatch. Returns the refusal of this rank, if any.
  [[nodiscard]] virtual std::optional<refusal_of> dispatch_send(const batch_input& input,
                                                                const routing& route,
                                                                const dispatch_options& options,
                                                                deadline until) = 0;
  /// Calls `arrived(batch)` in lane 0 once the rows have arrived, unless the dispatch is refused.
  [[nodiscard]] virtual std::optional<refusal_of> dispatch_recv(
      ticket named, const receive_options& options, deadline until,
      peerbus::detail::function_ref<void(const batch&)> arrived) = 0;
  [[nodiscard]] virtual std::optional<refusal_of> combine(ticket rows, const combine_sum& wanted,
                                                          const combine_options& options,
                                                          deadline until) = 0;
  virtual void combine_send(ticket rows, const publish_options& options, deadline until) = 0;
  [[nodiscard]] virtual std::optional<refusal_of> combine_recv(ticket rows,
                                                               const combine_sum& wanted,
                                                               const sum_options& options,
                                                               deadline until) = 0;
  virtual void reopen(ticket rows, const receive_options& options, deadline until) = 0;
  [[nodiscard]] virtual bool awaits_combine(ticket rows) noexcept = 0;

  /// Returns the `kept_rows` of the batch's memory.
  [[nodiscard]] virtual row_keepers& keepers(ticket rows) = 0;
  /// Returns the memory of the rows of `named` at this rank.
  [[nodiscard]] virtual set_view columns(ticket named) = 0;
  [[nodiscard]] virtual std::span<const std::byte> note(ticket named, rank_id source) = 0;
  [[nodiscard]] virtual row_traffic traffic(ticket named) = 0;
  [[nodiscard]] virtual std::span<const std::uint32_t> rows_of_blocks(ticket named) = 0;
  [[nodiscard]] virtual bool attached_by(ticket named, rank_id rank) = 0;
  [[nodiscard]] virtual std::byte* returned_attachment(ticket named, std::size_t t,
                                                       std::size_t copy) = 0;
};

}  // namespace peerbus::moe::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/moe/engine/exchange_engine.hpp>

namespace peerbus::moe::detail {

/// An engine that calls another engine, and tells the listeners of a group of each operation of a
/// lane. A refusal is a fault: invalid_argument at the rank that refuses, and refused elsewhere.
class reporting_engine final : public exchange_engine {
 public:
  /// Reports for `engine`, whose group is `group`. Both outlive it.
  reporting_engine(exchange_engine& engine, const rank_group& group) noexcept
      : engine_{&engine}, group_{&group} {}

  [[nodiscard]] std::uint64_t next_dispatch() const noexcept override {
    return engine_->next_dispatch();
  }
  void watch(wait_watch* watch) noexcept override { engine_->watch(watch); }
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
  [[nodiscard]] bool awaits_combine(ticket rows) noexcept override {
    return engine_->awaits_combine(rows);
  }
  [[nodiscard]] row_keepers& keepers(ticket rows) override { return engine_->keepers(rows); }
  [[nodiscard]] set_view columns(ticket named) override { return engine_->columns(named); }
  [[nodiscard]] std::span<const std::byte> note(ticket named, rank_id source) override {
    return engine_->note(named, source);
  }
  [[nodiscard]] row_traffic traffic(ticket named) override { return engine_->traffic(named); }
  [[nodiscard]] std::span<const std::uint32_t> rows_of_blocks(ticket named) override {
    return engine_->rows_of_blocks(named);
  }
  [[nodiscard]] bool attached_by(ticket named, rank_id rank) override {
    return engine_->attached_by(named, rank);
  }
  [[nodiscard]] std::byte* returned_attachment(ticket named, std::size_t t,
                                               std::size_t copy) override {
    return engine_->returned_attachment(named, t, copy);
  }

 private:
  /// The point at which an operation ends.
  enum class end_at : std::uint8_t {
    the_call,      ///< the end of the call of the exchange
    the_last_part  ///< the end of the last part of a single lane, after which the lane does nothing
                   ///< more; without parts, the end of the call
  };
  /// Does `work` and tells the listeners: it is the operation `what`, dispatch `number` or its
  /// combine, by the function `name` of an exchange.
  template <class Work>
  auto report(group_operation what, const char* name, std::uint64_t number, lane caller, end_at end,
              Work&& work);

  exchange_engine* engine_;
  const rank_group* group_;
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/reporting_engine.ipp>  // IWYU pragma: keep
#endif

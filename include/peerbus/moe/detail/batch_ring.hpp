// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/received.hpp>

namespace peerbus::moe::detail {

/// The batch sets of an exchange. Dispatch n uses set n mod in_flight. The class finds the batch of
/// a call. If the batch is not in the state that the call expects, it throws `error`
/// invalid_argument before anything is changed.
template <token_codec Codec, row_layout Layout, class Order>
class batch_ring {
  using batch_type = batch<Codec, Layout, Order>;
  using received_type = typename batch_type::received_type;

 public:
  batch_ring(const exchange_config& config, const block_geometry& geometry, rank_id rank,
             std::size_t ranks)
      : experts_{std::make_shared<expert_map>(config, ranks)},
        sets_{made_sets(config, geometry, experts_, rank, ranks)} {}

  [[nodiscard]] const expert_map& experts() const noexcept { return *experts_; }
  /// Returns the map that all batches use, to change it before the first dispatch.
  [[nodiscard]] expert_map& shared_experts() noexcept { return *experts_; }
  /// Returns the number of the set of `batch`.
  [[nodiscard]] std::size_t set_of(const batch_type& batch) const noexcept {
    return static_cast<std::size_t>(&batch - &*sets_.begin());
  }
  /// Returns the set that dispatch `number` uses. It may hold another dispatch.
  [[nodiscard]] batch_type& at(std::uint64_t number) noexcept { return sets_.of(number); }
  /// Returns the number of the latest dispatch, or 0 before the first.
  [[nodiscard]] std::uint64_t latest() const noexcept { return latest_; }
  /// Returns the lowest number that a batch in a set may have.
  [[nodiscard]] std::uint64_t oldest() const noexcept {
    return latest_ < sets_.size() ? 1 : latest_ - sets_.size() + 1;
  }

  /// Returns the set for the next dispatch, whose number `latest()` then returns.
  [[nodiscard]] batch_type& next() {
    require_free(latest_ + 1);
    return at(++latest_);
  }
  /// Uses up the number of the next dispatch, which this rank has refused already.
  void skip() noexcept { ++latest_; }
  /// Returns if dispatch `number` may use its set.
  void require_free(std::uint64_t number) {
    const batch_type& batch = at(number);
    if (batch.reached == stage::counted || batch.reached == stage::sent ||
        batch.reached == stage::returning)
      misuse("dispatch ", number, " needs the place of dispatch ", batch.number, ", which is ",
             describe(batch.reached), "; expected at most ", sets_.size(),
             " batches on their way (in_flight)");
  }

  /// Returns the batch named by `ticket`, which must have reached at least `least`.
  [[nodiscard]] batch_type& of(std::string_view doing, const void* exchange, moe::ticket ticket,
                               stage least = stage::counted) {
    const std::uint64_t number = ticket.number;
    if (number != 0 && ticket.exchange != exchange)
      misuse(doing, " was given a ticket of another exchange, expected one of its own");
    batch_type& batch = at(number);
    if (number == 0 || batch.number != number)
      misuse(doing, " was given ticket ", number,
             ", expected one that dispatch_send gave, of the latest ", sets_.size());
    if (batch.reached < least)
      misuse(doing, " was given ticket ", number, ", which is ", describe(batch.reached),
             ", expected one that is ", describe(least));
    return batch;
  }
  /// Returns the batch named by `ticket`, which must still need `dispatch_recv`.
  [[nodiscard]] batch_type& awaiting_rows(const void* exchange, moe::ticket ticket) {
    batch_type& batch = of("dispatch_recv", exchange, ticket);
    if (batch.reached != stage::counted && batch.reached != stage::sent)
      misuse("dispatch_recv was given ticket ", ticket.number, ", which is ",
             describe(batch.reached), ", expected one that is not received yet");
    return batch;
  }

  /// Returns the batch that `rows` belong to, which must have reached exactly `expected`.
  [[nodiscard]] batch_type& behind(std::string_view doing, const void* exchange,
                                   const received_type& rows, stage expected) {
    if (rows.ticket().exchange != exchange)
      misuse(doing, " was given the rows of another exchange, expected those of its own dispatch");
    const std::uint64_t number = rows.ticket().number;
    batch_type& batch = at(number);
    if (batch.number != number)
      misuse(doing, " was given the rows of dispatch ", number, ", which dispatch ", batch.number,
             " has replaced; expected those of the latest ", sets_.size());
    if (batch.reached != expected)
      misuse(doing, " was given the rows of dispatch ", number, ", which is ",
             describe(batch.reached), ", expected one that is ", describe(expected));
    return batch;
  }

 private:
  static std::vector<batch_type> made_sets(const exchange_config& config,
                                           const block_geometry& geometry,
                                           const std::shared_ptr<const expert_map>& experts,
                                           rank_id rank, std::size_t ranks) {
    std::vector<batch_type> made;
    made.reserve(config.in_flight);
    for (std::size_t set = 0; set < config.in_flight; ++set)
      made.emplace_back(config, geometry, experts, rank, ranks);
    return made;
  }
  template <class... Parts>
  [[noreturn]] static void misuse(const Parts&... parts) {
    throw error{errc::invalid_argument, peerbus::detail::concat(parts...)};
  }

  std::shared_ptr<expert_map> experts_;
  per_batch<batch_type> sets_;
  std::uint64_t latest_ = 0;
};

}  // namespace peerbus::moe::detail

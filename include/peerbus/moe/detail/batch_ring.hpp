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

/// The batch sets of an exchange: dispatch n uses set n mod in_flight. Finds the batch that a call
/// means, and throws `error` invalid_argument, before anything is done, if it is not what the call
/// expects.
template <token_codec Codec, row_layout Layout, class Order>
class batch_ring {
  using batch_type = batch<Codec, Layout, Order>;
  using received_type = typename batch_type::received_type;

 public:
  batch_ring(const exchange_config& config, const block_geometry& geometry, rank_id rank,
             std::size_t ranks)
      : experts_{std::make_shared<const expert_map>(config, ranks)},
        sets_{made_sets(config, geometry, experts_, rank, ranks)} {}

  [[nodiscard]] const expert_map& experts() const noexcept { return *experts_; }
  [[nodiscard]] std::size_t set_of(const batch_type& one) const noexcept {
    return static_cast<std::size_t>(&one - &*sets_.begin());
  }
  /// The set that dispatch `number` uses, whatever is in it now.
  [[nodiscard]] batch_type& at(std::uint64_t number) noexcept { return sets_.of(number); }
  /// The number of the latest dispatch, 0 before the first.
  [[nodiscard]] std::uint64_t latest() const noexcept { return latest_; }
  /// The lowest number that a batch may still have.
  [[nodiscard]] std::uint64_t oldest() const noexcept {
    return latest_ < sets_.size() ? 1 : latest_ - sets_.size() + 1;
  }

  /// The set for the next dispatch, whose number is `latest()` from now on.
  [[nodiscard]] batch_type& next() {
    batch_type& one = at(latest_ + 1);
    if (one.at == stage::counted || one.at == stage::sent || one.at == stage::returning)
      misuse("dispatch ", latest_ + 1, " needs the place of dispatch ", one.number, ", which is ",
             describe(one.at), "; expected at most ", sets_.size(),
             " batches on their way (in_flight)");
    ++latest_;
    return one;
  }

  /// The batch that ticket `begun` names, which must have come at least as far as `least`.
  [[nodiscard]] batch_type& of(std::string_view doing, const void* exchange, ticket begun,
                               stage least = stage::counted) {
    const std::uint64_t number = begun.number;
    if (number != 0 && begun.exchange != exchange)
      misuse(doing, " was given a ticket of another exchange, expected one of its own");
    batch_type& one = at(number);
    if (number == 0 || one.number != number)
      misuse(doing, " was given ticket ", number,
             ", expected one that dispatch_send gave, of the latest ", sets_.size());
    if (one.at < least)
      misuse(doing, " was given ticket ", number, ", which is ", describe(one.at),
             ", expected one that is ", describe(least));
    return one;
  }
  /// The batch that waits for `dispatch_recv` of this ticket.
  [[nodiscard]] batch_type& awaiting_rows(const void* exchange, ticket begun) {
    batch_type& one = of("dispatch_recv", exchange, begun);
    if (one.at != stage::counted && one.at != stage::sent)
      misuse("dispatch_recv was given ticket ", begun.number, ", which is ", describe(one.at),
             ", expected one that is not received yet");
    return one;
  }

  /// The batch that `rows` came from, which must have come as far as `expected`.
  [[nodiscard]] batch_type& behind(std::string_view doing, const void* exchange,
                                   const received_type& rows, stage expected) {
    if (rows.ticket().exchange != exchange)
      misuse(doing, " was given the rows of another exchange, expected those of its own dispatch");
    const std::uint64_t number = rows.ticket().number;
    batch_type& one = at(number);
    if (one.number != number)
      misuse(doing, " was given the rows of dispatch ", number, ", which dispatch ", one.number,
             " has replaced; expected those of the latest ", sets_.size());
    if (one.at != expected)
      misuse(doing, " was given the rows of dispatch ", number, ", which is ", describe(one.at),
             ", expected one that is ", describe(expected));
    return one;
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

  std::shared_ptr<const expert_map> experts_;
  per_batch<batch_type> sets_;
  std::uint64_t latest_ = 0;
};

}  // namespace peerbus::moe::detail

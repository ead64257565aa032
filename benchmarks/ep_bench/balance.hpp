// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <peerbus/moe/balance.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/received.hpp>

#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "ep_bench/outcome.hpp"

namespace ep_bench {

/// Returns the options with the places of experts that `balance` asks for at first: planned from
/// the rows that this routing sends to each expert, or for `incremental` from nothing.
[[nodiscard]] options balanced(options chosen, std::size_t ranks);

/// Plans other places for experts from time to time, from the rows that dispatches count.
class rebalancer {
 public:
  rebalancer(const options& chosen, const peerbus::moe::expert_map& map);

  /// Notes the rows of each place by the dispatch of `ticket`.
  template <class Exchange>
  void count(Exchange& moe, peerbus::moe::ticket ticket) {
    moe.count_rows(ticket, rows_);
  }
  /// Adds the rows noted last as those of an iteration. Returns what is wrong with them by `truth`,
  /// or nothing.
  [[nodiscard]] std::string add(const oracle& truth);

  /// If a plan is due after `steps` iterations and gains over `in_use`, changes the places in
  /// `chosen` and returns what it did. The same on all ranks. The caller installs them and calls
  /// `move_to`.
  [[nodiscard]] std::optional<replan> plan(std::size_t steps,
                                           const peerbus::moe::expert_map& in_use,
                                           options& chosen) const;
  /// Goes on with the places of `map`.
  void move_to(const peerbus::moe::expert_map& map) { load_.move_to(map); }

 private:
  std::vector<std::uint32_t> rows_;  ///< of the latest dispatch: [places]
  peerbus::moe::expert_load load_;
};

}  // namespace ep_bench

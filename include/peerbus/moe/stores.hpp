// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

namespace peerbus::moe {

/// The stores by which a rank writes the rows of a dispatch to peers, and the results of a combine.
enum class store_kind : std::uint8_t {
  plain = 0,     ///< through the caches
  streaming = 1  ///< past the caches, so that overwritten memory is not read first
};

/// The reason why an exchange uses a kind of stores.
enum class store_reason : std::uint8_t {
  configured,  ///< `exchange_config::stream_from` is given
  assumed,     ///< size of the batch against that of the caches, before both kinds were measured
  measured,    ///< the times of both kinds in this exchange
  learned      ///< the times in `exchange_config::costs`, before this exchange measured its own
};

/// The stores of an exchange for batches of one size, and the reason. Ranks may differ.
struct store_choice {
  store_kind kind = store_kind::plain;       ///< the stores for batches of this size
  store_reason why = store_reason::assumed;  ///< the reason for these stores
  ///@{
  /// The time to write the rows of a batch of this size, to read as many rows once, to sum the
  /// outputs and to read the sums, in microseconds: the lower quartile when it was last measured,
  /// the time by `exchange_config::costs` if the reason is `learned`, or 0.
  double plain_us = 0;
  double streaming_us = 0;
  ///@}
  std::size_t trials = 0;  ///< trials of both kinds by which this exchange has chosen
};

/// Returns "plain" or "streaming".
[[nodiscard]] constexpr std::string_view describe(store_kind kind) noexcept {
  return kind == store_kind::streaming ? "streaming" : "plain";
}

/// Returns "configured", "assumed", "measured" or "learned".
[[nodiscard]] constexpr std::string_view describe(store_reason why) noexcept {
  switch (why) {
    case store_reason::configured: return "configured";
    case store_reason::assumed: return "assumed";
    case store_reason::measured: return "measured";
    case store_reason::learned: return "learned";
  }
  return "unknown";
}

}  // namespace peerbus::moe

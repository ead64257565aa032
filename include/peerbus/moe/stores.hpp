// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

namespace peerbus::moe {

/// The stores by which a rank writes the rows of a dispatch to peers, and the results of a combine.
enum class store_kind : std::uint8_t {
  plain = 0,     ///< through the caches
  streaming = 1  ///< past the caches: what is overwritten is not read first
};

/// The reason for a kind of stores.
enum class store_reason : std::uint8_t {
  configured,  ///< `exchange_config::stream_from`
  assumed,     ///< the size of the batch beside that of the caches, until both kinds were measured
  measured     ///< the times of both kinds in this exchange
};

/// The stores of an exchange for batches of one size, and why it takes them. Ranks may differ.
struct store_choice {
  store_kind kind = store_kind::plain;       ///< that batches of this size have
  store_reason why = store_reason::assumed;  ///< what decided
  ///@{
  /// The time to write the rows of a batch of this size, to read as many once, to sum the outputs
  /// and to read the sums, in microseconds: the lower quartile when it was last measured, or 0.
  double plain_us = 0;
  double streaming_us = 0;
  ///@}
};

/// Returns "plain" or "streaming".
[[nodiscard]] constexpr std::string_view describe(store_kind kind) noexcept {
  return kind == store_kind::streaming ? "streaming" : "plain";
}

/// Returns "configured", "assumed" or "measured".
[[nodiscard]] constexpr std::string_view describe(store_reason why) noexcept {
  switch (why) {
    case store_reason::configured: return "configured";
    case store_reason::assumed: return "assumed";
    case store_reason::measured: return "measured";
  }
  return "unknown";
}

}  // namespace peerbus::moe

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/protocol.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/stores.hpp>

namespace peerbus::moe {

/// The reason why an exchange has its protocol.
enum class protocol_reason : std::uint8_t {
  layout,      ///< the layout can have only this one
  configured,  ///< `exchange_config::protocol` names it
  assumed,     ///< it is cheaper by the costs that the library assumes
  costs        ///< it is cheaper by costs of which `exchange_config::costs` has one or more
};

/// Returns "layout", "configured", "assumed" or "costs".
[[nodiscard]] constexpr std::string_view describe(protocol_reason why) noexcept {
  switch (why) {
    case protocol_reason::layout: return "layout";
    case protocol_reason::configured: return "configured";
    case protocol_reason::assumed: return "assumed";
    case protocol_reason::costs: return "costs";
  }
  return "unknown";
}

/// The protocol of an exchange, and the reason. With relay, it is that of the near level.
struct protocol_choice {
  dispatch_protocol chosen = dispatch_protocol::counts_first;  ///< the protocol of dispatches
  protocol_reason why = protocol_reason::layout;               ///< the reason for it
  dispatch_size full{};          ///< the full dispatch, for which protocols are estimated
  protocol_estimate estimate{};  ///< the times of both protocols, also if they did not decide
};

/// The rule for stores of sizes of which an exchange knows no times.
struct store_rule {
  std::size_t stream_from = never_stream;    ///< bytes of a batch from which stores are streaming
  store_reason why = store_reason::assumed;  ///< `configured` or `assumed`, by caches
  bool tries_both = false;  ///< true if the exchange tries both kinds, to take the better one
};

/// The stores of an exchange for batches whose rows have `from_bytes` bytes or more, and less than
/// twice as many.
struct size_stores {
  std::size_t from_bytes = 0;  ///< a power of two
  store_choice stores{};       ///< the choice, with the times of a batch of `from_bytes` bytes
};

/// The choices of an exchange, each with its reason (`exchange::choices`). `log_choices` describes
/// them in words.
struct exchange_choices {
  protocol_choice protocol{};         ///< the protocol of dispatches
  relay_choice relay{};               ///< one level or two
  store_rule rule{};                  ///< the stores of this rank for other sizes than in `stores`
  std::vector<size_stores> stores{};  ///< of each size that this rank has dispatched or that
                                      ///< `exchange_config::costs` has, in ascending order
  std::string_view layout{};          ///< the name of the layout
  std::string_view path{};  ///< the path of rows, by the reach of the transport (`path_name_of`)
  std::string costs_machine{};  ///< the machine that `exchange_config::costs` names, or empty
};

}  // namespace peerbus::moe

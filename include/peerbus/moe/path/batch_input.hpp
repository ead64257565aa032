// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/encoded_token.hpp>
#include <peerbus/moe/plan/check_input.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// Rows of another exchange that a rank hands on without decoding them. Empty for tokens that the
/// rank encodes itself.
struct handed_rows {
  set_view rows{};                 ///< the rows that arrived, with their scales
  const wire_origin* origins{};    ///< the origins of these rows
  std::span<const rank_id> homes;  ///< the home rank for each rank number in `origins`

  /// Returns whether rows are handed on.
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(rows); }
  /// Returns row `t` as it arrived.
  [[nodiscard]] encoded_token encoded(std::size_t t) const noexcept {
    return {rows.row(t), rows.scales(t)};
  }
  /// Returns the origin to write beside a copy of row `t`: the token number from `origins`, the
  /// home rank by `homes`, and `slot` as the number of the copy.
  [[nodiscard]] wire_origin origin(std::size_t t, std::size_t slot) const noexcept {
    const wire_origin& source = origins[t];
    return {source.token, static_cast<std::uint16_t>(homes[source.rank].index()),
            static_cast<std::uint16_t>(slot)};
  }
};

/// The input of a rank to a dispatch, without the routing. The memory is the caller's, and paths
/// read it until `dispatch_recv` returns.
struct batch_input {
  detail::token_values tokens{};  ///< [count, hidden]; not read if rows are handed on
  attachments attached{};         ///< each [count, configured bytes]
  /// Rows to send in place of `tokens`. Only `direct_row_path` takes them.
  handed_rows handed_on{};

  /// Returns token `t`, which has `hidden` values of type `Token`, the type of the codec's tokens.
  template <class Token>
  [[nodiscard]] std::span<const Token> token(std::size_t t, std::size_t hidden) const noexcept {
    return {static_cast<const Token*>(tokens.data) + t * hidden, hidden};
  }
};

}  // namespace peerbus::moe

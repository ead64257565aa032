// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/layout.hpp>

namespace peerbus::moe::detail {

using peerbus::detail::concat;

/// Why no exchange of `ranks` ranks can be configured like this, if so.
inline std::optional<error> objection_to(const exchange_config& config, std::size_t ranks,
                                         row_format format, std::string_view codec) {
  const auto wrong = [](const auto&... parts) {
    return error{errc::invalid_argument, concat("exchange: ", parts...)};
  };
  if (config.experts == 0) return wrong("experts is 0, expected at least 1");
  if (config.top_k == 0 || config.top_k > max_top_k)
    return wrong("top_k is ", config.top_k, ", expected 1 to ", max_top_k);
  if (config.top_k > config.experts)
    return wrong("top_k is ", config.top_k, ", expected at most experts, ", config.experts);
  if (config.max_tokens == 0) return wrong("max_tokens is 0, expected at least 1");
  constexpr std::size_t most = std::size_t{1} << 24U;
  if (config.experts > most)
    return wrong("experts is ", config.experts, ", expected at most ", most);
  if (config.hidden == 0 || config.hidden > most)
    return wrong("hidden is ", config.hidden, ", expected 1 to ", most);
  for (const std::size_t bytes : {format.row_bytes, config.hidden * sizeof(bf16)})
    if (bytes % 16 != 0)
      return wrong("hidden is ", config.hidden, ", which makes a row of ", bytes,
                   " bytes with codec ", codec, ", expected a multiple of 16 bytes");
  // Rows are numbered by 32 bits. Divisions, as the product may not fit in 64.
  constexpr std::size_t most_rows = std::numeric_limits<std::uint32_t>::max();
  if (config.max_tokens > most_rows / ranks / config.top_k)
    return wrong("ranks x max_tokens x top_k is ", ranks, " x ", config.max_tokens, " x ",
                 config.top_k, ", expected less than 2^32");
  // Roughly, and in floating point, as the exact sizes of exchange_layout might wrap around. What
  // fits in 62 bits but not in the machine is refused when the window is made.
  const double bytes_per_row = static_cast<double>(format.row_bytes) +
                               static_cast<double>(format.scale_bytes) +
                               static_cast<double>(combine_bytes_per_row(config.hidden));
  const double rows =
      static_cast<double>(ranks * config.max_tokens) * static_cast<double>(config.top_k);
  if (rows * bytes_per_row > 0x1p62)
    return error{errc::out_of_memory, concat("exchange: up to ", rows, " rows of ", bytes_per_row,
                                             " bytes, expected less than 2^62 bytes in all")};
  return std::nullopt;
}

}  // namespace peerbus::moe::detail

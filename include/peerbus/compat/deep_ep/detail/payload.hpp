// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace peerbus::deep_ep::detail {

/// The contents of a row of a dispatch: `nothing` if the dispatch only prepares a combine.
enum class payload : std::uint8_t { bf16, bytes, nothing };

/// The texts of the values of `payload`, for a `key_part`.
inline constexpr std::array<std::string_view, 3> payload_words{
    "bfloat16", "of one byte", "none, as a handle is combined again"};

}  // namespace peerbus::deep_ep::detail

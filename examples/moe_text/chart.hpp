// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moe_text {

/// A bar per expert, the experts of one rank side by side; several experts share a bar, which then
/// shows their mean, where they are more than fit into `width` columns.
std::string load_chart(std::span<const std::uint64_t> rows_of_expert, std::size_t ranks,
                       std::size_t width);

/// Columns of the terminal that stdout is, or 80.
std::size_t terminal_width();

}  // namespace moe_text

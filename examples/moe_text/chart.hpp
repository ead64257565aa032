// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moe_text {

/// Returns a bar chart of the rows of each expert, with the experts of a rank side by side. If the
/// experts do not fit into `width` columns, several experts share a bar, which then shows their
/// mean.
std::string load_chart(std::span<const std::uint64_t> rows_of_expert, std::size_t ranks,
                       std::size_t width);

/// Returns the number of columns of the terminal on stdout, or 80 if stdout is no terminal.
std::size_t terminal_width();

}  // namespace moe_text

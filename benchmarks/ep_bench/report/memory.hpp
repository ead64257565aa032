// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "ep_bench/options.hpp"

namespace ep_bench {

/// Bytes that a configuration touches on all ranks together, roughly: every copy of a token and its
/// output, the tokens and what is checked against.
[[nodiscard]] std::size_t estimated_bytes(const options& chosen);

/// Bytes that programs can still have: of the machine, or of its container if that has less.
[[nodiscard]] std::size_t available_bytes();

}  // namespace ep_bench

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::moe {

/// A token in the form in which it travels. Empty if `row` is nullptr.
struct encoded_token {
  const std::byte* row = nullptr;     ///< `row_format::row_bytes` bytes
  const std::byte* scales = nullptr;  ///< `row_format::scale_bytes` bytes
};

}  // namespace peerbus::moe

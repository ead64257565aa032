// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::registered {

/// Appends the bytes of `value` to a message for the other ranks.
template <class Value>
  requires std::is_trivially_copyable_v<Value>
void append_bytes(std::vector<std::byte>& message, const Value& value) {
  const std::size_t offset = message.size();
  message.resize(offset + sizeof value);
  std::memcpy(message.data() + offset, &value, sizeof value);
}

}  // namespace peerbus::detail::registered

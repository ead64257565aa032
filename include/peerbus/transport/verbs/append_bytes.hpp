// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace peerbus::detail::rdma {

/// Appends the bytes of `value` to what a rank tells the others.
template <class Value>
  requires std::is_trivially_copyable_v<Value>
void append_bytes(std::vector<std::byte>& said, const Value& value) {
  const std::size_t at = said.size();
  said.resize(at + sizeof value);
  std::memcpy(said.data() + at, &value, sizeof value);
}

}  // namespace peerbus::detail::rdma

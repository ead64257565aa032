// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/group.hpp>

namespace test {

/// What LogFMT-10 makes of `row`: [a multiple of 128].
inline std::vector<peerbus::bf16> through_logfmt(std::span<const peerbus::bf16> row) {
  namespace logfmt10 = peerbus::codec::logfmt10;
  std::vector<logfmt10::head> heads(logfmt10::groups(row.size()));
  std::vector<std::byte> bytes(2 * row.size());
  logfmt10::encode(row, heads, bytes.data());
  std::array<logfmt10::reader, 1> reader{logfmt10::reader{heads, bytes.data()}};
  std::vector<peerbus::bf16> values;
  for (std::size_t g = 0; g < heads.size(); ++g) {
    peerbus::bf16 scratch[1][peerbus::kernel::group_columns];
    const peerbus::bf16* group = nullptr;
    logfmt10::next_groups(reader, scratch, &group);
    values.insert(values.end(), group, group + peerbus::kernel::group_columns);
  }
  return values;
}

}  // namespace test

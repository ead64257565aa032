// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// An entry of the table at the start of a `result` frame's body. The table has one entry per rank.
/// The bytes of all ranks follow one another. An allgather of N ranks needs only N result frames
/// because each carries the data of all ranks.
struct gathered_entry {
  std::uint64_t bytes;
  std::uint64_t has_fd;
};

/// The largest number of bytes that rank 0 holds and sends for one allgather.
inline constexpr std::size_t most_gathered_bytes = std::size_t{1} << 30;

/// Encodes the contributions of all ranks, without their descriptors, as the body of a `result`
/// frame.
inline std::vector<std::byte> encode_gathered(const std::vector<bootstrap::contribution>& given) {
  std::size_t total = given.size() * sizeof(gathered_entry);
  for (const auto& part : given) total += part.bytes.size();
  std::vector<std::byte> body(total);
  std::byte* entry = body.data();
  std::byte* bytes = entry + given.size() * sizeof(gathered_entry);
  for (const auto& part : given) {
    const gathered_entry described{part.bytes.size(), part.fd ? 1U : 0U};
    std::memcpy(entry, &described, sizeof described);
    entry += sizeof described;
    if (!part.bytes.empty()) std::memcpy(bytes, part.bytes.data(), part.bytes.size());
    bytes += part.bytes.size();
  }
  return body;
}

/// Decodes a `result` frame into `given`, the contributions of `size` ranks.
/// Returns: false if the frame is not consistent with `size` or in itself.
[[nodiscard]] inline bool decode_gathered(frame&& result, std::size_t size,
                                          std::vector<bootstrap::contribution>& given) {
  const std::size_t table = size * sizeof(gathered_entry);
  if (result.body.size() < table) return false;
  const std::byte* rest = result.body.data() + table;
  std::size_t rest_bytes = result.body.size() - table;
  std::size_t next_fd = 0;
  given.clear();
  given.resize(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    gathered_entry entry{};
    std::memcpy(&entry, result.body.data() + rank * sizeof entry, sizeof entry);
    if (entry.bytes > rest_bytes) return false;
    append_bytes(given[rank].bytes, rest, entry.bytes);
    rest += entry.bytes;
    rest_bytes -= entry.bytes;
    if (entry.has_fd == 0) continue;
    if (next_fd == result.fds.size()) return false;
    given[rank].fd = std::move(result.fds[next_fd++]);
  }
  if (rest_bytes != 0 || next_fd != result.fds.size()) return false;
  return true;
}

}  // namespace peerbus::detail

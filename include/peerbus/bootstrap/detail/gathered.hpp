// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The body of a `result` frame: a table of one entry per rank, then all bytes one after another.
/// One frame for everything keeps an allgather of N ranks at N frames.
struct gathered_entry {
  std::uint64_t bytes;
  std::uint64_t has_fd;
};

/// Bounds what rank 0 holds and sends at once.
inline constexpr std::size_t most_gathered_bytes = std::size_t{1} << 30;

inline std::vector<std::byte> encode_gathered(std::span<const bootstrap::contribution> given) {
  std::size_t total = given.size() * sizeof(gathered_entry);
  for (const auto& one : given) total += one.bytes.size();
  std::vector<std::byte> body(total);
  std::byte* entry = body.data();
  std::byte* bytes = entry + given.size() * sizeof(gathered_entry);
  for (const auto& one : given) {
    const gathered_entry described{one.bytes.size(), one.fd ? 1U : 0U};
    std::memcpy(entry, &described, sizeof described);
    entry += sizeof described;
    if (!one.bytes.empty()) std::memcpy(bytes, one.bytes.data(), one.bytes.size());
    bytes += one.bytes.size();
  }
  return body;
}

/// Takes a frame apart into `given`, the contributions of `size` ranks. Returns false if the frame
/// does not add up to them.
[[nodiscard]] inline bool decode_gathered(frame&& from, std::size_t size,
                                          std::vector<bootstrap::contribution>& given) {
  const std::size_t table = size * sizeof(gathered_entry);
  if (from.body.size() < table) return false;
  std::span<const std::byte> rest = std::span<const std::byte>{from.body}.subspan(table);
  std::size_t next_fd = 0;
  given.clear();
  given.resize(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    gathered_entry entry{};
    std::memcpy(&entry, from.body.data() + rank * sizeof entry, sizeof entry);
    if (entry.bytes > rest.size()) return false;
    const auto bytes = rest.first(static_cast<std::size_t>(entry.bytes));
    given[rank].bytes.assign(bytes.begin(), bytes.end());
    rest = rest.subspan(bytes.size());
    if (entry.has_fd == 0) continue;
    if (next_fd == from.fds.size()) return false;
    given[rank].fd = std::move(from.fds[next_fd++]);
  }
  if (!rest.empty() || next_fd != from.fds.size()) return false;
  return true;
}

}  // namespace peerbus::detail

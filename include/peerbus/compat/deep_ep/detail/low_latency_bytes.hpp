// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include <peerbus/core/align.hpp>

/// The sizes of the buffer of DeepEP's low-latency mode, by the formulas of commit dd758ca.
namespace peerbus::deep_ep::detail {

/// The size in bytes that stands for all sizes that are not smaller.
inline constexpr std::size_t too_many_bytes = std::size_t{1} << 63U;

/// Returns the size in bytes of the buffer that DeepEP's low-latency calls of this shape use, at
/// most `too_many_bytes`. The calls refuse a smaller buffer.
constexpr std::size_t low_latency_bytes(std::size_t max_tokens, std::size_t hidden,
                                        std::size_t experts) noexcept {
  const double most_of_message = 16.0 + 3.0 * static_cast<double>(hidden);
  const double messages =
      (1.0 + static_cast<double>(max_tokens)) * (1.0 + static_cast<double>(experts));
  if (4.0 * messages * most_of_message >= 0x1p63) return too_many_bytes;
  constexpr std::size_t buffers = 2;  // DeepEP alternates between two.
  const std::size_t scales = hidden / 128 * 4;
  const std::size_t dispatch_message = 16 + std::max(2 * hidden, hidden + scales);
  const std::size_t combine_message = scales + 2 * hidden;
  const std::size_t combined = experts * max_tokens * combine_message;
  const std::size_t sent = std::max(max_tokens * dispatch_message, combined);
  const std::size_t received = std::max(experts * max_tokens * dispatch_message, combined);
  return buffers * (sent + received + align_up(4 * experts, 128));
}

/// Returns the size in bytes that `get_low_latency_rdma_size_hint` returns: `low_latency_bytes`
/// rounded up to a multiple of 128, or 128 more if it is a multiple already.
constexpr std::size_t low_latency_size_hint(std::size_t max_tokens, std::size_t hidden,
                                            std::size_t experts) noexcept {
  return (low_latency_bytes(max_tokens, hidden, experts) / 128 + 1) * 128;
}

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>

namespace mpi_ep {

/// Writes a token to all places of its copies, encoded once where the codec can do that.
template <peerbus::token_codec Codec>
void encode_copies(std::span<const peerbus::bf16> token, std::span<std::byte* const> rows,
                   std::span<std::byte* const> scales) noexcept {
  const Codec codec;
  if constexpr (peerbus::multicast_codec<Codec>) {
    codec.encode_copies(token, rows, scales);
  } else {
    const std::size_t hidden = token.size();
    for (std::size_t i = 0; i < rows.size(); ++i)
      codec.encode(token, {rows[i], Codec::row_bytes(hidden)},
                   {scales[i], Codec::scale_bytes(hidden)});
  }
}

}  // namespace mpi_ep

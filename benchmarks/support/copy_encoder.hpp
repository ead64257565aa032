// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include <peerbus/codec/concept.hpp>

namespace bench {

/// Encodes tokens as an exchange does: once, in memory of its own, from where whole rows are copied
/// to all places. Rows that are the tokens themselves are copied from the tokens.
template <peerbus::token_codec Codec>
class copy_encoder {
 public:
  explicit copy_encoder(std::size_t hidden)
      : row_(Codec::row_bytes(hidden)), scales_(Codec::scale_bytes(hidden)) {}

  /// Writes a token to all `rows`, and its scales to as many places. For threads that take turns.
  void encode(std::span<const peerbus::token_of<Codec>> token, std::span<std::byte* const> rows,
              std::span<std::byte* const> scales) noexcept {
    if constexpr (peerbus::verbatim_codec<Codec>) {
      for (std::byte* const row : rows) std::memcpy(row, token.data(), token.size_bytes());
    } else {
      codec_.encode(token, row_, scales_);
      for (std::byte* const row : rows) std::memcpy(row, row_.data(), row_.size());
      for (std::byte* const place : scales) std::memcpy(place, scales_.data(), scales_.size());
    }
  }

 private:
  Codec codec_{};
  std::vector<std::byte> row_;
  std::vector<std::byte> scales_;
};

}  // namespace bench

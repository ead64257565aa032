// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/transport/simulated.hpp>

namespace peerbus {

/// The codec `Codec` that takes a simulated rank `simulated_costs::token_ns` for each token that it
/// encodes. The format and its name are those of `Codec`.
template <token_codec Codec>
class charged : public Codec {
 public:
  /// Tokens are copied through `encode`, so that it can charge them.
  static constexpr bool verbatim = false;

  /// If `writes` is false, charges tokens and leaves rows as they are: for simulations that do not
  /// carry rows.
  explicit charged(Codec codec = {}, bool writes = true) noexcept : Codec{codec}, writes_{writes} {}

  /// As that of `Codec`, for the time of a token.
  void encode(std::span<const token_of<Codec>> token, std::span<std::byte> row,
              std::span<std::byte> scales) const noexcept {
    simulated::advance_tokens(1);
    if (writes_) Codec::encode(token, row, scales);
  }

 private:
  bool writes_;
};

static_assert(token_codec<charged<codec::bf16>> && !verbatim_codec<charged<codec::bf16>>);

}  // namespace peerbus

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/transport/simulated.hpp>

namespace peerbus {

/// The codec `Codec`, charged to a simulated rank with `simulated_costs::token_ns` for each token
/// that it encodes. The format and its name are those of `Codec`.
template <token_codec Codec>
class charged : public Codec {
 public:
  /// False, so that tokens are copied through `encode`, which charges them.
  static constexpr bool verbatim = false;

  /// Makes the codec over `codec`. If `writes` is false, it charges tokens and does not write rows,
  /// for simulations that do not carry rows.
  explicit charged(Codec codec = {}, bool writes = true) noexcept : Codec{codec}, writes_{writes} {}

  /// Encodes as `Codec` does, and charges the time of a token.
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

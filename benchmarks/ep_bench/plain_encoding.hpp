// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/core/bf16.hpp>

#include "support/pages.hpp"

namespace ep_bench {

/// The encoding that any dispatch must do: each token once, to memory that is near.
template <class Codec>
class plain_encoding {
 public:
  plain_encoding(std::size_t tokens, std::size_t hidden)
      : tokens_{tokens},
        hidden_{hidden},
        rows_(tokens * Codec::row_bytes(hidden)),
        scales_(tokens * Codec::scale_bytes(hidden)) {}

  void run(std::span<const peerbus::bf16> tokens) noexcept {
    const std::size_t row_bytes = Codec::row_bytes(hidden_);
    const std::size_t scale_bytes = Codec::scale_bytes(hidden_);
    for (std::size_t t = 0; t < tokens_; ++t)
      codec_.encode(tokens.subspan(t * hidden_, hidden_),
                    rows_.all().subspan(t * row_bytes, row_bytes),
                    scales_.all().subspan(t * scale_bytes, scale_bytes));
  }

 private:
  std::size_t tokens_;
  std::size_t hidden_;
  Codec codec_{};
  bench::pages<std::byte> rows_;
  bench::pages<std::byte> scales_;
};

}  // namespace ep_bench

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include "ep_bench/payload.hpp"
#include "support/pages.hpp"

namespace ep_bench {

/// The encoding that any dispatch must do: each token once, to memory that is near.
class plain_encoding {
 public:
  plain_encoding(std::size_t tokens, const wire_format& format)
      : tokens_{tokens},
        format_{format},
        rows_(tokens * format.row_bytes),
        scales_(tokens * format.scale_bytes) {}

  void run(std::span<const std::byte> tokens) noexcept {
    for (std::size_t t = 0; t < tokens_; ++t)
      format_.encode(tokens.subspan(t * format_.token_bytes, format_.token_bytes),
                     rows_.all().subspan(t * format_.row_bytes, format_.row_bytes),
                     scales_.all().subspan(t * format_.scale_bytes, format_.scale_bytes));
  }

 private:
  std::size_t tokens_;
  wire_format format_;
  bench::pages<std::byte> rows_;
  bench::pages<std::byte> scales_;
};

}  // namespace ep_bench

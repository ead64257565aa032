// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::deep_ep {

/// Adds up, for each token, the rows that the experts of a rank have made of it. DeepEP V2 does
/// this with `allow_multiple_reduction` before it sends one row home. `x` is bfloat16 [M, H], the
/// last dimension contiguous; `slots` int32 [N, K], the row of each slot of each token, or -1;
/// `sums` bfloat16 [N, H]. sums[n] is the bfloat16 nearest to the sum of the rows of token n, added
/// in f32 in the order of its slots, and zeros if token n has no rows. Does not communicate.
/// Cost: one pass over the rows.
/// Throws: `error` invalid_argument, before anything is written, for other forms, a row that `x`
/// does not have, or more than `moe::max_top_k` slots.
inline void fold_rows(const const_tensor& x, const const_tensor& slots, const tensor& sums) {
  constexpr std::string_view call = "fold_rows";
  detail::require_form({call, "x"}, x, {{dtype::bfloat16}, {detail::any, detail::any}, false});
  detail::require_form({call, "slots"}, slots, {{dtype::int32}, {detail::any, detail::any}});
  const std::size_t tokens = slots.size(0);
  const std::size_t top_k = slots.size(1);
  const std::size_t hidden = x.size(1);
  detail::require_form({call, "sums"}, sums, {{dtype::bfloat16}, {tokens, hidden}});
  const detail::argument places{call, "slots"};
  places.require(top_k <= moe::max_top_k, "has ", top_k, " columns, expected at most ",
                 moe::max_top_k);
  const auto row_of = slots.values<std::int32_t>();
  for (std::size_t i = 0; i < row_of.size(); ++i)
    places.require(row_of[i] >= -1 && row_of[i] < static_cast<std::ptrdiff_t>(x.size(0)), "has ",
                   row_of[i], " at [", i / top_k, ", ", i % top_k, "], expected -1 or a row below ",
                   x.size(0));
  if (hidden == 0) return;
  const auto* const first = x.as<bf16>();
  auto* const out = sums.as<bf16>();
  std::array<const bf16*, moe::max_top_k> rows{};
  std::array<float, moe::max_top_k> ones{};
  ones.fill(1.0F);
  for (std::size_t t = 0; t < tokens; ++t) {
    std::size_t count = 0;
    for (const std::int32_t row : row_of.subspan(t * top_k, top_k))
      if (row >= 0) rows[count++] = first + static_cast<std::size_t>(row) * x.stride(0);
    kernel::best().weighted_sum(rows.data(), ones.data(), count, hidden, out + t * hidden);
  }
}

}  // namespace peerbus::deep_ep

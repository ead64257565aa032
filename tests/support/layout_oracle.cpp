// SPDX-License-Identifier: MIT
#include "support/layout_oracle.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "support/arithmetic.hpp"
#include "support/oracle.hpp"

namespace oracle {

std::vector<std::byte> attachment_of(std::size_t rank, std::size_t token, std::size_t a,
                                     std::size_t size, std::uint64_t seed) {
  random numbers{((seed * 977 + rank) * 100'003 + token) * 5 + a};
  std::vector<std::byte> made(size);
  for (std::byte& byte : made) byte = static_cast<std::byte>(numbers.next() >> 56);
  return made;
}

std::vector<expert_block> blocks_of(const shape& of, const std::vector<input>& inputs,
                                    std::size_t at, const expert_major& rule) {
  std::vector<expert_block> result;
  const auto owner = owners(of);
  std::size_t row = 0;
  for (std::size_t e = 0; e < of.experts; ++e) {
    if (owner[e] != at) continue;
    expert_block block{e, row, 0, {}};
    for (std::size_t r = 0; r < inputs.size(); ++r)
      for (std::size_t t = 0; t < inputs[r].count; ++t)
        for (std::size_t k = 0; k < of.top_k; ++k)
          if (inputs[r].experts[t * of.top_k + k] == static_cast<std::int64_t>(e))
            block.rows.push_back({r, t, k});
    block.padded = rule.rows_of_expert != 0 ? rule.rows_of_expert : block.rows.size();
    while ((row + block.padded) % rule.alignment != 0) ++block.padded;
    row += block.padded;
    result.push_back(std::move(block));
  }
  return result;
}

std::vector<token_at_rank> tokens_at(const shape& of, const std::vector<input>& inputs,
                                     std::size_t at) {
  std::vector<token_at_rank> result;
  const auto owner = owners(of);
  const auto first =
      static_cast<std::int64_t>(std::find(owner.begin(), owner.end(), at) - owner.begin());
  for (std::size_t r = 0; r < inputs.size(); ++r)
    for (std::size_t t = 0; t < inputs[r].count; ++t) {
      token_at_rank row{{r, t, 0}, {}, {}};
      std::vector<bool> goes_to(of.ranks);
      for (std::size_t k = 0; k < of.top_k; ++k) {
        const std::int64_t e = inputs[r].experts[t * of.top_k + k];
        if (e != -1) goes_to[owner[static_cast<std::size_t>(e)]] = true;
        const bool here = e != -1 && owner[static_cast<std::size_t>(e)] == at;
        row.experts.push_back(here ? static_cast<std::int32_t>(e - first) : -1);
        row.weights.push_back(here ? inputs[r].weights[t * of.top_k + k] : 0.0F);
      }
      if (!goes_to[at]) continue;
      row.from.slot = static_cast<std::size_t>(
          std::count(goes_to.begin(), goes_to.begin() + static_cast<std::ptrdiff_t>(at), true));
      result.push_back(std::move(row));
    }
  return result;
}

std::vector<peerbus::bf16> combined_by_rank(const shape& of, const input& mine,
                                            encode_function encode) {
  std::vector<peerbus::bf16> result;
  const auto owner = owners(of);
  for (std::size_t t = 0; t < mine.count; ++t) {
    const row received = encode(token_of(of, mine, t));
    std::vector<float> sums(of.hidden);
    for (std::size_t r = 0; r < of.ranks; ++r) {
      bool any = false;
      std::vector<float> partial(of.hidden);
      for (std::size_t k = 0; k < of.top_k; ++k) {
        const std::int64_t e = mine.experts[t * of.top_k + k];
        if (e == -1 || owner[static_cast<std::size_t>(e)] != r) continue;
        any = true;
        add_outputs(static_cast<std::size_t>(e), mine.weights[t * of.top_k + k], received.values,
                    partial);
      }
      if (!any) continue;
      std::vector<peerbus::bf16> rounded(of.hidden);
      round(partial, rounded);
      for (std::size_t h = 0; h < of.hidden; ++h) sums[h] += widen(rounded[h]);
    }
    result.resize(result.size() + of.hidden);
    round(sums, std::span{result}.last(of.hidden));
  }
  return result;
}

}  // namespace oracle

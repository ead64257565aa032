// SPDX-License-Identifier: MIT
#include "deep_ep/normal_form.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <peerbus/compat/deep_ep/normal.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>

#include "deep_ep/deep_ep_oracle.hpp"
#include "support/oracle.hpp"

namespace normal {

std::vector<std::byte> payload(const problem& p, const origin& from, dtype type) {
  if (type != dtype::bfloat16) return oracle::deep_ep::bytes_of_token(p, from, p.of.hidden, 0);
  const auto values = oracle::deep_ep::token_values(p, from);
  return oracle::bytes_of(std::span<const bf16>{values});
}

std::size_t scale_words(const problem& p, scale_form form) {
  return form == scale_form::flat ? 1 : p.of.hidden / 128 + 1;
}

std::vector<std::byte> scales(const problem& p, const origin& from, scale_form form) {
  return oracle::deep_ep::bytes_of_token(p, from, scale_words(p, form) * 4, 1);
}

float value_of(std::span<const std::byte> row, std::size_t h, dtype type) {
  if (type != dtype::bfloat16) return (static_cast<float>(row[h]) - 128.0F) / 64.0F;
  std::uint16_t bits = 0;
  std::memcpy(&bits, row.data() + 2 * h, 2);
  return oracle::widen(bf16::from_bits(bits));
}

given::given(const problem& p, std::size_t rank, const form& how)
    : how_{how},
      tokens_{p.ranks[rank].tokens},
      hidden_{p.of.hidden},
      top_k_{p.of.top_k},
      words_{scale_words(p, how.scales)},
      weights_{p.ranks[rank].weights},
      wide_{p.ranks[rank].ids} {
  for (const std::int64_t id : wide_) narrow_.push_back(static_cast<std::int32_t>(id));
  scales_.resize(tokens_ * words_ * 4);
  for (std::size_t t = 0; t < tokens_; ++t) {
    const auto row = payload(p, {rank, t}, how.type);
    x_.insert(x_.end(), row.begin(), row.end());
    if (how.scales == scale_form::none) continue;
    const auto words = scales(p, {rank, t}, how.scales);
    for (std::size_t s = 0; s < words_; ++s) {
      const std::size_t at = how.scales == scale_form::columns ? s * tokens_ + t : t * words_ + s;
      std::memcpy(scales_.data() + 4 * at, words.data() + 4 * s, 4);
    }
  }
}

}  // namespace normal

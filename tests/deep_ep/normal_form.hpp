// SPDX-License-Identifier: MIT
#pragma once

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

/// What a rank gives to a dispatch of DeepEP's normal mode.
namespace normal {

using oracle::origin;
using oracle::deep_ep::problem;
using peerbus::bf16;
using peerbus::deep_ep::const_tensor;
using peerbus::deep_ep::dtype;
using peerbus::deep_ep::tensor;

enum class scale_form { none, rows, columns, flat };

/// What calls look like, apart from the routing.
struct form {
  dtype type = dtype::bfloat16;
  scale_form scales = scale_form::none;
  dtype scale_type = dtype::float32;
  bool with_topk = true;
  bool narrow_ids = false;
  std::size_t alignment = 1;
  std::size_t worst = 0;
  std::size_t biases = 0;
  bool async = false;
  bool weights = true;       ///< come along in combine
  bool own_weights = false;  ///< others than dispatch brought, different on each rank
  bool strided = false;      ///< combine's rows have gaps
};

/// The bytes of a token as they travel.
inline std::vector<std::byte> payload(const problem& p, const origin& from, dtype type) {
  if (type != dtype::bfloat16) return oracle::deep_ep::bytes_of_token(p, from, p.of.hidden, 0);
  const auto values = oracle::deep_ep::token_values(p, from);
  return oracle::bytes_of(std::span<const bf16>{values});
}
inline std::size_t scale_words(const problem& p, scale_form form) {
  return form == scale_form::flat ? 1 : p.of.hidden / 128 + 1;
}
inline std::vector<std::byte> scales(const problem& p, const origin& from, scale_form form) {
  return oracle::deep_ep::bytes_of_token(p, from, scale_words(p, form) * 4, 1);
}
inline float value_of(std::span<const std::byte> row, std::size_t h, dtype type) {
  if (type != dtype::bfloat16) return (static_cast<float>(row[h]) - 128.0F) / 64.0F;
  std::uint16_t bits = 0;
  std::memcpy(&bits, row.data() + 2 * h, 2);
  return oracle::widen(bf16::from_bits(bits));
}

/// What one rank gives to a dispatch.
class given {
 public:
  given(const problem& p, std::size_t rank, const form& how)
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

  [[nodiscard]] const_tensor x() const { return {x_.data(), how_.type, {tokens_, hidden_}}; }
  [[nodiscard]] const_tensor x_scales() const {
    switch (how_.scales) {
      case scale_form::rows: return {scales_.data(), how_.scale_type, {tokens_, words_}};
      case scale_form::columns:
        return {scales_.data(), how_.scale_type, {tokens_, words_}, {1, tokens_}};
      case scale_form::flat: return {scales_.data(), how_.scale_type, {tokens_}};
      case scale_form::none: break;
    }
    return {};
  }
  [[nodiscard]] const_tensor ids() const {
    if (how_.narrow_ids) return {narrow_.data(), dtype::int32, {tokens_, top_k_}};
    return {wide_.data(), dtype::int64, {tokens_, top_k_}};
  }
  [[nodiscard]] const_tensor weights() const {
    return {weights_.data(), dtype::float32, {tokens_, top_k_}};
  }

  [[nodiscard]] peerbus::deep_ep::dispatch_args fresh(
      const peerbus::deep_ep::dispatch_layout& layout) const {
    peerbus::deep_ep::dispatch_args args;
    args.x = x();
    args.x_scales = x_scales();
    const const_tensor& per_rank = layout.num_tokens_per_rank;
    const const_tensor& in_rank = layout.is_token_in_rank;
    const const_tensor& per_expert = layout.num_tokens_per_expert;
    args.num_tokens_per_rank = per_rank;
    args.is_token_in_rank = in_rank;
    args.num_tokens_per_expert = per_expert;
    if (how_.with_topk) {
      args.topk_idx = ids();
      args.topk_weights = weights();
    }
    args.expert_alignment = how_.alignment;
    args.num_worst_tokens = how_.worst;
    args.async_finish = how_.async;
    return args;
  }
  [[nodiscard]] peerbus::deep_ep::dispatch_args along(
      const peerbus::deep_ep::dispatch_handle& handle) const {
    peerbus::deep_ep::dispatch_args args;
    args.x = x();
    args.x_scales = x_scales();
    args.handle = handle;
    args.async_finish = how_.async;
    return args;
  }

 private:
  form how_;
  std::size_t tokens_;
  std::size_t hidden_;
  std::size_t top_k_;
  std::size_t words_;
  std::vector<std::byte> x_;
  std::vector<std::byte> scales_;
  std::vector<float> weights_;
  std::vector<std::int64_t> wide_;
  std::vector<std::int32_t> narrow_;
};

}  // namespace normal

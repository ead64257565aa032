// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
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
std::vector<std::byte> payload(const problem& p, const origin& from, dtype type);
std::size_t scale_words(const problem& p, scale_form form);
std::vector<std::byte> scales(const problem& p, const origin& from, scale_form form);
float value_of(std::span<const std::byte> row, std::size_t h, dtype type);

/// What one rank gives to a dispatch.
class given {
 public:
  given(const problem& p, std::size_t rank, const form& how);

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

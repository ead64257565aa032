// SPDX-License-Identifier: MIT
#include "deep_ep/normal_round.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/compat/deep_ep/normal.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>

#include "deep_ep/deep_ep_oracle.hpp"
#include "deep_ep/normal_form.hpp"
#include "support/arithmetic.hpp"
#include "support/exchange_check.hpp"
#include "support/ranks.hpp"

namespace normal {
namespace {

void expect_form(const const_tensor& given, dtype type, std::initializer_list<std::size_t> sizes,
                 std::string_view name) {
  const const_tensor expected{nullptr, type, sizes};
  test::expect_equal(given.describe(), expected.describe(), name);
}

// An expert that a row goes to, with the weight that its token gives it.
struct chosen_expert {
  std::size_t id;
  float weight;
};

// Returns the experts of `rank` that a row goes to, in order of slots.
std::vector<chosen_expert> chosen_experts(const problem& p, std::size_t rank, const origin& from) {
  namespace plain = oracle::deep_ep;
  std::vector<chosen_expert> chosen;
  for (std::size_t k = 0; k < p.of.top_k; ++k)
    if (const auto id = plain::local_id(p, from, k, rank); id != -1)
      chosen.push_back(
          {plain::first_expert(p, rank) + static_cast<std::size_t>(id), plain::weight(p, from, k)});
  return chosen;
}

// Writes the weighted sum of what `experts` make of a row. Without topk_idx, writes what the rank
// makes of it.
void run_experts(const std::vector<chosen_expert>& experts, std::size_t rank,
                 std::span<const float> row, const form& how, std::span<bf16> out) {
  if (!how.with_topk) return oracle::apply(rank, row, out);
  std::vector<float> sums(row.size());
  for (const chosen_expert& expert : experts)
    oracle::add_outputs(expert.id, expert.weight, row, sums);
  oracle::round(sums, out);
}

// Returns the values of a row that lies in `bytes`.
std::vector<float> values_of(std::span<const std::byte> bytes, std::size_t hidden, dtype type) {
  std::vector<float> values(hidden);
  for (std::size_t h = 0; h < hidden; ++h) values[h] = value_of(bytes, h, type);
  return values;
}

// What `rank` sends home in slot `k` of a row.
float weight_home(const problem& p, std::size_t rank, const origin& from, std::size_t k,
                  const form& how) {
  if (how.own_weights)
    return static_cast<float>((from.token * 31 + k * 17 + rank * 7 + p.seed) % 101) / 7.0F - 3.0F;
  return oracle::deep_ep::local_id(p, from, k, rank) == -1 ? 0.0F
                                                           : oracle::deep_ep::weight(p, from, k);
}

float bias_of(const problem& p, std::size_t rank, std::size_t b, std::size_t t, std::size_t h) {
  const std::size_t mixed = (rank * 977 + t * 131 + h * 29 + b * 53 + p.seed * 7) % 1009;
  return oracle::widen(oracle::round(static_cast<float>(mixed) / 77.0F - 6.0F));
}

}  // namespace

void check_layout(const peerbus::deep_ep::dispatch_layout& got, const problem& p,
                  std::size_t rank) {
  namespace plain = oracle::deep_ep;
  const std::size_t tokens = p.ranks[rank].tokens;
  expect_form(got.num_tokens_per_rank, dtype::int32, {p.of.ranks}, "num_tokens_per_rank");
  expect_form(got.num_tokens_per_expert, dtype::int32, {p.of.experts}, "num_tokens_per_expert");
  expect_form(got.is_token_in_rank, dtype::boolean, {tokens, p.of.ranks}, "is_token_in_rank");
  test::expect(!got.num_tokens_per_rdma_rank, "no num_tokens_per_rdma_rank");
  for (std::size_t r = 0; r < p.of.ranks; ++r) {
    test::expect_equal(got.num_tokens_per_rank.at<std::int32_t>(r),
                       static_cast<std::int32_t>(plain::tokens_for(p, rank, r)),
                       "num_tokens_per_rank of ", r);
    for (std::size_t t = 0; t < tokens; ++t)
      test::expect_equal(got.is_token_in_rank.at<bool>(t, r), plain::goes_to(p, rank, t, r),
                         "is_token_in_rank of token ", t, ", rank ", r);
  }
  for (std::size_t e = 0; e < p.of.experts; ++e)
    test::expect_equal(got.num_tokens_per_expert.at<std::int32_t>(e),
                       static_cast<std::int32_t>(plain::slots_naming(p, rank, e)),
                       "num_tokens_per_expert of ", e);
}

std::span<const std::byte> bytes_of_row(const const_tensor& from, std::size_t row) {
  const std::size_t columns = from.dims() == 1 ? 1 : from.size(1);
  const std::size_t bytes = columns * bytes_of(from.type());
  return {static_cast<const std::byte*>(from.data()) + row * bytes, bytes};
}

std::uint64_t check_rows(const peerbus::deep_ep::dispatch_result& got, const problem& p,
                         std::size_t rank, const form& how, std::uint64_t hashed) {
  const auto rows = oracle::deep_ep::arrivals(p, rank);
  const std::size_t shown = how.worst == 0 ? rows.size() : how.worst;
  expect_form(got.recv_x, how.type, {shown, p.of.hidden}, "recv_x");
  if (how.scales == scale_form::flat)
    expect_form(got.recv_x_scales, how.scale_type, {shown}, "recv_x_scales");
  else if (how.scales != scale_form::none)
    expect_form(got.recv_x_scales, how.scale_type, {shown, scale_words(p, how.scales)},
                "recv_x_scales");
  else
    test::expect(!got.recv_x_scales, "no recv_x_scales");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto expect_row = [&](const tensor& from, const std::vector<std::byte>& expected,
                                std::string_view name) {
      const auto row = bytes_of_row(from, i);
      test::expect_same_bytes(row, expected, name, " row ", i);
      hashed = test::hash(hashed, row);
    };
    expect_row(got.recv_x, payload(p, rows[i], how.type), "recv_x");
    if (how.scales != scale_form::none)
      expect_row(got.recv_x_scales, scales(p, rows[i], how.scales), "recv_x_scales");
  }
  return hashed;
}

void check_routing(const peerbus::deep_ep::dispatch_result& got, const problem& p, std::size_t rank,
                   const form& how) {
  namespace plain = oracle::deep_ep;
  const auto rows = plain::arrivals(p, rank);
  const std::size_t shown = how.worst == 0 ? rows.size() : how.worst;
  const std::size_t top_k = p.of.top_k;
  if (how.with_topk) {
    expect_form(got.recv_topk_idx, dtype::int64, {shown, top_k}, "recv_topk_idx");
    expect_form(got.recv_topk_weights, dtype::float32, {shown, top_k}, "recv_topk_weights");
    for (std::size_t i = 0; i < shown; ++i)
      for (std::size_t k = 0; k < top_k; ++k) {
        const auto id = i < rows.size() ? plain::local_id(p, rows[i], k, rank) : -1;
        test::expect_equal(got.recv_topk_idx.at<std::int64_t>(i, k), id, "recv_topk_idx of row ", i,
                           ", slot ", k);
        const float weight = id == -1 ? 0.0F : plain::weight(p, rows[i], k);
        test::expect_equal(got.recv_topk_weights.at<float>(i, k), weight,
                           "recv_topk_weights of row ", i, ", slot ", k);
      }
  } else {
    test::expect(!got.recv_topk_idx && !got.recv_topk_weights, "no slots without topk_idx");
  }

  const auto& list = got.num_recv_tokens_per_expert_list;
  test::expect_equal(list.size(), how.worst == 0 ? plain::local_experts(p, rank) : 0,
                     "size of num_recv_tokens_per_expert_list");
  for (std::size_t e = 0; e < list.size(); ++e) {
    std::size_t count = 0;
    for (std::size_t r = 0; r < p.of.ranks; ++r)
      count += plain::slots_naming(p, r, plain::first_expert(p, rank) + e);
    while (count % how.alignment != 0) ++count;
    test::expect_equal(list[e], static_cast<std::int32_t>(count), "tokens of local expert ", e);
  }

  const auto& handle = got.handle;
  test::expect(static_cast<bool>(handle), "a handle");
  expect_form(handle.rank_prefix, dtype::int32, {p.of.ranks}, "rank_prefix");
  expect_form(handle.recv_src_idx, dtype::int32, {shown}, "recv_src_idx");
  expect_form(handle.is_token_in_rank, dtype::boolean, {p.ranks[rank].tokens, p.of.ranks},
              "the handle's is_token_in_rank");
  std::size_t before = 0;
  for (std::size_t r = 0; r < p.of.ranks; ++r) {
    before += plain::tokens_for(p, r, rank);
    test::expect_equal(handle.rank_prefix.at<std::int32_t>(r), static_cast<std::int32_t>(before),
                       "rank_prefix of ", r);
    for (std::size_t t = 0; t < p.ranks[rank].tokens; ++t)
      test::expect_equal(handle.is_token_in_rank.at<bool>(t, r), plain::goes_to(p, rank, t, r),
                         "the handle's is_token_in_rank of token ", t, ", rank ", r);
  }
  for (std::size_t i = 0; i < shown; ++i)
    test::expect_equal(handle.recv_src_idx.at<std::int32_t>(i),
                       i < rows.size() ? static_cast<std::int32_t>(rows[i].token) : -1,
                       "recv_src_idx of row ", i);
}

std::uint64_t check_combined(const peerbus::deep_ep::combine_result& got, const problem& p,
                             std::size_t rank, const form& how, std::uint64_t hashed) {
  namespace plain = oracle::deep_ep;
  const std::size_t tokens = p.ranks[rank].tokens;
  expect_form(got.combined_x, dtype::bfloat16, {tokens, p.of.hidden}, "combined_x");
  if (how.weights)
    expect_form(got.combined_topk_weights, dtype::float32, {tokens, p.of.top_k},
                "combined_topk_weights");
  else
    test::expect(!got.combined_topk_weights, "no combined_topk_weights");
  for (std::size_t t = 0; t < tokens; ++t) {
    const origin self{rank, t};
    std::vector<std::size_t> to;
    std::vector<std::vector<chosen_expert>> experts;  // Of each rank in `to`.
    for (std::size_t r = 0; r < p.of.ranks; ++r)
      if (plain::goes_to(p, rank, t, r)) {
        to.push_back(r);
        experts.push_back(chosen_experts(p, r, self));
      }
    std::vector<float> sums(p.of.hidden);
    for (std::size_t b = 0; b < how.biases; ++b)
      for (std::size_t h = 0; h < p.of.hidden; ++h) sums[h] += bias_of(p, rank, b, t, h);
    const auto sent = values_of(payload(p, self, how.type), p.of.hidden, how.type);
    std::vector<bf16> expected(p.of.hidden);
    for (std::size_t i = 0; i < to.size(); ++i) {
      run_experts(experts[i], to[i], sent, how, expected);
      for (std::size_t h = 0; h < p.of.hidden; ++h) sums[h] += oracle::widen(expected[h]);
    }
    oracle::round(sums, expected);
    for (std::size_t h = 0; h < p.of.hidden; ++h)
      if (const bf16 value = got.combined_x.at<bf16>(t, h); value != expected[h])
        test::fail("combined_x of token ", t, ", channel ", h, ": is ", static_cast<float>(value),
                   ", expected ", oracle::widen(expected[h]));
    hashed = test::hash(hashed, bytes_of_row(got.combined_x, t));
    for (std::size_t k = 0; k < p.of.top_k && how.weights; ++k) {
      float sum = 0;
      for (const std::size_t r : to) sum += weight_home(p, r, self, k, how);
      test::expect_equal(got.combined_topk_weights.at<float>(t, k), sum,
                         "combined_topk_weights of token ", t, ", slot ", k);
    }
  }
  return hashed;
}

outputs::outputs(const const_tensor& recv_x, const problem& p, std::size_t rank, const form& how)
    : how_{how},
      top_k_{p.of.top_k},
      hidden_{p.of.hidden},
      row_{how.strided ? hidden_ + 24 : hidden_},
      tokens_{p.ranks[rank].tokens} {
  const auto rows = oracle::deep_ep::arrivals(p, rank);
  count_ = how.worst == 0 ? rows.size() : how.worst;
  // What did not arrive has no influence.
  y_.assign(count_ * row_, bf16::from_bits(0x7fc0));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = values_of(bytes_of_row(recv_x, i), hidden_, how.type);
    run_experts(chosen_experts(p, rank, rows[i]), rank, row, how,
                std::span{y_}.subspan(i * row_, hidden_));
    for (std::size_t k = 0; k < top_k_ && how.weights; ++k)
      weights_.push_back(weight_home(p, rank, rows[i], k, how));
  }
  if (how.weights) weights_.resize(count_ * top_k_, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t b = 0; b < how.biases; ++b)
    for (std::size_t t = 0; t < tokens_; ++t)
      for (std::size_t h = 0; h < hidden_; ++h)
        bias_[b].push_back(oracle::round(bias_of(p, rank, b, t, h)));
}

}  // namespace normal

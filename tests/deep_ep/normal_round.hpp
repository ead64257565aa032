// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/compat/deep_ep/normal.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>

#include "deep_ep/normal_form.hpp"
#include "support/ranks.hpp"

/// One dispatch and one combine of DeepEP's normal mode, checked against the oracle.
namespace normal {

// --- dispatch ------------------------------------------------------------------------------------

/// Checks what `get_dispatch_layout` counted.
void check_layout(const peerbus::deep_ep::dispatch_layout& got, const problem& p, std::size_t rank);

/// Row `row` of a contiguous tensor, as bytes.
std::span<const std::byte> bytes_of_row(const const_tensor& from, std::size_t row);

/// Checks payload and scales bit by bit. Returns: `hashed` and all of it hashed.
std::uint64_t check_rows(const peerbus::deep_ep::dispatch_result& got, const problem& p,
                         std::size_t rank, const form& how, std::uint64_t hashed = 1);

/// Checks all that only a dispatch without a handle returns.
void check_routing(const peerbus::deep_ep::dispatch_result& got, const problem& p, std::size_t rank,
                   const form& how);

// --- combine -------------------------------------------------------------------------------------

/// What one rank gives to a combine: made from the rows that came, and from nothing else.
class outputs {
 public:
  outputs(const const_tensor& recv_x, const problem& p, std::size_t rank, const form& how);

  [[nodiscard]] peerbus::deep_ep::combine_args args(
      const peerbus::deep_ep::dispatch_handle& handle) const {
    peerbus::deep_ep::combine_args made;
    made.x = {y_.data(), dtype::bfloat16, {count_, hidden_}, {row_, 1}};
    made.handle = handle;
    if (how_.weights) made.topk_weights = {weights_.data(), dtype::float32, {count_, top_k_}};
    for (std::size_t b = 0; b < how_.biases; ++b)
      made.bias[b] = {bias_[b].data(), dtype::bfloat16, {tokens_, hidden_}};
    made.async_finish = how_.async;
    return made;
  }

 private:
  form how_;
  std::size_t top_k_;
  std::size_t hidden_;
  std::size_t row_;
  std::size_t tokens_;
  std::size_t count_ = 0;
  std::vector<bf16> y_;
  std::vector<float> weights_;
  std::array<std::vector<bf16>, 2> bias_;
};

/// Checks a combine bit by bit: biases first, then ranks in order, in f32, rounded once.
/// Returns: `hashed` and all of it hashed.
std::uint64_t check_combined(const peerbus::deep_ep::combine_result& got, const problem& p,
                             std::size_t rank, const form& how, std::uint64_t hashed = 1);

// --- both ----------------------------------------------------------------------------------------

/// A dispatch by a fresh routing, all of it checked.
template <class Buffer>
peerbus::deep_ep::dispatch_result dispatched(Buffer& buffer, const problem& p, std::size_t rank,
                                             const form& how) {
  const given mine{p, rank, how};
  const auto layout = buffer.get_dispatch_layout(mine.ids(), p.of.experts);
  check_layout(layout, p, rank);
  const auto got = buffer.dispatch(mine.fresh(layout));
  got.event.current_stream_wait();
  static_cast<void>(check_rows(got, p, rank, how));
  check_routing(got, p, rank, how);
  return got;
}
/// Another along the ways of `handle`.
template <class Buffer>
peerbus::deep_ep::dispatch_result dispatched_along(
    Buffer& buffer, const problem& p, std::size_t rank, const form& how,
    const peerbus::deep_ep::dispatch_handle& handle) {
  const auto got = buffer.dispatch(given{p, rank, how}.along(handle));
  static_cast<void>(check_rows(got, p, rank, how));
  test::expect(!got.recv_topk_idx && !got.recv_topk_weights && !got.handle &&
                   got.num_recv_tokens_per_expert_list.empty(),
               "nothing but rows from a dispatch with a handle");
  return got;
}
/// A combine of what experts made of `recv_x`, checked. Returns: a hash of it.
template <class Buffer>
std::uint64_t combined(Buffer& buffer, const problem& p, std::size_t rank, const form& how,
                       const peerbus::deep_ep::dispatch_handle& handle,
                       const const_tensor& recv_x) {
  const outputs mine{recv_x, p, rank, how};
  const auto got = buffer.combine(mine.args(handle));
  got.event.current_stream_wait();
  got.event.current_stream_wait();  // May be waited for again.
  return check_combined(got, p, rank, how);
}

/// Returns: a hash of all that came.
template <class Buffer>
std::uint64_t round_trip(Buffer& buffer, const problem& p, std::size_t rank, const form& how) {
  const auto got = dispatched(buffer, p, rank, how);
  const std::uint64_t rows = check_rows(got, p, rank, how);
  return rows * 31 + combined(buffer, p, rank, how, got.handle, got.recv_x);
}

}  // namespace normal

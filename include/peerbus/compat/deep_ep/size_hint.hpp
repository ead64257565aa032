// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_bytes.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>

/// @file
/// The memory that DeepEP asks for, by the formulas of its version 1 (commit dd758ca), and the
/// memory that peerbus needs for the same calls.
namespace peerbus::deep_ep {

/// Returns the size in bytes that DeepEP's `get_low_latency_rdma_size_hint` returns, per rank and
/// for the buffer alone. The tensors that dispatch returns need further memory. Returns 2^63 or
/// more if the arguments are too large. `num_ranks` has no influence.
constexpr std::size_t low_latency_rdma_size_hint(std::size_t num_max_dispatch_tokens_per_rank,
                                                 std::size_t hidden,
                                                 [[maybe_unused]] std::size_t num_ranks,
                                                 std::size_t num_experts) noexcept {
  return detail::low_latency_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_experts);
}

/// Returns the size in bytes that version 2's `get_buffer_size_hint` returns for ranks within one
/// NVLink domain, by the formula of commit dd758ca: the larger of a dispatch and a combine, in
/// units of 2 MiB. A `num_topk` of 0 stands for 32. Returns 2^63 if the arguments are too large.
constexpr std::size_t ep_buffer_size_hint(std::size_t num_ranks,
                                          std::size_t num_max_tokens_per_rank, std::size_t hidden,
                                          std::size_t num_topk, bool use_fp8_dispatch,
                                          bool allow_multiple_reduction) noexcept {
  const std::size_t top_k = num_topk == 0 ? 32 : num_topk;
  const double most_of_token =
      256.0 + 3.0 * static_cast<double>(hidden) + 12.0 * static_cast<double>(top_k);
  const double copies_of_token = static_cast<double>(num_ranks) + static_cast<double>(top_k);
  if (static_cast<double>(num_max_tokens_per_rank) * copies_of_token * most_of_token >= 0x1p63)
    return detail::too_many_bytes;
  const std::size_t scales = use_fp8_dispatch ? (hidden + 31) / 32 * 4 : 0;
  const std::size_t dispatched = align_up(use_fp8_dispatch ? hidden : 2 * hidden, 32) +
                                 align_up(scales, 32) + align_up(top_k * 8 + (1 + top_k) * 4, 32);
  const std::size_t combined = align_up(2 * hidden, 32) + align_up(top_k * 8, 32);
  const std::size_t copies = allow_multiple_reduction ? std::min(num_ranks, top_k) : top_k;
  return align_up(num_max_tokens_per_rank * std::max(num_ranks * dispatched, copies * combined),
                  std::size_t{2} << 20);
}

/// DeepEP's `Config`: the sizes of the chunks into which its normal mode cuts transfers. peerbus
/// has no chunks; the members serve `nvl_buffer_size_hint`.
struct config {
  std::size_t num_sms = 20;                         ///< two for each channel
  std::size_t num_max_nvl_chunked_send_tokens = 6;  ///< tokens of a chunk within a node
  /// Tokens of one rank that a channel has room for.
  std::size_t num_max_nvl_chunked_recv_tokens = 256;
  std::size_t num_max_rdma_chunked_send_tokens = 6;  ///< tokens of a chunk between nodes
  /// Tokens that there is room for between nodes.
  std::size_t num_max_rdma_chunked_recv_tokens = 256;

  /// Returns the configuration that DeepEP makes of this one: `num_max_rdma_chunked_recv_tokens` is
  /// rounded up to a multiple of `num_max_rdma_chunked_send_tokens`, so that at least two chunks
  /// fit.
  /// Throws: `error` (`invalid_argument`) that names the member that DeepEP would not accept.
  [[nodiscard]] constexpr config checked() const {
    if (num_sms == 0 || num_sms % 2 != 0) refuse("num_sms", num_sms, "an even number, at least 2");
    check_chunks("num_max_nvl_chunked_send_tokens", num_max_nvl_chunked_send_tokens,
                 "num_max_nvl_chunked_recv_tokens", num_max_nvl_chunked_recv_tokens);
    check_chunks("num_max_rdma_chunked_send_tokens", num_max_rdma_chunked_send_tokens,
                 "num_max_rdma_chunked_recv_tokens", num_max_rdma_chunked_recv_tokens);
    config rounded = *this;
    rounded.num_max_rdma_chunked_recv_tokens =
        align_up(num_max_rdma_chunked_recv_tokens, num_max_rdma_chunked_send_tokens);
    return rounded;
  }

  /// Returns the size in bytes that DeepEP's `get_nvl_buffer_size_hint` returns, or 2^63 if
  /// the arguments are too large. `hidden_bytes` is the size of a token in bytes, at least 2 per
  /// element.
  /// Throws: as `checked`, and `error` (`invalid_argument`) unless `num_ranks` is 1 to 8 or a
  /// multiple of 8.
  [[nodiscard]] constexpr std::size_t nvl_buffer_size_hint(std::size_t hidden_bytes,
                                                           std::size_t num_ranks) const {
    constexpr std::size_t most_in_node = 8;
    if (num_ranks == 0 || (num_ranks > most_in_node && num_ranks % most_in_node != 0))
      refuse("num_ranks", num_ranks, "1 to 8 or a multiple of 8");
    const config valid = checked();
    const std::size_t channels = valid.num_sms / 2;
    const std::size_t in_node = std::min(num_ranks, most_in_node);
    const std::size_t nodes = std::max<std::size_t>(num_ranks / most_in_node, 1);
    constexpr std::size_t source = 8;
    constexpr std::size_t most_top_k = 128;
    constexpr std::size_t most_scales = 128;
    if (static_cast<double>(channels) * static_cast<double>(in_node) *
            (static_cast<double>(valid.num_max_nvl_chunked_recv_tokens) *
                 (static_cast<double>(hidden_bytes) + 4096.0) +
             8.0 * static_cast<double>(nodes) + 12.0) >=
        0x1p63)
      return detail::too_many_bytes;
    const std::size_t token = hidden_bytes + source + most_top_k * (8 + 4) + most_scales * 4;
    return align_up(channels * in_node * (2 * nodes + 3) * 4 +
                        channels * in_node * valid.num_max_nvl_chunked_recv_tokens * token,
                    128);
  }

 private:
  [[noreturn]] static void refuse(std::string_view member, std::size_t given,
                                  std::string_view expected) {
    throw error{errc::invalid_argument, peerbus::detail::concat("DeepEP's config: ", member, " is ",
                                                                given, ", expected ", expected)};
  }
  static constexpr void check_chunks(std::string_view send_member, std::size_t send,
                                     std::string_view receive_member, std::size_t receive) {
    if (send == 0) refuse(send_member, send, "at least 1");
    if (receive <= send)
      refuse(receive_member, receive,
             peerbus::detail::concat("more than ", send_member, ", ", send));
  }
};

/// The shape of a low-latency call of DeepEP, and the options that peerbus adds to it.
struct low_latency_shape {
  std::size_t num_max_dispatch_tokens_per_rank = 0;  ///< most tokens of a rank
  std::size_t hidden = 0;                            ///< values of a token
  std::size_t num_ranks = 0;                         ///< at least 1
  std::size_t num_experts = 0;                       ///< experts of all ranks
  std::size_t num_topk = 0;                          ///< slots of a token
  bool use_fp8 = true;                               ///< rows are fp8, otherwise bf16
  bool use_ue8m0 = false;  ///< scales are packed exponents; ignored without use_fp8
  /// Number of batches that may wait for their combine at once; DeepEP has two.
  std::size_t in_flight = 2;
  bool zero_copy = false;  ///< outputs lie at the rank of their expert
};

/// Returns the configuration of the exchange that serves `shape`.
constexpr moe::exchange_config exchange_for(const low_latency_shape& shape) noexcept {
  // Whether a combine takes LogFMT is known only when it is called.
  const bool may_code = shape.hidden % codec::logfmt10::hidden_multiple == 0;
  return {.experts = shape.num_experts,
          .hidden = shape.hidden,
          .top_k = shape.num_topk,
          .max_tokens = shape.num_max_dispatch_tokens_per_rank,
          .in_flight = shape.in_flight,
          .outputs = shape.zero_copy ? moe::outputs_at::expert : moe::outputs_at::home,
          .output_attachment = may_code ? codec::logfmt10::head_bytes(shape.hidden) : 0,
          .logfmt_outputs = may_code};
}

/// Returns the memory map of the window that peerbus needs for `shape` on a transport with peer
/// memory: exact, per rank and by component. The map includes the rows, which are the tensor that
/// dispatch returns. `shape.num_ranks` must be at least 1.
constexpr moe::memory_map low_latency_map(const low_latency_shape& shape) noexcept {
  const auto format = [&shape]<class Codec>(Codec*) {
    return moe::row_format{Codec::row_bytes(shape.hidden), Codec::scale_bytes(shape.hidden)};
  };
  using fp8 = codec::fp8_e4m3_per_128<codec::f32_scales>;
  using fp8_ue8m0 = codec::fp8_e4m3_per_128<codec::ue8m0_scales>;
  const moe::row_format rows = !shape.use_fp8    ? format(static_cast<codec::bf16*>(nullptr))
                               : shape.use_ue8m0 ? format(static_cast<fp8_ue8m0*>(nullptr))
                                                 : format(static_cast<fp8*>(nullptr));
  const moe::exchange_config wanted = exchange_for(shape);
  return {wanted, moe::padded{}.geometry(wanted, shape.num_ranks), shape.num_ranks, rows};
}

/// Returns the size in bytes of the ordinary memory that a buffer needs besides the window, on a
/// rank with the most experts: scales column by column, `src_info`, counts, routings and combined
/// tokens. The memory has room for the worst case, so that most of it is never touched.
constexpr std::size_t low_latency_array_bytes(const low_latency_shape& shape) noexcept {
  const std::size_t local = moe::expert_placement{shape.num_experts, shape.num_ranks}.most();
  const std::size_t tokens = shape.num_max_dispatch_tokens_per_rank;
  const std::size_t slots = tokens * shape.num_topk;
  const std::size_t rows = local * shape.num_ranks * tokens;
  const std::size_t of_batch = local * 4 + local * shape.num_ranks * 8 + 2 * slots * 8 + rows * 4 +
                               rows * low_latency_map(shape).format.scale_bytes +
                               tokens * shape.hidden * 2;
  return shape.in_flight * of_batch + slots * 4;
}

}  // namespace peerbus::deep_ep

// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/detail/checker.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_bytes.hpp>
#include <peerbus/compat/deep_ep/finding.hpp>
#include <peerbus/core/align.hpp>

/// The limits of DeepEP's `deep_ep.Buffer`: version 1's API as of commit dd758ca.
namespace peerbus::deep_ep::detail {

inline constexpr std::array<std::uint64_t, 3> deepep_v1_ranks_of_one_node{2, 4, 8};
inline constexpr std::array<std::uint64_t, 9> deepep_v1_ranks_of_nodes{16, 24,  32,  48, 64,
                                                                       96, 128, 144, 160};
inline constexpr std::array<std::uint64_t, 8> deepep_v1_low_latency_hidden{2048, 2560, 3072, 4096,
                                                                           5120, 6144, 7168, 8192};
// The list contains all conditions: fp8 requires multiples of 512, and at most 64 scales of 128
// channels each.
static_assert(std::ranges::all_of(deepep_v1_low_latency_hidden, [](std::uint64_t hidden) {
  return hidden % 512 == 0 && hidden / 128 <= 64;
}));

inline constexpr std::size_t deepep_v1_default_qp_depth = 1024;

/// The unit of the sizes of DeepEP's buffers, in bytes.
inline constexpr std::uint64_t deepep_v1_buffer_unit = 128;
/// The largest size of a buffer, in bytes. DeepEP counts units of 16 bytes, fewer than 2^31 - 1.
inline constexpr std::uint64_t deepep_v1_most_bytes = 34359738240;
/// The largest size of each buffer if normal calls cross nodes, in bytes: fewer than 2^31 - 1.
inline constexpr std::uint64_t deepep_v1_most_bytes_of_nodes = 2147483520;
static_assert(deepep_v1_most_bytes / 16 < 2147483647 &&
              (deepep_v1_most_bytes + deepep_v1_buffer_unit) / 16 >= 2147483647 &&
              deepep_v1_most_bytes_of_nodes < 2147483647 &&
              deepep_v1_most_bytes_of_nodes + deepep_v1_buffer_unit >= 2147483647);

/// Returns the NVSHMEM_QP_DEPTH that low-latency operations of `max_tokens` tokens need.
constexpr std::size_t deepep_v1_qp_depth(std::size_t max_tokens) noexcept {
  return 2 * (max_tokens + 1);
}

/// Checks a size of the buffer, if it is known.
template <class Visit>
constexpr void check_deepep_v1_bytes(std::string_view name, const std::optional<std::size_t>& given,
                                     std::uint64_t most, std::string_view advice,
                                     checker<Visit>& check) {
  if (given && check.number(name, *given, expectation::at_most(most), advice))
    check.number(name, *given, expectation::multiple_of(deepep_v1_buffer_unit),
                 "round it up to a multiple of ", deepep_v1_buffer_unit);
}

/// Checks the sizes of the buffer on which a normal call is made.
template <class Visit>
constexpr void check_deepep_v1_normal_buffer(const call& c, bool in_one_node,
                                             checker<Visit>& check) {
  if (in_one_node) {
    check_deepep_v1_bytes("num_nvl_bytes", c.num_nvl_bytes, deepep_v1_most_bytes,
                          "choose a Config with smaller chunks", check);
    if (c.num_rdma_bytes && c.no_low_latency_mode)
      check.number("num_rdma_bytes", *c.num_rdma_bytes, expectation::exactly(0),
                   "within a node only the low-latency mode has such memory: leave it out");
    return;
  }
  check_deepep_v1_bytes("num_nvl_bytes", c.num_nvl_bytes, deepep_v1_most_bytes_of_nodes,
                        "choose a Config with smaller chunks", check);
  check_deepep_v1_bytes("num_rdma_bytes", c.num_rdma_bytes, deepep_v1_most_bytes_of_nodes,
                        "between nodes, make a Buffer of its own for the low-latency mode", check);
}

template <class Visit>
constexpr void check_deepep_v1_normal(const call& c, checker<Visit>& check) {
  const std::size_t in_node = ranks_per_node(c, 8);
  check_deepep_v1_normal_buffer(c, c.ranks <= in_node, check);
  if (c.ranks <= in_node) {
    check.number("num_ranks", c.ranks, expectation::one_of(deepep_v1_ranks_of_one_node),
                 "within a node, normal mode is built for these numbers of ranks only");
  } else {
    check.number("ranks per node", in_node, expectation::exactly(8),
                 "start 8 ranks on each node, or stay within one");
    check.number("num_ranks", c.ranks, expectation::one_of(deepep_v1_ranks_of_nodes),
                 "normal mode is built for 2, 3, 4, 6, 8, 12, 16, 18 and 20 nodes of 8 ranks only");
    if (c.what == operation::normal_dispatch)
      check.number("num_worst_tokens", c.num_worst_tokens, expectation::exactly(0),
                   "it is for one node only: leave it at 0 and wait for the counts");
  }
  check.number("num_topk", c.top_k, expectation::at_most(32), "choose fewer experts per token");
  if (c.what == operation::normal_dispatch && is_by_rank(c))
    check.number("num_worst_tokens without topk_idx", c.num_worst_tokens, expectation::exactly(0),
                 "give topk_idx, whose -1 mark the rows that did not come");
  check_whole_units(c, c.dtype == element_type::fp8_e4m3 ? 1 : 2, check);
  check.off(finding_kind::refused, "allocate_on_comm_stream",
            c.allocate_on_comm_stream && !(c.previous_event_given && c.async_finish),
            "give previous_event and set async_finish too");
}

/// Checks the buffer on which a low-latency call is made.
template <class Visit>
constexpr void check_deepep_v1_buffer(const call& c, checker<Visit>& check) {
  check.words(finding_kind::refused, "low_latency_mode", !c.no_low_latency_mode, "false", "true",
              "make the Buffer with low_latency_mode=True");
  const std::uint64_t needed =
      align_up(low_latency_bytes(c.max_tokens, c.hidden, c.experts), deepep_v1_buffer_unit);
  if (!check.number("bytes of the low-latency buffer", needed,
                    expectation::at_most(deepep_v1_most_bytes),
                    "lower num_max_dispatch_tokens_per_rank, or have fewer experts"))
    return;
  if (!c.num_rdma_bytes ||
      check.number("num_rdma_bytes", *c.num_rdma_bytes,
                   expectation::at_least(low_latency_bytes(c.max_tokens, c.hidden, c.experts)),
                   "make the Buffer with what get_low_latency_rdma_size_hint returns, ",
                   low_latency_size_hint(c.max_tokens, c.hidden, c.experts)))
    check_deepep_v1_bytes("num_rdma_bytes", c.num_rdma_bytes, deepep_v1_most_bytes,
                          "have no more than the calls need", check);
}

template <class Visit>
constexpr void check_deepep_v1_low_latency(const call& c, checker<Visit>& check) {
  check.number("num_max_dispatch_tokens_per_rank", c.max_tokens, expectation::at_most(1023),
               "1024 and more collide with the tag of its counters: split the batch");
  const std::size_t depth = c.environment.nvshmem_qp_depth == 0 ? deepep_v1_default_qp_depth
                                                                : c.environment.nvshmem_qp_depth;
  const std::size_t needed = deepep_v1_qp_depth(c.max_tokens);
  check.number(
      "NVSHMEM_QP_DEPTH", depth, expectation::at_least(needed),
      "it must be 2 x (num_max_dispatch_tokens_per_rank + 1): set NVSHMEM_QP_DEPTH=", needed);
  check.number("num_ranks x num_max_dispatch_tokens_per_rank", c.ranks * c.max_tokens,
               expectation::multiple_of(4),
               "round num_max_dispatch_tokens_per_rank up to a multiple of ", 4);
  check.number("hidden", c.hidden, expectation::one_of(deepep_v1_low_latency_hidden),
               "low-latency kernels are built for these only: fill tokens up to the next");
  check.number("num_topk", c.top_k, expectation::at_most(11),
               "choose fewer experts per token, or use normal mode, which has 32");
  check.off(finding_kind::refused, "return_recv_hook", c.return_recv_hook && c.async_finish,
            "choose one of return_recv_hook and async_finish: they exclude each other");
  if (c.what == operation::low_latency_dispatch)
    check.absent(finding_kind::refused, "topk_weights", c.weights_given,
                 "give it to low_latency_combine alone: this dispatch does not have it");
  if (c.what == operation::low_latency_combine)
    check.off(finding_kind::refused, "use_logfmt", c.use_logfmt && c.zero_copy,
              "choose one of use_logfmt and zero_copy: they exclude each other");
  check_deepep_v1_buffer(c, check);
}

template <class Visit>
constexpr void check_deepep_v1(const call& c, checker<Visit>& check) {
  if (!check_is_buffer(c, check)) return;
  check_possible(c, check);
  check_scale_options(c, check);
  check_even_experts(c, check);
  check.number("experts per rank", local_experts(c), expectation::at_most(1024),
               "spread the experts over more ranks");
  check.words(finding_kind::refused, "topk_idx's type", !c.narrow_topk_idx, "another type", "int64",
              "convert topk_idx to int64, DeepEP's topk_idx_t");
  check.words(finding_kind::refused, "x", !c.gaps_in_x, "a tensor with gaps", "a contiguous one",
              "give x.contiguous()");
  if (is_low_latency(c.what))
    check_deepep_v1_low_latency(c, check);
  else
    check_deepep_v1_normal(c, check);
}

}  // namespace peerbus::deep_ep::detail

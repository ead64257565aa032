// SPDX-License-Identifier: MIT
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <peerbus/compat/deep_ep/buffer.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/moe/config.hpp>

#include "instances.hpp"
#include "objects.hpp"
#include "relay.hpp"
#include "results.hpp"
#include "tensors.hpp"

namespace deep_ep = peerbus::deep_ep;

struct peerbus_buffer final : peerbus::c_library::buffer_object {
  peerbus_buffer(std::shared_ptr<peerbus::c_library::group> of,
                 const deep_ep::buffer_options& options)
      : buffer_object{std::move(of)}, calls{members->comm, options} {}
  deep_ep::buffer<peerbus::c_library::bus> calls;
};

namespace peerbus::c_library {

template <>
inline constexpr std::size_t least_bytes<peerbus_buffer_options> =
    offsetof(peerbus_buffer_options, skip_other_ids);
template <>
inline constexpr std::size_t least_bytes<peerbus_low_latency_dispatch_args> =
    offsetof(peerbus_low_latency_dispatch_args, topk_weights);
template <>
inline constexpr std::size_t least_bytes<peerbus_low_latency_combine_args> =
    offsetof(peerbus_low_latency_combine_args, use_logfmt);
template <>
inline constexpr std::size_t least_bytes<peerbus_low_latency_received> =
    offsetof(peerbus_low_latency_received, recv_topk_weights);

template <>
inline constexpr std::size_t least_bytes<peerbus_normal_dispatch_args> =
    offsetof(peerbus_normal_dispatch_args, num_max_tokens_per_rank);
template <>
inline constexpr std::size_t least_bytes<peerbus_normal_received> =
    offsetof(peerbus_normal_received, num_max_tokens_per_rank);

namespace {

deep_ep::buffer_options options_of(const peerbus_buffer_options& given) {
  if (given.target < 0 || given.target >= static_cast<std::int32_t>(deep_ep::all_profiles.size()))
    throw error{errc::invalid_argument,
                concat("options.target is ", given.target, ", expected 0 to ",
                       deep_ep::all_profiles.size() - 1)};
  deep_ep::buffer_options options;
  if (given.num_max_tokens_per_rank != 0)
    options.num_max_tokens_per_rank = given.num_max_tokens_per_rank;
  if (given.in_flight != 0) options.in_flight = given.in_flight;
  options.zero_copy = given.zero_copy != 0;
  options.relay = relay_of(given.relay);
  options.same_bits = given.same_bits != 0;
  options.between = given.between;
  options.enable_shrink = given.enable_shrink != 0;
  if (given.skip_other_ids != 0) options.other_ids = peerbus::moe::ids_outside::skipped;
  options.target = static_cast<deep_ep::profile>(given.target);
  options.target_ranks_per_node = given.target_ranks_per_node;
  options.target_is.hccl_buffsize_mb = given.hccl_buffsize_mb;
  options.target_is.nvshmem_qp_depth = given.nvshmem_qp_depth;
  options.target_is.moe_enable_topk_neg_one = given.moe_enable_topk_neg_one != 0;
  if (given.normal_long_seq_rounds != 0)
    options.target_is.normal_long_seq_rounds = given.normal_long_seq_rounds;
  return options;
}

// Refuse calls whose arguments cannot be read.
void refuse_normal_call(deep_ep::buffer<bus>& calls, const error& why) { calls.refuse(why); }
void refuse_low_latency_call(deep_ep::buffer<bus>& calls, const error& why) {
  calls.low_latency_refuse(why);
}

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_buffer_create(peerbus_comm* comm, const peerbus_buffer_options* options,
                                   peerbus_buffer** buffer) {
  return guarded([&] {
    require_result(buffer, "buffer");
    const auto& members = usable(comm, "communicator").members;
    auto given = options_of(read_options(options, "options", least_bytes<peerbus_buffer_options>));
    given.log = members->log();
    *buffer = std::make_unique<peerbus_buffer>(members, given).release();
  });
}

void peerbus_buffer_destroy(peerbus_buffer** buffer) { destroy(buffer); }

uint64_t peerbus_low_latency_rdma_size_hint(uint64_t num_max_dispatch_tokens_per_rank,
                                            uint64_t hidden, uint64_t num_ranks,
                                            uint64_t num_experts) {
  if (num_ranks == 0) return 0;
  return deep_ep::low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks,
                                             num_experts);
}

peerbus_code peerbus_low_latency_dispatch(peerbus_buffer* buffer,
                                          const peerbus_low_latency_dispatch_args* args,
                                          peerbus_low_latency_received* received) {
  return call_buffer(
      buffer, args, received, "received",
      [](const auto& given) {
        return deep_ep::low_latency_dispatch_args{
            .x = read_tensor(given.x, "x"),
            .topk_idx = read_tensor(given.topk_idx, "topk_idx"),
            .num_max_dispatch_tokens_per_rank = given.num_max_dispatch_tokens_per_rank,
            .num_experts = given.num_experts,
            .cumulative_local_expert_recv_stats = read_tensor(
                given.cumulative_local_expert_recv_stats, "cumulative_local_expert_recv_stats"),
            .dispatch_wait_recv_cost_stats =
                read_tensor(given.dispatch_wait_recv_cost_stats, "dispatch_wait_recv_cost_stats"),
            .topk_weights = read_tensor(given.topk_weights, "topk_weights"),
            .use_fp8 = given.use_fp8 != 0,
            .round_scale = given.round_scale != 0,
            .use_ue8m0 = given.use_ue8m0 != 0,
            .async_finish = given.async_finish != 0,
            .return_recv_hook = given.return_recv_hook != 0,
            .until = deadline_of(given.timeout_ns)};
      },
      [](auto& calls, const auto& asked) { return calls.low_latency_dispatch(asked); },
      refuse_low_latency_call,
      [](const auto& result, auto& filled) {
        filled.recv_x = array_of(result.recv_x);
        filled.recv_x_scales = array_of(result.recv_x_scales);
        filled.recv_count = array_of(result.recv_count);
        filled.recv_topk_weights = array_of(result.recv_topk_weights);
        filled.recv_rank_info = array_of(result.recv_rank_info);
        filled.src_info = array_of(result.handle.src_info);
        filled.layout_range = array_of(result.handle.layout_range);
      });
}

peerbus_code peerbus_low_latency_combine(peerbus_buffer* buffer,
                                         const peerbus_low_latency_combine_args* args,
                                         peerbus_combined* combined) {
  return call_buffer(
      buffer, args, combined, "combined",
      [](const auto& given) {
        using dispatched = deep_ep::low_latency_dispatch_result;
        return deep_ep::low_latency_combine_args{
            .x = read_tensor(given.x, "x"),
            .topk_idx = read_tensor(given.topk_idx, "topk_idx"),
            .topk_weights = read_tensor(given.topk_weights, "topk_weights"),
            .handle = handle_of<dispatched>(given.handle, "handle").handle,
            .use_logfmt = given.use_logfmt != 0,
            .zero_copy = given.zero_copy != 0,
            .async_finish = given.async_finish != 0,
            .return_recv_hook = given.return_recv_hook != 0,
            .out = read_tensor(given.out, "out"),
            .combine_wait_recv_cost_stats =
                read_tensor(given.combine_wait_recv_cost_stats, "combine_wait_recv_cost_stats"),
            .until = deadline_of(given.timeout_ns)};
      },
      [](auto& calls, const auto& asked) { return calls.low_latency_combine(asked); },
      refuse_low_latency_call,
      [](const auto& result, auto& filled) { filled.combined_x = array_of(result.combined_x); });
}

peerbus_code peerbus_buffer_refuse(peerbus_buffer* buffer, int32_t low_latency, const char* why,
                                   int64_t timeout_ns) {
  return guarded([&] {
    peerbus_buffer& used = usable(buffer, "buffer");
    const peerbus::error reason{peerbus::errc::invalid_argument,
                                why == nullptr ? "a reason that is not given" : why};
    const auto until = deadline_of(timeout_ns);
    low_latency != 0 ? used.calls.low_latency_refuse(reason, until)
                     : used.calls.refuse(reason, until);
  });
}

peerbus_code peerbus_buffer_call_other_form(peerbus_buffer* buffer, int64_t timeout_ns) {
  return guarded([&] { usable(buffer, "buffer").calls.call_other_form(deadline_of(timeout_ns)); });
}

peerbus_code peerbus_low_latency_combine_buffer(peerbus_buffer* buffer,
                                                const peerbus_result* handle, peerbus_array* x) {
  return guarded([&] {
    peerbus_buffer& used = usable(buffer, "buffer");
    require(x != nullptr, "x is NULL");
    const auto& dispatched = handle_of<deep_ep::low_latency_dispatch_result>(handle, "handle");
    *x = array_of(used.calls.get_next_low_latency_combine_buffer(dispatched.handle));
  });
}

peerbus_code peerbus_low_latency_clean(peerbus_buffer* buffer,
                                       uint64_t num_max_dispatch_tokens_per_rank, uint64_t hidden,
                                       uint64_t num_experts) {
  return guarded([&] {
    usable(buffer, "buffer")
        .calls.clean_low_latency_buffer(num_max_dispatch_tokens_per_rank, hidden, num_experts);
  });
}

peerbus_code peerbus_get_dispatch_layout(peerbus_buffer* buffer, const peerbus_tensor* topk_idx,
                                         uint64_t num_experts, peerbus_dispatch_layout* layout) {
  return guarded([&] {
    peerbus_buffer& used = usable(buffer, "buffer");
    require_struct(layout, "layout");
    auto made = used.calls.get_dispatch_layout(read_tensor(topk_idx, "topk_idx"), num_experts);
    peerbus_dispatch_layout filled{};
    filled.num_tokens_per_rank = array_of(made.num_tokens_per_rank);
    filled.num_tokens_per_expert = array_of(made.num_tokens_per_expert);
    filled.is_token_in_rank = array_of(made.is_token_in_rank);
    filled.result = std::make_unique<peerbus_result>(used.members, std::move(made)).release();
    write_struct(layout, filled);
  });
}

peerbus_code peerbus_normal_dispatch(peerbus_buffer* buffer,
                                     const peerbus_normal_dispatch_args* args,
                                     peerbus_normal_received* received) {
  return call_buffer(
      buffer, args, received, "received",
      [](const auto& given) {
        deep_ep::dispatch_handle handle;
        if (given.handle != nullptr)
          handle = handle_of<deep_ep::dispatch_result>(given.handle, "handle").handle;
        return deep_ep::dispatch_args{
            .x = read_tensor(given.x, "x"),
            .x_scales = read_tensor(given.x_scales, "x_scales"),
            .handle = handle,
            .num_tokens_per_rank = read_tensor(given.num_tokens_per_rank, "num_tokens_per_rank"),
            .is_token_in_rank = read_tensor(given.is_token_in_rank, "is_token_in_rank"),
            .num_tokens_per_expert =
                read_tensor(given.num_tokens_per_expert, "num_tokens_per_expert"),
            .topk_idx = read_tensor(given.topk_idx, "topk_idx"),
            .topk_weights = read_tensor(given.topk_weights, "topk_weights"),
            .expert_alignment = given.expert_alignment == 0 ? 1 : given.expert_alignment,
            .num_worst_tokens = given.num_worst_tokens,
            .num_max_tokens_per_rank = given.num_max_tokens_per_rank,
            .until = deadline_of(given.timeout_ns)};
      },
      [](auto& calls, const auto& asked) { return calls.dispatch(asked); }, refuse_normal_call,
      [](const auto& result, auto& filled) {
        filled.recv_x = array_of(result.recv_x);
        filled.recv_x_scales = array_of(result.recv_x_scales);
        filled.recv_topk_idx = array_of(result.recv_topk_idx);
        filled.recv_topk_weights = array_of(result.recv_topk_weights);
        const auto counts = result.num_recv_tokens_per_expert_list;
        if (counts.data() != nullptr)
          filled.num_recv_tokens_per_expert_list = array_of_counts(counts);
        filled.rank_prefix = array_of(result.handle.rank_prefix);
        filled.recv_src_idx = array_of(result.handle.recv_src_idx);
        filled.is_token_in_rank = array_of(result.handle.is_token_in_rank);
        filled.num_max_tokens_per_rank = result.handle.num_max_tokens_per_rank;
      });
}

peerbus_code peerbus_normal_combine(peerbus_buffer* buffer, const peerbus_normal_combine_args* args,
                                    peerbus_combined* combined) {
  return call_buffer(
      buffer, args, combined, "combined",
      [](const auto& given) {
        return deep_ep::combine_args{
            .x = read_tensor(given.x, "x"),
            .handle = handle_of<deep_ep::dispatch_result>(given.handle, "handle").handle,
            .topk_weights = read_tensor(given.topk_weights, "topk_weights"),
            .bias = {read_tensor(given.bias[0], "bias"), read_tensor(given.bias[1], "bias")},
            .async_finish = given.async_finish != 0,
            .until = deadline_of(given.timeout_ns)};
      },
      [](auto& calls, const auto& asked) { return calls.combine(asked); }, refuse_normal_call,
      [](const auto& result, auto& filled) { describe_combined(result, filled); });
}

peerbus_code peerbus_low_latency_barrier(peerbus_buffer* buffer, int64_t timeout_ns) {
  return guarded(
      [&] { usable(buffer, "buffer").calls.low_latency_barrier(deadline_of(timeout_ns)); });
}

peerbus_code peerbus_low_latency_mask(peerbus_buffer* buffer, uint64_t rank, uint32_t mask) {
  return guarded(
      [&] { usable(buffer, "buffer").calls.low_latency_update_mask_buffer(rank, mask != 0); });
}

peerbus_code peerbus_low_latency_masks(peerbus_buffer* buffer, const peerbus_tensor* mask_status) {
  return guarded([&] {
    usable(buffer, "buffer")
        .calls.low_latency_query_mask_buffer(read_tensor(mask_status, "mask_status"));
  });
}

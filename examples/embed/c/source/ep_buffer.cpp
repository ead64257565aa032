// SPDX-License-Identifier: MIT
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include <peerbus/compat/deep_ep/elastic_buffer.hpp>
#include <peerbus/compat/deep_ep/fold.hpp>

#include "instances.hpp"
#include "objects.hpp"
#include "relay.hpp"
#include "results.hpp"
#include "tensors.hpp"

namespace deep_ep = peerbus::deep_ep;

struct peerbus_ep_buffer final : peerbus::c_library::buffer_object {
  peerbus_ep_buffer(std::shared_ptr<peerbus::c_library::group> of,
                    const deep_ep::elastic_options& options)
      : buffer_object{std::move(of)}, calls{members->comm, options} {}
  deep_ep::elastic_buffer<peerbus::c_library::bus> calls;
};

namespace peerbus::c_library {

template <>
inline constexpr std::size_t least_bytes<peerbus_ep_dispatch_args> =
    offsetof(peerbus_ep_dispatch_args, num_max_tokens_per_rank);
template <>
inline constexpr std::size_t least_bytes<peerbus_ep_received> =
    offsetof(peerbus_ep_received, num_max_tokens_per_rank);

namespace {

/// Refuses a call whose arguments cannot be read.
void refuse_call(deep_ep::elastic_buffer<bus>& calls, const error& why) { calls.refuse(why); }

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_ep_buffer_create(peerbus_comm* comm, const peerbus_ep_buffer_options* options,
                                      peerbus_ep_buffer** buffer) {
  return guarded([&] {
    require_result(buffer, "buffer");
    const auto& members = usable(comm, "communicator").members;
    const peerbus_ep_buffer_options given =
        read_options(options, "options", offsetof(peerbus_ep_buffer_options, between));
    deep_ep::elastic_options asked;
    if (given.num_max_tokens_per_rank != 0)
      asked.num_max_tokens_per_rank = given.num_max_tokens_per_rank;
    if (given.in_flight != 0) asked.in_flight = given.in_flight;
    asked.relay = relay_of(given.relay);
    asked.between = given.between;
    asked.log = members->log();
    *buffer = std::make_unique<peerbus_ep_buffer>(members, asked).release();
  });
}

void peerbus_ep_buffer_destroy(peerbus_ep_buffer** buffer) { destroy(buffer); }

peerbus_code peerbus_ep_buffer_refuse(peerbus_ep_buffer* buffer, const char* why,
                                      int64_t timeout_ns) {
  return guarded([&] {
    const peerbus::error reason{peerbus::errc::invalid_argument,
                                why == nullptr ? "a reason that is not given" : why};
    usable(buffer, "buffer").calls.refuse(reason, deadline_of(timeout_ns));
  });
}

peerbus_code peerbus_ep_buffer_call_other_form(peerbus_ep_buffer* buffer, int64_t timeout_ns) {
  return guarded([&] { usable(buffer, "buffer").calls.call_other_form(deadline_of(timeout_ns)); });
}

peerbus_code peerbus_ep_dispatch(peerbus_ep_buffer* buffer, const peerbus_ep_dispatch_args* args,
                                 peerbus_ep_received* received) {
  return call_buffer(
      buffer, args, received, "received",
      [](const auto& given) {
        return deep_ep::elastic_dispatch_args{
            .x = read_tensor(given.x, "x"),
            .x_scales = read_tensor(given.x_scales, "x_scales"),
            .topk_idx = read_tensor(given.topk_idx, "topk_idx"),
            .topk_weights = read_tensor(given.topk_weights, "topk_weights"),
            .cumulative_local_expert_recv_stats = read_tensor(
                given.cumulative_local_expert_recv_stats, "cumulative_local_expert_recv_stats"),
            .num_experts = given.num_experts,
            .num_max_tokens_per_rank = given.num_max_tokens_per_rank == 0
                                           ? std::nullopt
                                           : std::optional{given.num_max_tokens_per_rank},
            .expert_alignment = given.expert_alignment == 0 ? 1 : given.expert_alignment,
            .do_zero_padding = given.do_zero_padding != 0,
            .until = deadline_of(given.timeout_ns)};
      },
      [](auto& calls, const auto& asked) { return calls.dispatch(asked); }, refuse_call,
      [](const auto& result, auto& filled) {
        filled.recv_x = array_of(result.recv_x);
        filled.recv_x_scales = array_of(result.recv_x_scales);
        filled.recv_topk_weights = array_of(result.recv_topk_weights);
        const deep_ep::elastic_handle& handle = result.handle;
        filled.psum_num_recv_tokens_per_scaleup_rank =
            array_of(handle.psum_num_recv_tokens_per_scaleup_rank);
        filled.psum_num_recv_tokens_per_expert = array_of(handle.psum_num_recv_tokens_per_expert);
        filled.num_unaligned_recv_tokens_per_expert =
            array_of(handle.num_unaligned_recv_tokens_per_expert);
        filled.num_recv_tokens_per_expert_list =
            array_of_counts(handle.num_recv_tokens_per_expert_list);
        filled.recv_src_metadata = array_of(handle.recv_src_metadata);
        filled.num_recv_tokens = handle.num_recv_tokens;
        filled.num_max_tokens_per_rank = handle.num_max_tokens_per_rank;
        filled.num_expanded_tokens = handle.num_expanded_tokens;
      });
}

peerbus_code peerbus_ep_combine(peerbus_ep_buffer* buffer, const peerbus_ep_combine_args* args,
                                peerbus_combined* combined) {
  return call_buffer(
      buffer, args, combined, "combined",
      [](const auto& given) {
        return deep_ep::elastic_combine_args{
            .x = read_tensor(given.x, "x"),
            .handle = handle_of<deep_ep::elastic_dispatch_result>(given.handle, "handle").handle,
            .topk_weights = read_tensor(given.topk_weights, "topk_weights"),
            .bias = {read_tensor(given.bias[0], "bias"), read_tensor(given.bias[1], "bias")},
            .async_with_compute_stream = given.async_with_compute_stream != 0,
            .until = deadline_of(given.timeout_ns)};
      },
      [](auto& calls, const auto& asked) { return calls.combine(asked); }, refuse_call,
      [](const auto& result, auto& filled) { describe_combined(result, filled); });
}

peerbus_code peerbus_fold_rows(const peerbus_tensor* x, const peerbus_tensor* slots,
                               const peerbus_tensor* sums) {
  return guarded([&] {
    deep_ep::fold_rows(read_tensor(x, "x"), read_tensor(slots, "slots"), read_tensor(sums, "sums"));
  });
}

// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/compat/deep_ep/variables.hpp>
#include <peerbus/core/text.hpp>

#include "failure.hpp"

namespace deep_ep = peerbus::deep_ep;

namespace peerbus::c_library {

namespace {

/// A bit of `peerbus_call::options`, and the member of a call that it sets.
struct option_bit {
  std::uint32_t bit;
  bool deep_ep::call::* member;
};
constexpr option_bit option_bits[] = {
    {PEERBUS_CALL_DROPPED, &deep_ep::call::dropped},
    {PEERBUS_CALL_USE_FP8, &deep_ep::call::use_fp8},
    {PEERBUS_CALL_ROUND_SCALE, &deep_ep::call::round_scale},
    {PEERBUS_CALL_USE_UE8M0, &deep_ep::call::use_ue8m0},
    {PEERBUS_CALL_CUMULATIVE_STATISTICS, &deep_ep::call::cumulative_statistics_given},
    {PEERBUS_CALL_WAIT_STATISTICS, &deep_ep::call::wait_statistics_given},
    {PEERBUS_CALL_USE_LOGFMT, &deep_ep::call::use_logfmt},
    {PEERBUS_CALL_ZERO_COPY, &deep_ep::call::zero_copy},
    {PEERBUS_CALL_OUT, &deep_ep::call::out_given},
    {PEERBUS_CALL_RETURN_RECV_HOOK, &deep_ep::call::return_recv_hook},
    {PEERBUS_CALL_ASYNC_FINISH, &deep_ep::call::async_finish},
    {PEERBUS_CALL_HANDLE, &deep_ep::call::cached_handle},
    {PEERBUS_CALL_BIAS, &deep_ep::call::bias_given},
    {PEERBUS_CALL_CONFIG, &deep_ep::call::config_given},
    {PEERBUS_CALL_PREVIOUS_EVENT, &deep_ep::call::previous_event_given},
    {PEERBUS_CALL_ALLOCATE_ON_COMM_STREAM, &deep_ep::call::allocate_on_comm_stream},
    {PEERBUS_CALL_DO_EXPAND, &deep_ep::call::do_expand},
    {PEERBUS_CALL_DO_HANDLE_COPY, &deep_ep::call::do_handle_copy},
    {PEERBUS_CALL_NARROW_TOPK_IDX, &deep_ep::call::narrow_topk_idx},
    {PEERBUS_CALL_SL_IDX, &deep_ep::call::sl_idx_given},
    {PEERBUS_CALL_NO_LOW_LATENCY_MODE, &deep_ep::call::no_low_latency_mode},
    {PEERBUS_CALL_GAPS_IN_X, &deep_ep::call::gaps_in_x},
    {PEERBUS_CALL_WEIGHTS, &deep_ep::call::weights_given},
};
static_assert(PEERBUS_EP_PREFETCH_WEIGHTS ==
                  static_cast<int>(deep_ep::operation::ep_prefetch_weights) &&
              PEERBUS_EP_COMBINE == static_cast<int>(deep_ep::operation::ep_combine) &&
              PEERBUS_LOW_LATENCY_DISPATCH ==
                  static_cast<int>(deep_ep::operation::low_latency_dispatch));
static_assert(PEERBUS_ASCEND_950 == static_cast<int>(deep_ep::profile::ascend_950) &&
              PEERBUS_ASCEND_950 + 1 == static_cast<int>(deep_ep::all_profiles.size()));
static_assert(PEERBUS_FINDING_DIFFERS == static_cast<int>(deep_ep::finding_kind::differs));

deep_ep::profile profile_of(std::int32_t target) {
  constexpr auto count = static_cast<std::int32_t>(deep_ep::all_profiles.size());
  if (target < 0 || target >= count)
    throw error{errc::invalid_argument,
                concat("target is ", target, ", expected 0 to ", count - 1)};
  return static_cast<deep_ep::profile>(target);
}

/// Returns `given` if it is 0 to `most`, as an enumerator. Throws: `error` invalid_argument
/// otherwise.
template <class Enumeration>
Enumeration enumerator(std::int32_t given, Enumeration most, std::string_view name) {
  if (given < 0 || given > static_cast<std::int32_t>(most))
    throw error{errc::invalid_argument, concat("call.", name, " is ", given, ", expected 0 to ",
                                               static_cast<std::int32_t>(most))};
  return static_cast<Enumeration>(given);
}

deep_ep::call read_call(const peerbus_call* given) {
  const peerbus_call c = read_struct(given, "call", offsetof(peerbus_call, num_rdma_bytes));
  deep_ep::call made;
  made.what = enumerator(c.operation, deep_ep::operation::ep_prefetch_weights, "operation");
  made.ranks = c.ranks;
  made.ranks_per_node = c.ranks_per_node;
  made.tokens = c.tokens;
  made.max_tokens = c.max_tokens;
  made.hidden = c.hidden;
  made.tensors = c.tokens;
  made.tensor_bytes = c.hidden;
  made.top_k = c.top_k;
  made.experts = c.experts;
  made.dtype = enumerator(c.element, deep_ep::element_type::other, "element");
  for (const option_bit& option : option_bits) made.*option.member = (c.options & option.bit) != 0;
  made.allow_multiple_reduction = (c.options & PEERBUS_CALL_NO_MULTIPLE_REDUCTION) == 0;
  if (c.expert_alignment != 0) made.expert_alignment = c.expert_alignment;
  made.num_worst_tokens = c.num_worst_tokens;
  if ((c.options & PEERBUS_CALL_NUM_RDMA_BYTES) != 0) made.num_rdma_bytes = c.num_rdma_bytes;
  if ((c.options & PEERBUS_CALL_NUM_NVL_BYTES) != 0) made.num_nvl_bytes = c.num_nvl_bytes;
  made.num_sms = c.num_sms;
  made.num_qps = c.num_qps;
  made.environment.hccl_buffsize_mb = c.hccl_buffsize_mb;
  made.environment.nvshmem_qp_depth = c.nvshmem_qp_depth;
  made.environment.moe_enable_topk_neg_one = c.moe_enable_topk_neg_one != 0;
  if (c.normal_long_seq_rounds != 0)
    made.environment.normal_long_seq_rounds = c.normal_long_seq_rounds;
  return made;
}

/// A finding whose texts end with a zero.
struct finding_texts {
  std::int32_t kind;
  std::string what;
  std::string given;
  std::string expected;
  std::string advice;

  /// Returns the finding of C, a view of the texts.
  [[nodiscard]] peerbus_finding view() const noexcept {
    return {sizeof(peerbus_finding), kind,          what.c_str(), given.c_str(),
            expected.c_str(),        advice.c_str()};
  }
};

finding_texts texts_of(const deep_ep::finding& f) {
  const bool refused = deep_ep::refuses(f);
  return {static_cast<std::int32_t>(f.kind), std::string{f.what}, refused ? given_of(f) : "",
          refused ? concat(f.expected) : "", advice_of(f)};
}

/// Calls `visit(texts)` for each finding and each variable of `peerbus_examine`.
template <class Visit>
void examine(std::int32_t target, const peerbus_call* call, Visit&& visit) {
  const deep_ep::profile platform = profile_of(target);
  deep_ep::call c = read_call(call);
  const deep_ep::call asked = c;
  c.environment = deep_ep::required_environment(platform, c);
  deep_ep::examine(platform, c, [&](const deep_ep::finding& f) { visit(texts_of(f)); });
  deep_ep::for_each_variable(platform, asked, [&](const deep_ep::variable& v) {
    visit(finding_texts{v.set ? PEERBUS_FINDING_SET : PEERBUS_FINDING_UNSET, std::string{v.name},
                        "", v.set ? std::to_string(v.value) : "", std::string{v.why}});
  });
}

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

const char* peerbus_target_name(int32_t target) {
  if (target < 0 || target >= static_cast<int32_t>(deep_ep::all_profiles.size())) return nullptr;
  // The names are literals, so that a zero follows them.
  return to_string(static_cast<deep_ep::profile>(target)).data();
}

peerbus_code peerbus_examine(int32_t target, const peerbus_call* call,
                             peerbus_finding_function visit, void* context) {
  return guarded([&] {
    require(visit != nullptr, "visit is NULL");
    examine(target, call, [&](const finding_texts& found) {
      const peerbus_finding view = found.view();
      visit(&view, context);
    });
  });
}

peerbus_code peerbus_findings(int32_t target, const peerbus_call* call, peerbus_finding* findings,
                              uint64_t capacity, uint64_t* count) {
  return guarded([&] {
    require(findings != nullptr || capacity == 0, "findings is NULL");
    require(count != nullptr, "count is NULL");
    static thread_local std::vector<finding_texts> latest;
    latest.clear();
    examine(target, call, [](finding_texts found) { latest.push_back(std::move(found)); });
    std::transform(latest.begin(),
                   latest.begin() + static_cast<std::ptrdiff_t>(
                                        std::min<std::uint64_t>(capacity, latest.size())),
                   findings, [](const finding_texts& found) { return found.view(); });
    *count = latest.size();
  });
}

peerbus_code peerbus_require(int32_t target, const peerbus_call* call) {
  return guarded([&] { deep_ep::require(profile_of(target), read_call(call)); });
}

peerbus_code peerbus_nvl_buffer_size_hint(const peerbus_deep_ep_config* config,
                                          uint64_t hidden_bytes, uint64_t num_ranks,
                                          uint64_t* bytes) {
  return guarded([&] {
    require(bytes != nullptr, "bytes is NULL");
    const peerbus_deep_ep_config given = read_struct(config, "config");
    const deep_ep::config asked{
        .num_sms = given.num_sms,
        .num_max_nvl_chunked_send_tokens = given.num_max_nvl_chunked_send_tokens,
        .num_max_nvl_chunked_recv_tokens = given.num_max_nvl_chunked_recv_tokens,
        .num_max_rdma_chunked_send_tokens = given.num_max_rdma_chunked_send_tokens,
        .num_max_rdma_chunked_recv_tokens = given.num_max_rdma_chunked_recv_tokens};
    *bytes = asked.nvl_buffer_size_hint(hidden_bytes, num_ranks);
  });
}

uint64_t peerbus_ep_buffer_size_hint(uint64_t num_ranks, uint64_t num_max_tokens_per_rank,
                                     uint64_t hidden, uint64_t num_topk, uint32_t use_fp8_dispatch,
                                     uint32_t allow_multiple_reduction) {
  return deep_ep::ep_buffer_size_hint(num_ranks, num_max_tokens_per_rank, hidden, num_topk,
                                      use_fp8_dispatch != 0, allow_multiple_reduction != 0);
}

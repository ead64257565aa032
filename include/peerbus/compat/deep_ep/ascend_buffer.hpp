// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/ascend.hpp>
#include <peerbus/compat/deep_ep/detail/ascend_exchange.hpp>
#include <peerbus/compat/deep_ep/detail/check_target.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep {

/// The low-latency mode of DeepEP-Ascend, with its results and its limits: what a program that is
/// to run on an Ascend sees there. Memory, errors and threads as for `buffer`.
template <transport Transport>
class ascend_buffer {
 public:
  /// `options.target` is ascend_a2 or ascend_a3. Takes no memory yet; `comm` must outlive it.
  explicit ascend_buffer(communicator<Transport>& comm,
                         const buffer_options& options = {.target = profile::ascend_a3})
      : comm_{comm}, options_{options} {
    const detail::argument target{"ascend_buffer", "target"};
    target.require(options.target == profile::ascend_a2 || options.target == profile::ascend_a3,
                   "is ", to_string(options.target), ", expected ascend_a2 or ascend_a3");
  }
  ascend_buffer(const ascend_buffer&) = delete;
  ascend_buffer& operator=(const ascend_buffer&) = delete;
  ~ascend_buffer() = default;

  /// Collective. Throws besides: `error` invalid_argument for what the target refuses.
  [[nodiscard]] ascend_dispatch_result low_latency_dispatch(const ascend_dispatch_args& args) {
    constexpr std::string_view call = "low_latency_dispatch";
    detail::require_form({call, "x"}, args.x, {{dtype::bfloat16}, {detail::any, detail::any}});
    detail::require_form({call, "topk_idx"}, args.topk_idx,
                         {{dtype::int64, dtype::int32}, {args.x.size(0), detail::any}});
    detail::check_target(options_, comm_.size(),
                         low_latency_dispatch_args{.x = args.x,
                                                   .topk_idx = args.topk_idx,
                                                   .num_max_dispatch_tokens_per_rank =
                                                       args.num_max_dispatch_tokens_per_rank,
                                                   .num_experts = args.num_experts,
                                                   .use_fp8 = args.use_fp8});
    const detail::low_latency_shape shape{
        args.use_fp8 ? detail::row_format::fp8 : detail::row_format::bf16,
        args.num_max_dispatch_tokens_per_rank, args.x.size(1), args.num_experts,
        args.topk_idx.size(1)};
    return channel_for(shape, args.until).dispatch(args);
  }

  /// Collective.
  [[nodiscard]] ascend_combine_result low_latency_combine(const ascend_combine_args& args) {
    const auto found = std::find_if(channels_.begin(), channels_.end(), [&](const auto& one) {
      return one.get() == args.handle.channel;
    });
    const detail::argument handle{"low_latency_combine", "handle"};
    handle.require(found != channels_.end() && args.handle.number != 0,
                   "is of another buffer, expected one of this buffer's low_latency_dispatch");
    return (*found)->combine(args);
  }

 private:
  /// Collective when a shape is new.
  [[nodiscard]] detail::ascend_channel& channel_for(const detail::low_latency_shape& shape,
                                                    const std::optional<deadline>& until) {
    for (const auto& one : channels_)
      if (one->shape() == shape) return *one;
    const deadline end = until.value_or(comm_.default_deadline());
    if (shape.format == detail::row_format::bf16)
      channels_.push_back(std::make_unique<detail::ascend_exchange<Transport, codec::bf16>>(
          comm_, shape, options_.in_flight, end));
    else
      channels_.push_back(
          std::make_unique<detail::ascend_exchange<Transport, codec::int8_per_token>>(
              comm_, shape, options_.in_flight, end));
    return *channels_.back();
  }

  communicator<Transport>& comm_;
  buffer_options options_;
  std::vector<std::unique_ptr<detail::ascend_channel>> channels_;
};

}  // namespace peerbus::deep_ep

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/ascend.hpp>
#include <peerbus/compat/deep_ep/detail/ascend_channel.hpp>
#include <peerbus/compat/deep_ep/detail/ascend_exchange.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/check_options.hpp>
#include <peerbus/compat/deep_ep/detail/check_target.hpp>
#include <peerbus/compat/deep_ep/detail/collective_calls.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_channel.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep {

/// The low-latency mode of DeepEP-Ascend, with the results and the limits that a program has on an
/// Ascend. The rules of `buffer` on memory, agreement of the ranks, errors and threads hold here
/// too.
template <transport Transport>
class ascend_buffer {
 public:
  /// Makes a buffer without communicating and without memory for rows. `comm` must outlive it.
  /// Throws: `error` invalid_argument unless the target is an Ascend and `in_flight` is in range.
  explicit ascend_buffer(communicator<Transport>& comm, const ascend_options& options = {})
      : comm_{comm},
        options_{options},
        calls_{comm, detail::low_latency_names, detail::low_latency_parts} {
    const detail::argument target{"ascend_buffer", "target"};
    target.require(options.target == profile::ascend_a2 || options.target == profile::ascend_a3,
                   "is ", to_string(options.target), ", expected ascend_a2 or ascend_a3");
    detail::require_in_flight("ascend_buffer", options.in_flight);
  }
  ascend_buffer(const ascend_buffer&) = delete;
  ascend_buffer& operator=(const ascend_buffer&) = delete;
  ~ascend_buffer() = default;

  /// Sends each token to every expert that it names. Collective. Returns when all rows for this
  /// rank's experts have arrived.
  /// Cost: that of `cann::moe_distribute::dispatch`.
  /// Throws, besides the errors of `buffer`: `error` invalid_argument for a call that the target
  /// refuses.
  [[nodiscard]] ascend_dispatch_result low_latency_dispatch(const ascend_dispatch_args& args) {
    calls_.begin(args.until);
    const auto shape = calls_.or_refuse(args.until, [&] { return checked(args); });
    return channel_for(shape, args.until).dispatch(args);
  }

  /// Returns rows to their home ranks and adds them up there, weighted. Collective. Returns when
  /// the sums are complete. A dispatch can be combined any number of times, until `in_flight` later
  /// ones. Each combine of it after the first waits until all ranks have called it.
  /// Cost: copies each row once.
  /// Throws: the errors of `buffer`.
  [[nodiscard]] ascend_combine_result low_latency_combine(const ascend_combine_args& args) {
    calls_.begin(args.until);
    return calls_
        .or_refuse(args.until,
                   [&]() -> detail::ascend_channel& {
                     return calls_.channels().of({"low_latency_combine", "handle"},
                                                 args.handle.batch);
                   })
        .combine(args);
  }

  /// Refuses the call that the other ranks make. Collective. Contract as `buffer::refuse`.
  void refuse(const error& why, std::optional<deadline> until = std::nullopt) {
    calls_.begin(until);
    calls_.refuse(why, until);
  }

 private:
  /// Checks the arguments of a dispatch. Returns the key of its channel.
  [[nodiscard]] detail::low_latency_key checked(const ascend_dispatch_args& args) const {
    constexpr std::string_view call = "low_latency_dispatch";
    detail::require_form({call, "x"}, args.x, {{dtype::bfloat16}, {detail::any, detail::any}});
    detail::require_form({call, "topk_idx"}, args.topk_idx,
                         {{dtype::int64, dtype::int32}, {args.x.size(0), detail::any}});
    detail::check_target({.target = options_.target,
                          .target_is = options_.target_is,
                          .target_ranks_per_node = options_.target_ranks_per_node},
                         comm_.size(),
                         low_latency_dispatch_args{.x = args.x,
                                                   .topk_idx = args.topk_idx,
                                                   .num_max_dispatch_tokens_per_rank =
                                                       args.num_max_dispatch_tokens_per_rank,
                                                   .num_experts = args.num_experts,
                                                   .use_fp8 = args.use_fp8});
    return {args.use_fp8 ? detail::wire_format::fp8 : detail::wire_format::bf16,
            args.num_max_dispatch_tokens_per_rank, args.x.size(1), args.num_experts,
            args.topk_idx.size(1)};
  }
  /// Returns the channel for `shape`. Collective if the shape is new.
  [[nodiscard]] detail::ascend_channel& channel_for(const detail::low_latency_key& shape,
                                                    const std::optional<deadline>& until) {
    return calls_.channel_for(
        shape, until,
        [&](detail::call_agreement& agreement) -> std::unique_ptr<detail::ascend_channel> {
          const deadline end = until.value_or(comm_.default_deadline());
          if (shape.format == detail::wire_format::bf16)
            return std::make_unique<detail::ascend_exchange<Transport, codec::bf16>>(
                comm_, agreement, shape, options_.in_flight, options_.relay, end);
          return std::make_unique<detail::ascend_exchange<Transport, codec::int8_per_token>>(
              comm_, agreement, shape, options_.in_flight, options_.relay, end);
        });
  }

  communicator<Transport>& comm_;
  ascend_options options_;
  detail::collective_calls<Transport, detail::ascend_channel> calls_;
};

}  // namespace peerbus::deep_ep

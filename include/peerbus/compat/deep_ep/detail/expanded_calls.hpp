// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/check_options.hpp>
#include <peerbus/compat/deep_ep/detail/collective_calls.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_channel.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_exchange.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_routing.hpp>
#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/detail/payload.hpp>
#include <peerbus/compat/deep_ep/detail/payload_codec.hpp>
#include <peerbus/compat/deep_ep/detail/routing_pool.hpp>
#include <peerbus/compat/deep_ep/detail/token_scales.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The dispatches and combines of an elastic buffer: it checks arguments and keeps a channel for
/// each shape that calls have used.
template <transport Transport>
class expanded_calls {
 public:
  /// Makes the calls of a buffer without communicating.
  /// Throws: `error` invalid_argument or unsupported for an option that cannot be honoured.
  expanded_calls(communicator<Transport>& comm, const elastic_options& options)
      : comm_{comm}, options_{options}, calls_{comm, normal_names, expanded_parts} {
    require_tokens("elastic_buffer", options.num_max_tokens_per_rank);
    require_in_flight("elastic_buffer", options.in_flight);
    const argument multiple{"elastic_buffer", "allow_multiple_reduction"};
    multiple.refuse_if_given(options.allow_multiple_reduction,
                             "rows of a token are added up once, at home; expected false");
  }

  [[nodiscard]] elastic_dispatch_result dispatch(const elastic_dispatch_args& args) {
    if (args.previous_event) args.previous_event->current_stream_wait();
    calls_.begin(args.until);
    std::shared_ptr<expanded_routing> routing;
    calls_.or_refuse(args.until, [&] { routing = checked_routing(args); });
    const expanded_shape shape{args.x.type() == dtype::bfloat16 ? payload::bf16 : payload::bytes,
                               routing->bound,
                               args.x.size(1),
                               routing->experts,
                               routing->top_k,
                               scale_bytes(args.x_scales),
                               static_cast<bool>(args.topk_weights),
                               routing->alignment,
                               args.do_zero_padding};
    return calls_.call_with_room(
        shape, routing->most_tokens, args.until, channel_maker(args.until),
        [&](expanded_channel& channel) { return channel.dispatch(args, routing, !args.handle); });
  }

  [[nodiscard]] elastic_combine_result combine(const elastic_combine_args& args) {
    if (args.previous_event) args.previous_event->current_stream_wait();
    calls_.begin(args.until);
    calls_.or_refuse(args.until, [&] { check_combine(args); });
    const std::shared_ptr<expanded_routing>& routing = args.handle.routing;
    const expanded_shape shape{.rows = payload::nothing,
                               .hidden = args.x.size(1),
                               .experts = routing->experts,
                               .top_k = routing->top_k,
                               .alignment = routing->alignment};
    return calls_
        .channel_to_combine(
            routing->latest, shape, routing->most_tokens, args.until, channel_maker(args.until),
            [&](expanded_channel& channel) { channel.prepare(routing, args.until); })
        .combine(args);
  }

  void refuse(const error& why, const std::optional<deadline>& until) {
    calls_.begin(until);
    calls_.refuse(why, until);
  }
  void call_other_form(const std::optional<deadline>& until) {
    calls_.call_elsewhere(form_of_rows, until);
  }

 private:
  template <class Args>
  static void refuse_unsupported(std::string_view call, const Args& args) {
    const argument sms{call, "num_sms"};
    sms.refuse_if_given(args.num_sms != 0, "there are no SMs here; expected 0");
    const argument qps{call, "num_qps"};
    qps.refuse_if_given(args.num_qps != 0, "queue pairs belong to the transport; expected 0");
    const argument stream{call, "allocate_on_comm_stream"};
    stream.refuse_if_given(args.allocate_on_comm_stream,
                           "there are no streams, results lie in the buffer; leave it out");
  }

  /// Checks the arguments of a dispatch. Returns its routing.
  /// Throws: `error` invalid_argument or unsupported.
  [[nodiscard]] std::shared_ptr<expanded_routing> checked_routing(
      const elastic_dispatch_args& args) {
    constexpr std::string_view call = "dispatch";
    refuse_unsupported(call, args);
    const argument expand{call, "do_expand"};
    expand.refuse_if_given(!args.do_expand, "false is what buffer::dispatch is for; expected true");
    const argument scales{call, "use_tma_aligned_col_major_sf"};
    scales.refuse_if_given(args.use_tma_aligned_col_major_sf,
                           "scales lie row by row; expected false");
    require_form({call, "x"}, args.x,
                 {{dtype::bfloat16, dtype::float8_e4m3fn, dtype::int8}, {any, any}});
    const std::size_t tokens = args.x.size(0);
    check_scales({call, "x_scales"}, args.x_scales, tokens);
    if (!args.handle)
      require_form({call, "topk_idx"}, args.topk_idx,
                   {{dtype::int64, dtype::int32}, {tokens, any}});
    std::shared_ptr<expanded_routing> routing =
        args.handle ? known_routing(args) : new_routing(args);
    require_form_if_given({call, "topk_weights"}, args.topk_weights,
                          {{dtype::float32}, {tokens, routing->top_k}});
    const std::size_t local =
        moe::expert_placement{routing->experts, comm_.size()}.count(comm_.rank());
    require_form_if_given({call, "cumulative_local_expert_recv_stats"},
                          args.cumulative_local_expert_recv_stats, {{dtype::int32}, {local}});
    return routing;
  }
  [[nodiscard]] std::shared_ptr<expanded_routing> known_routing(
      const elastic_dispatch_args& args) const {
    constexpr std::string_view call = "dispatch";
    const argument handle{call, "handle"};
    const std::shared_ptr<expanded_routing>& routing = args.handle.routing;
    require_own(handle, *routing);
    const argument ids{call, "topk_idx"};
    ids.require(!args.topk_idx, "was given beside a handle, expected none: the handle has it");
    const argument sync{call, "do_cpu_sync"};
    sync.require(!args.do_cpu_sync.value_or(false),
                 "is true beside a handle, which knows the counts; expected false or none");
    const auto require_same = [](const argument& what, std::optional<std::size_t> given,
                                 std::size_t of_handle) {
      what.require(given.value_or(of_handle) == of_handle, "is ", given.value_or(0),
                   " beside a handle, expected none or its ", of_handle);
    };
    require_same({call, "num_experts"},
                 args.num_experts != 0 ? std::optional{args.num_experts} : std::nullopt,
                 routing->experts);
    require_same({call, "expert_alignment"}, args.expert_alignment, routing->alignment);
    require_same({call, "num_max_tokens_per_rank"}, args.num_max_tokens_per_rank,
                 routing->most_tokens);
    handle.require(routing->tokens == args.x.size(0), "is of ", routing->tokens,
                   " tokens, expected x's ", args.x.size(0));
    return routing;
  }
  [[nodiscard]] std::shared_ptr<expanded_routing> new_routing(const elastic_dispatch_args& args) {
    const std::size_t tokens = args.x.size(0);
    const std::size_t bound = args.num_max_tokens_per_rank.value_or(0);
    if (args.num_max_tokens_per_rank) require_bound("dispatch", bound, tokens);
    auto routing = pool_.take();
    routing->buffer = self_;
    routing->number = calls_.number();
    routing->tokens = tokens;
    routing->bound = bound;
    routing->most_tokens = bound != 0 ? bound : std::max(options_.num_max_tokens_per_rank, tokens);
    routing->experts = args.num_experts;
    routing->top_k = args.topk_idx.size(1);
    routing->alignment = args.expert_alignment.value_or(1);
    routing->knows_counts = args.do_cpu_sync.value_or(true);
    routing->ids.resize(args.topk_idx.elements());
    copy_ids(args.topk_idx, routing->ids, routing->experts, moe::ids_outside::refused);
    return routing;
  }

  void check_combine(const elastic_combine_args& args) const {
    constexpr std::string_view call = "combine";
    refuse_unsupported(call, args);
    const argument handle{call, "handle"};
    handle.require(static_cast<bool>(args.handle), "is none, expected the one of a dispatch");
    const expanded_routing& routing = *args.handle.routing;
    require_own(handle, routing);
    require_form({call, "x"}, args.x, {{dtype::bfloat16}, {routing.rows, any}, false});
    require_form_if_given({call, "topk_weights"}, args.topk_weights,
                          {{dtype::float32}, {routing.rows}});
    for (const const_tensor& bias : args.bias)
      require_form_if_given({call, "bias"}, bias,
                            {{dtype::bfloat16}, {routing.tokens, args.x.size(1)}});
  }
  void require_own(const argument& handle, const expanded_routing& routing) const {
    handle.require(routing.buffer.lock() == self_,
                   "is of another buffer, expected one of this buffer");
  }

  /// Returns the function that makes a channel, which is collective.
  [[nodiscard]] auto channel_maker(const std::optional<deadline>& until) {
    return [this, end = until.value_or(comm_.default_deadline())](call_agreement& agreement,
                                                                  const expanded_shape& shape) {
      return with_codec_of(shape.rows, [&](auto codec) -> std::unique_ptr<expanded_channel> {
        return std::make_unique<expanded_exchange<Transport, typename decltype(codec)::type>>(
            comm_, agreement, shape, options_, end);
      });
    };
  }

  communicator<Transport>& comm_;
  elastic_options options_;
  routing_pool<expanded_routing> pool_;
  collective_calls<Transport, expanded_channel> calls_;
  /// Identifies this buffer to handles, which may outlive it.
  std::shared_ptr<const char> self_ = std::make_shared<const char>('\0');
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/check_options.hpp>
#include <peerbus/compat/deep_ep/detail/check_target.hpp>
#include <peerbus/compat/deep_ep/detail/collective_calls.hpp>
#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/detail/layout.hpp>
#include <peerbus/compat/deep_ep/detail/normal_channel.hpp>
#include <peerbus/compat/deep_ep/detail/normal_counts.hpp>
#include <peerbus/compat/deep_ep/detail/normal_exchange.hpp>
#include <peerbus/compat/deep_ep/detail/normal_routing.hpp>
#include <peerbus/compat/deep_ep/detail/payload.hpp>
#include <peerbus/compat/deep_ep/detail/payload_codec.hpp>
#include <peerbus/compat/deep_ep/detail/routing_pool.hpp>
#include <peerbus/compat/deep_ep/detail/token_scales.hpp>
#include <peerbus/compat/deep_ep/normal.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The normal mode of a buffer: it checks arguments and keeps a channel for each shape that calls
/// have used.
template <transport Transport>
class normal_calls {
 public:
  normal_calls(communicator<Transport>& comm, const buffer_options& options)
      : comm_{comm}, options_{options}, calls_{comm, normal_names, normal_parts} {}

  [[nodiscard]] dispatch_layout layout(const const_tensor& topk_idx, std::size_t num_experts) {
    return layout_of(topk_idx, num_experts, other_ids_of(options_), comm_.size(), pool_.take());
  }

  [[nodiscard]] dispatch_result dispatch(const dispatch_args& args) {
    if (args.previous_event) args.previous_event->current_stream_wait();
    calls_.begin(args.until);
    std::shared_ptr<normal_routing> routing;
    const auto shape = calls_.or_refuse(args.until, [&] {
      routing = checked_routing(args);
      return shape_of(args, *routing);
    });
    return calls_.call_with_room(
        shape, room_for(*routing), args.until, channel_maker(args.until),
        [&](normal_channel& channel) { return channel.dispatch(args, routing, !args.handle); });
  }

  [[nodiscard]] combine_result combine(const combine_args& args) {
    if (args.previous_event) args.previous_event->current_stream_wait();
    calls_.begin(args.until);
    calls_.or_refuse(args.until, [&] { check_combine(args); });
    normal_routing& routing = *args.handle.routing;
    const normal_shape shape{.rows = payload::nothing,
                             .hidden = args.x.size(1),
                             .experts = routing.experts,
                             .top_k = routing.top_k};
    return calls_
        .channel_to_combine(routing.latest, shape, room_for(routing), args.until,
                            channel_maker(args.until),
                            [&](normal_channel& channel) { channel.prepare(routing, args.until); })
        .combine(args, routing);
  }

  void refuse(const error& why, const std::optional<deadline>& until) {
    calls_.begin(until);
    calls_.refuse(why, until);
  }
  void call_other_form(const std::optional<deadline>& until) {
    calls_.call_elsewhere(form_expanded, until);
  }

 private:
  static constexpr std::string_view call = "dispatch";

  template <class Args>
  static void check_common(std::string_view name, const Args& args) {
    const argument config{name, "config"};
    config.refuse_if_given(args.config.has_value(),
                           "it tunes the queues of GPU kernels, which are not here; leave it out");
    const argument stream{name, "allocate_on_comm_stream"};
    stream.refuse_if_given(args.allocate_on_comm_stream,
                           "there are no streams, results lie in the buffer; leave it out");
  }

  /// Checks the arguments of a dispatch. Returns its routing.
  /// Throws: `error` invalid_argument or unsupported.
  [[nodiscard]] std::shared_ptr<normal_routing> checked_routing(const dispatch_args& args) {
    check_common(call, args);
    require_form({call, "x"}, args.x,
                 {{dtype::bfloat16, dtype::float8_e4m3fn, dtype::int8}, {any, any}});
    check_scales({call, "x_scales"}, args.x_scales, args.x.size(0));
    std::shared_ptr<normal_routing> routing = args.handle ? known_routing(args) : new_routing(args);
    check_target(options_, comm_.size(), args, *routing);
    return routing;
  }
  [[nodiscard]] static normal_shape shape_of(const dispatch_args& args,
                                             const normal_routing& routing) {
    return {args.x.type() == dtype::bfloat16 ? payload::bf16 : payload::bytes,
            routing.bound,
            args.x.size(1),
            routing.experts,
            routing.top_k,
            scale_bytes(args.x_scales),
            routing.by_experts ? 0 : routing.listed_experts};
  }

  void check_combine(const combine_args& args) const {
    constexpr std::string_view combine = "combine";
    check_common(combine, args);
    const argument handle{combine, "handle"};
    handle.require(static_cast<bool>(args.handle), "is none, expected the one of a dispatch");
    require_own(handle, *args.handle.routing);
    const normal_routing& routing = *args.handle.routing;
    check_target(options_, comm_.size(), args, routing);
    const std::size_t rows = routing.worst == 0 ? routing.rows : routing.worst;
    require_form({combine, "x"}, args.x, {{dtype::bfloat16}, {rows, any}, false});
    const argument weights{combine, "topk_weights"};
    weights.require(!args.topk_weights || routing.by_experts,
                    "is given, expected none, as the handle's dispatch had no topk_idx");
    require_form_if_given(weights, args.topk_weights, {{dtype::float32}, {rows, routing.top_k}});
    for (const const_tensor& bias : args.bias)
      require_form_if_given({combine, "bias"}, bias,
                            {{dtype::bfloat16}, {routing.tokens, args.x.size(1)}});
  }

  void require_own(const argument& handle, const normal_routing& routing) const {
    handle.require(routing.buffer.lock() == self_,
                   "is of another buffer, expected one of this buffer");
  }

  [[nodiscard]] std::shared_ptr<normal_routing> known_routing(const dispatch_args& args) const {
    const std::array<std::pair<std::string_view, const const_tensor*>, 6> others{
        {{"num_tokens_per_rank", &args.num_tokens_per_rank},
         {"num_tokens_per_rdma_rank", &args.num_tokens_per_rdma_rank},
         {"is_token_in_rank", &args.is_token_in_rank},
         {"num_tokens_per_expert", &args.num_tokens_per_expert},
         {"topk_idx", &args.topk_idx},
         {"topk_weights", &args.topk_weights}}};
    for (const auto& [name, given] : others) {
      const argument other{call, name};
      other.require(!*given,
                    "was given beside a handle, expected none: the handle has the routing");
    }
    const argument worst{call, "num_worst_tokens"};
    worst.require(args.num_worst_tokens == 0, "is ", args.num_worst_tokens,
                  " beside a handle, expected 0");
    const argument bound{call, "num_max_tokens_per_rank"};
    bound.require(args.num_max_tokens_per_rank == 0, "is ", args.num_max_tokens_per_rank,
                  " beside a handle, expected 0");
    const argument alignment{call, "expert_alignment"};
    alignment.require(args.expert_alignment == 1, "is ", args.expert_alignment,
                      " beside a handle, expected 1: no list comes back");
    const argument handle{call, "handle"};
    require_own(handle, *args.handle.routing);
    handle.require(args.handle.routing->tokens == args.x.size(0), "is of ",
                   args.handle.routing->tokens, " tokens, expected x's ", args.x.size(0));
    return args.handle.routing;
  }

  [[nodiscard]] std::shared_ptr<normal_routing> new_routing(const dispatch_args& args) {
    const std::size_t tokens = args.x.size(0);
    const std::size_t ranks = comm_.size();
    require_form({call, "num_tokens_per_rank"}, args.num_tokens_per_rank,
                 {{dtype::int32}, {ranks}});
    const argument rdma{call, "num_tokens_per_rdma_rank"};
    rdma.refuse_if_given(static_cast<bool>(args.num_tokens_per_rdma_rank),
                         "all ranks are reached alike here; expected none");
    require_form({call, "is_token_in_rank"}, args.is_token_in_rank,
                 {{dtype::boolean}, {tokens, ranks}});
    require_form({call, "num_tokens_per_expert"}, args.num_tokens_per_expert,
                 {{dtype::int32}, {any}});
    const argument listed{call, "num_tokens_per_expert"};
    listed.require(args.num_tokens_per_expert.size(0) != 0, "is ",
                   args.num_tokens_per_expert.describe(), ", expected at least one expert");
    constexpr std::size_t most_alignment = std::size_t{1} << 24U;  // As for a compact layout.
    const argument alignment{call, "expert_alignment"};
    alignment.require(args.expert_alignment >= 1 && args.expert_alignment <= most_alignment, "is ",
                      args.expert_alignment, ", expected 1 to ", most_alignment);
    const argument worst{call, "num_worst_tokens"};
    worst.require(args.num_worst_tokens <= moe::max_rows, "is ", args.num_worst_tokens,
                  ", expected at most ", moe::max_rows);
    worst.require(args.num_worst_tokens == 0 || args.topk_idx, "is ", args.num_worst_tokens,
                  " without topk_idx, expected both, as rows that did not come are told by -1");
    const argument weights{call, "topk_weights"};
    weights.require(static_cast<bool>(args.topk_weights) == static_cast<bool>(args.topk_idx), "is ",
                    args.topk_weights, " but topk_idx is ", args.topk_idx,
                    ", expected both or neither");
    if (args.num_max_tokens_per_rank != 0)
      require_bound(call, args.num_max_tokens_per_rank, tokens);
    auto routing = pool_.take();
    routing->buffer = self_;
    routing->number = calls_.number();
    routing->tokens = tokens;
    routing->bound = args.num_max_tokens_per_rank;
    routing->worst = args.num_worst_tokens;
    routing->listed_experts = args.num_tokens_per_expert.size(0);
    routing->by_experts = static_cast<bool>(args.topk_idx);
    routing->by_experts ? route_by_experts(args, *routing) : route_by_ranks(args, *routing);
    return routing;
  }

  void route_by_experts(const dispatch_args& args, normal_routing& routing) const {
    require_form({call, "topk_idx"}, args.topk_idx,
                 {{dtype::int64, dtype::int32}, {routing.tokens, any}});
    routing.experts = routing.listed_experts;
    routing.top_k = args.topk_idx.size(1);
    require_form({call, "topk_weights"}, args.topk_weights,
                 {{dtype::float32}, {routing.tokens, routing.top_k}});
    routing.resize(comm_.size());
    copy_ids(args.topk_idx, routing.ids, routing.experts, other_ids_of(options_));
    std::copy_n(args.topk_weights.as<float>(), routing.weights.size(), routing.weights.begin());
    if (!routing.count_ranks(comm_.size())) return;  // The exchange refuses it, with all ranks.
    const argument in_rank{call, "is_token_in_rank"};
    const bool* const given = args.is_token_in_rank.as<bool>();
    const std::size_t slots = routing.tokens * comm_.size();
    const auto* const differs = std::mismatch(given, given + slots, routing.in_rank.get()).first;
    in_rank.require(differs == given + slots, "differs from topk_idx at element ", differs - given,
                    ", expected what get_dispatch_layout gives");
    check_per_rank(args, routing);
    check_per_expert(args, routing);
  }

  void route_by_ranks(const dispatch_args& args, normal_routing& routing) const {
    const std::size_t ranks = comm_.size();
    routing.experts = ranks;
    routing.top_k = std::min(ranks, moe::max_top_k);
    routing.resize(ranks);
    std::fill(routing.ids.begin(), routing.ids.end(), std::int64_t{-1});
    const bool* const given = args.is_token_in_rank.as<bool>();
    const argument in_rank{call, "is_token_in_rank"};
    for (std::size_t t = 0; t < routing.tokens; ++t) {
      std::size_t k = 0;
      for (std::size_t r = 0; r < ranks; ++r) {
        if (!given[t * ranks + r]) continue;
        in_rank.require(k < routing.top_k, "has token ", t, " go to more than ", routing.top_k,
                        " ranks, expected at most that many");
        routing.ids[t * routing.top_k + k++] = static_cast<std::int64_t>(r);
      }
    }
    static_cast<void>(routing.count_ranks(ranks));
    check_per_rank(args, routing);
    const argument per_expert{call, "num_tokens_per_expert"};
    for (std::size_t e = 0; e < routing.listed_experts; ++e) {
      const std::int32_t count = args.num_tokens_per_expert.as<std::int32_t>()[e];
      per_expert.require(count >= 0 && static_cast<std::size_t>(count) <= routing.tokens, "is ",
                         count, " for expert ", e, ", expected 0 to x's ", routing.tokens);
    }
  }

  /// Returns the number of tokens of a rank that a channel needs room for, as far as this rank
  /// knows.
  [[nodiscard]] std::size_t room_for(const normal_routing& routing) const noexcept {
    const std::size_t least = routing.bound == 0 ? options_.num_max_tokens_per_rank : routing.bound;
    const std::size_t worst_of_a_rank = (routing.worst + comm_.size() - 1) / comm_.size();
    return std::max({least, routing.tokens, worst_of_a_rank});
  }
  /// Returns the function that makes a channel, which is collective.
  [[nodiscard]] auto channel_maker(const std::optional<deadline>& until) {
    return [this, end = until.value_or(comm_.default_deadline())](call_agreement& agreement,
                                                                  const normal_shape& shape) {
      return with_codec_of(shape.rows, [&](auto codec) -> std::unique_ptr<normal_channel> {
        return std::make_unique<normal_exchange<Transport, typename decltype(codec)::type>>(
            comm_, agreement, shape, options_, end);
      });
    };
  }

  communicator<Transport>& comm_;
  buffer_options options_;
  routing_pool<normal_routing> pool_;
  collective_calls<Transport, normal_channel> calls_;
  /// Identifies this buffer to handles, which may outlive it.
  std::shared_ptr<const char> self_ = std::make_shared<const char>('\0');
};

}  // namespace peerbus::deep_ep::detail

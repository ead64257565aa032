// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/check_target.hpp>
#include <peerbus/compat/deep_ep/detail/collective_calls.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_channel.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_exchange.hpp>
#include <peerbus/compat/deep_ep/detail/rank_masks.hpp>
#include <peerbus/compat/deep_ep/low_latency.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The low-latency mode of a buffer: it checks arguments and keeps a channel for each shape that
/// calls have used.
template <transport Transport>
class low_latency_calls {
 public:
  low_latency_calls(communicator<Transport>& comm, const buffer_options& options)
      : comm_{comm},
        options_{options},
        masks_{comm.size(), options.enable_shrink},
        calls_{comm, low_latency_names, low_latency_parts} {
    if (masks_.enabled())
      calls_.recover_by([this](const error& problem) { return goes_on_after(problem); });
  }
  low_latency_calls(const low_latency_calls&) = delete;
  low_latency_calls& operator=(const low_latency_calls&) = delete;
  ~low_latency_calls() = default;

  [[nodiscard]] low_latency_dispatch_result dispatch(const low_latency_dispatch_args& args) {
    return insist([&] {
      calls_.begin(args.until);
      const auto shape = calls_.or_refuse(args.until, [&] { return checked(args); });
      return channel_for(shape, args.until).dispatch(args, masks_.current());
    });
  }

  [[nodiscard]] low_latency_combine_result combine(const low_latency_combine_args& args) {
    return insist([&] {
      calls_.begin(args.until);
      return calls_.or_refuse(args.until, [&]() -> low_latency_channel& { return checked(args); })
          .combine(args);
    });
  }

  [[nodiscard]] tensor combine_buffer(const low_latency_handle& handle) {
    const argument what{"get_next_low_latency_combine_buffer", "handle"};
    return insist([&] {
      return calls_.channels().of(what, handle.batch).combine_buffer(what, handle.batch.number());
    });
  }

  void clean(std::size_t max_tokens, std::size_t hidden, std::size_t experts) {
    insist([&] { clean_once(max_tokens, hidden, experts); });
  }

  void barrier(const std::optional<deadline>& until) {
    insist([&] { comm_.barrier(until.value_or(comm_.default_deadline())); });
  }

  [[nodiscard]] rank_masks& masks() noexcept { return masks_; }
  [[nodiscard]] const rank_masks& masks() const noexcept { return masks_; }

  void refuse(const error& why, const std::optional<deadline>& until) {
    calls_.begin(until);
    calls_.refuse(why, until);
  }

 private:
  /// Calls `call()` and returns its result. If the buffer can shrink, calls it again whenever it
  /// fails because a rank is gone.
  template <class Call>
  decltype(auto) insist(Call&& call) {
    for (;;) try {
        return call();
      } catch (const error& problem) {
        if (!goes_on_after(problem)) throw;
      }
  }
  /// Continues without the ranks that are gone, and masks them, if `problem` requires that and the
  /// buffer can shrink. Returns whether the call can be made again.
  bool goes_on_after(const error& problem) {
    const bool is_behind =
        problem.code() == errc::view_changed && comm_.view().number() != resumed_;
    if (!masks_.enabled() || (problem.code() != errc::peer_dead && !is_behind)) return false;
    for (;;) try {
        comm_.continue_without_the_dead();
        masks_.lose(comm_.view().gone());
        resumed_ = comm_.view().number();
        calls_.resume(comm_.default_deadline());
        return true;
      } catch (const error& another) {
        if (another.code() == errc::unsupported) return false;  // The first one tells more.
        if (another.code() != errc::peer_dead) throw;           // Another rank has died meanwhile.
      }
  }

  void clean_once(std::size_t max_tokens, std::size_t hidden, std::size_t experts) {
    calls_.begin({});
    calls_.or_refuse({}, [&] {
      if (calls_.channels().anything_pending())
        throw error{
            errc::invalid_argument,
            "clean_low_latency_buffer: a hook or event was not called, expected all before"};
    });
    calls_.agree({1, max_tokens, hidden, experts}, false, {});
    calls_.channels().erase_if([&](const low_latency_channel& candidate) {
      const low_latency_key& shape = candidate.shape();
      return shape.max_tokens != max_tokens || shape.hidden != hidden || shape.experts != experts;
    });
  }

  /// Checks the arguments of a dispatch. Returns the key of its channel.
  /// Throws: `error` invalid_argument.
  [[nodiscard]] low_latency_key checked(const low_latency_dispatch_args& args) const {
    constexpr std::string_view call = "low_latency_dispatch";
    require_form({call, "x"}, args.x, {{dtype::bfloat16}, {any, any}});
    require_form({call, "topk_idx"}, args.topk_idx,
                 {{dtype::int64, dtype::int32}, {args.x.size(0), any}});
    require_form_if_given({call, "topk_weights"}, args.topk_weights,
                          {{dtype::float32}, {args.x.size(0), args.topk_idx.size(1)}});
    const std::size_t most = args.num_max_dispatch_tokens_per_rank;
    const argument bound{call, "num_max_dispatch_tokens_per_rank"};
    bound.require(most != 0, "is 0, expected at least 1");
    const argument rows{call, "x"};
    rows.require(args.x.size(0) <= most, "has ", args.x.size(0),
                 " tokens, expected at most num_max_dispatch_tokens_per_rank, ", most);
    const argument experts{call, "num_experts"};
    experts.require(args.num_experts != 0, "is 0, expected at least 1");
    const argument choices{call, "topk_idx"};
    const std::size_t num_topk = args.topk_idx.size(1);
    choices.require(num_topk != 0 && num_topk <= std::min(moe::max_top_k, args.num_experts), "has ",
                    num_topk, " experts for each token, expected 1 to ", moe::max_top_k,
                    ", at most num_experts, ", args.num_experts);
    const argument scales{call, "use_ue8m0"};
    scales.require(!args.use_ue8m0 || (args.use_fp8 && args.round_scale),
                   "is true, expected use_fp8 and round_scale with it");
    const argument rounded{call, "round_scale"};
    rounded.require(!args.round_scale || args.use_fp8, "is true, expected use_fp8 with it");
    require_one_delivery(call, args.async_finish, args.return_recv_hook);
    check_target(options_, comm_.size(), args);
    require_form_if_given({call, "cumulative_local_expert_recv_stats"},
                          args.cumulative_local_expert_recv_stats,
                          {{dtype::int32}, {local_experts(args.num_experts)}});
    require_form_if_given({call, "dispatch_wait_recv_cost_stats"},
                          args.dispatch_wait_recv_cost_stats, {{dtype::int64}, {comm_.size()}});
    return {format_of(args),       args.num_max_dispatch_tokens_per_rank,
            args.x.size(1),        args.num_experts,
            args.topk_idx.size(1), static_cast<bool>(args.topk_weights)};
  }
  /// Checks the arguments of a combine. Returns the channel of its handle.
  /// Throws: `error` invalid_argument.
  [[nodiscard]] low_latency_channel& checked(const low_latency_combine_args& args) const {
    constexpr std::string_view call = "low_latency_combine";
    low_latency_channel& channel = calls_.channels().of({call, "handle"}, args.handle.batch);
    low_latency_key shape = channel.shape();
    shape.max_tokens = channel.bound_of(args.handle.batch.number());
    const argument logfmt{call, "use_logfmt"};
    logfmt.require(!args.use_logfmt || !args.zero_copy,
                   "and zero_copy are both true, expected at most one");
    logfmt.require(!args.use_logfmt || shape.hidden % codec::logfmt10::hidden_multiple == 0,
                   "is true and hidden is ", shape.hidden, ", expected a multiple of ",
                   codec::logfmt10::hidden_multiple);
    require_one_delivery(call, args.async_finish, args.return_recv_hook);
    require_form({call, "x"}, args.x,
                 {{dtype::bfloat16},
                  {local_experts(shape.experts), comm_.size() * shape.max_tokens, shape.hidden},
                  false});
    require_form({call, "topk_idx"}, args.topk_idx,
                 {{dtype::int64, dtype::int32}, {any, shape.top_k}});
    check_target(options_, comm_.size(), args, shape);
    require_form_if_given({call, "combine_wait_recv_cost_stats"}, args.combine_wait_recv_cost_stats,
                          {{dtype::int64}, {comm_.size()}});
    return channel;
  }

  static wire_format format_of(const low_latency_dispatch_args& args) noexcept {
    if (!args.use_fp8) return wire_format::bf16;
    if (args.use_ue8m0) return wire_format::fp8_ue8m0;
    return args.round_scale ? wire_format::fp8_rounded : wire_format::fp8;
  }

  /// Requires that a call does not ask for both an event and a hook.
  /// Throws: `error` invalid_argument.
  static void require_one_delivery(std::string_view call, bool async_finish,
                                   bool return_recv_hook) {
    const argument both{call, "async_finish"};
    both.require(!async_finish || !return_recv_hook,
                 "and return_recv_hook are both true, expected at most one");
  }

  [[nodiscard]] std::size_t local_experts(std::size_t experts) const noexcept {
    return moe::expert_placement{experts, comm_.size()}.count(comm_.rank());
  }

  /// Returns the key of a new channel for calls of `wanted`. If there is a channel that is too
  /// small, the new one has room for at least twice as many tokens, unless that is more than 1024,
  /// so that bounds that grow one by one need few channels.
  [[nodiscard]] low_latency_key with_room(const low_latency_key& wanted) const {
    constexpr std::size_t most_doubled = 1024;
    low_latency_key room = wanted;
    calls_.channels().for_each([&](const low_latency_channel& known) {
      low_latency_key own = known.shape();
      const std::size_t doubled = 2 * own.max_tokens;
      const bool is_too_small = own.max_tokens < wanted.max_tokens;
      own.max_tokens = wanted.max_tokens;
      if (own == wanted && is_too_small && doubled <= most_doubled)
        room.max_tokens = std::max(room.max_tokens, doubled);
    });
    return room;
  }
  /// Returns the channel for `shape`. Collective if there is none with room for it.
  [[nodiscard]] low_latency_channel& channel_for(const low_latency_key& shape,
                                                 const std::optional<deadline>& until) {
    return calls_.channel_for(
        shape, until, [&](call_agreement& agreement) -> std::unique_ptr<low_latency_channel> {
          const low_latency_key room = with_room(shape);
          const deadline end = until.value_or(comm_.default_deadline());
          switch (room.format) {
            case wire_format::bf16: return make_channel<codec::bf16>(agreement, room, end);
            case wire_format::fp8:
              return make_channel<codec::fp8_e4m3_per_128_f32>(agreement, room, end);
            case wire_format::fp8_rounded:
              return make_channel<codec::fp8_e4m3_per_128_rounded_f32>(agreement, room, end);
            case wire_format::fp8_ue8m0: break;
          }
          return make_channel<codec::fp8_e4m3_per_128_ue8m0>(agreement, room, end);
        });
  }
  template <class Codec>
  [[nodiscard]] auto make_channel(call_agreement& agreement, const low_latency_key& shape,
                                  deadline until) {
    return std::make_unique<low_latency_exchange<Transport, Codec>>(comm_, agreement, shape,
                                                                    options_, until);
  }

  communicator<Transport>& comm_;
  buffer_options options_;
  rank_masks masks_;
  collective_calls<Transport, low_latency_channel> calls_;
  std::uint64_t resumed_ = comm_.view().number();  ///< the view in which calls are made
};

}  // namespace peerbus::deep_ep::detail

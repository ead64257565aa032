// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include <peerbus/codec/as_given.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/check_options.hpp>
#include <peerbus/compat/deep_ep/detail/collective_calls.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_channel.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_exchange.hpp>
#include <peerbus/compat/deep_ep/detail/token_scales.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep {

/// DeepEP V2's ElasticBuffer with `do_expand`, with its names and meanings. Rows arrive grouped by
/// expert, ready for a grouped GEMM, together with their origins. The form without `do_expand` is
/// `buffer::dispatch`. Memory, errors and threads as for `buffer`.
template <transport Transport>
class elastic_buffer {
 public:
  /// Makes a buffer without communicating and without memory for rows. `comm` must outlive it.
  /// Throws: `error` invalid_argument or unsupported for an option that cannot be honoured.
  explicit elastic_buffer(communicator<Transport>& comm, const elastic_options& options = {})
      : comm_{comm}, options_{options}, calls_{comm, "dispatch", detail::expanded_parts} {
    detail::require_tokens("elastic_buffer", options.num_max_tokens_per_rank);
    detail::require_in_flight("elastic_buffer", options.in_flight);
    const detail::argument multiple{"elastic_buffer", "allow_multiple_reduction"};
    multiple.refuse_if_given(options.allow_multiple_reduction,
                             "rows of a token are added up once, at home; expected false");
  }
  elastic_buffer(const elastic_buffer&) = delete;
  elastic_buffer& operator=(const elastic_buffer&) = delete;
  ~elastic_buffer() = default;

  /// Collective. Sends each token to every expert that it names. Returns when all rows for this
  /// rank's experts have arrived.
  /// Cost: that of a compact `moe::exchange::dispatch`. Rows are not copied again.
  [[nodiscard]] elastic_dispatch_result dispatch(const elastic_dispatch_args& args) {
    if (args.previous_event) args.previous_event->current_stream_wait();
    calls_.begin(args.until);
    calls_.or_refuse(args.until, [&] {
      refuse_unsupported("dispatch", args);
      check_terms(args);
    });
    return channel_for(
               {args.x.type() != dtype::bfloat16, args.x.size(1), args.num_experts,
                args.topk_idx.size(1), detail::scale_bytes(args.x_scales),
                static_cast<bool>(args.topk_weights), args.expert_alignment, args.do_zero_padding},
               args.until)
        .dispatch(args);
  }

  /// Collective. Returns rows to their home ranks and adds them up there, unweighted. A dispatch
  /// can be combined any number of times, until `in_flight` later ones; its results are then those
  /// of the latest combine. Returns when the sums are complete. With `async_with_compute_stream` it
  /// may return earlier, and the event completes the sums.
  /// Cost: copies each row once.
  /// Throws, on all ranks, besides the errors of `buffer`: `error` mismatch if only some ranks give
  /// weights.
  [[nodiscard]] elastic_combine_result combine(const elastic_combine_args& args) {
    if (args.previous_event) args.previous_event->current_stream_wait();
    calls_.begin(args.until);
    return calls_
        .or_refuse(args.until,
                   [&]() -> detail::expanded_channel& {
                     refuse_unsupported("combine", args);
                     return calls_.channels().of({"combine", "handle"}, args.handle.batch);
                   })
        .combine(args);
  }

  /// Does as `buffer::refuse`.
  void refuse(const error& why, std::optional<deadline> until = std::nullopt) {
    calls_.begin(until);
    calls_.refuse(why, until);
  }

 private:
  template <class Args>
  static void refuse_unsupported(std::string_view call, const Args& args) {
    const detail::argument sms{call, "num_sms"};
    sms.refuse_if_given(args.num_sms != 0, "there are no SMs here; expected 0");
    const detail::argument qps{call, "num_qps"};
    qps.refuse_if_given(args.num_qps != 0, "queue pairs belong to the transport; expected 0");
    const detail::argument stream{call, "allocate_on_comm_stream"};
    stream.refuse_if_given(args.allocate_on_comm_stream,
                           "there are no streams, results lie in the buffer; leave it out");
  }

  void check_terms(const elastic_dispatch_args& args) const {
    constexpr std::string_view call = "dispatch";
    const detail::argument expand{call, "do_expand"};
    expand.refuse_if_given(!args.do_expand, "false is what buffer::dispatch is for; expected true");
    const detail::argument sync{call, "do_cpu_sync"};
    sync.refuse_if_given(!args.do_cpu_sync, "results have the rows that came; expected true");
    const detail::argument scales{call, "use_tma_aligned_col_major_sf"};
    scales.refuse_if_given(args.use_tma_aligned_col_major_sf,
                           "scales lie row by row; expected false");
    detail::require_form(
        {call, "x"}, args.x,
        {{dtype::bfloat16, dtype::float8_e4m3fn, dtype::int8}, {detail::any, detail::any}});
    const std::size_t tokens = args.x.size(0);
    detail::check_scales({call, "x_scales"}, args.x_scales, tokens);
    detail::require_form({call, "topk_idx"}, args.topk_idx,
                         {{dtype::int64, dtype::int32}, {tokens, detail::any}});
    detail::require_form_if_given({call, "topk_weights"}, args.topk_weights,
                                  {{dtype::float32}, {tokens, args.topk_idx.size(1)}});
    const std::size_t local =
        moe::expert_placement{args.num_experts, comm_.size()}.count(comm_.rank());
    detail::require_form_if_given({call, "cumulative_local_expert_recv_stats"},
                                  args.cumulative_local_expert_recv_stats,
                                  {{dtype::int32}, {local}});
    const detail::argument most{call, "num_max_tokens_per_rank"};
    most.require(args.num_max_tokens_per_rank.value_or(options_.num_max_tokens_per_rank) ==
                     options_.num_max_tokens_per_rank,
                 "is ", args.num_max_tokens_per_rank.value_or(0),
                 ", expected none or the buffer's ", options_.num_max_tokens_per_rank);
  }

  /// Returns the channel for `shape`. Collective if the shape is new.
  [[nodiscard]] detail::expanded_channel& channel_for(const detail::expanded_shape& shape,
                                                      const std::optional<deadline>& until) {
    return calls_.channel_for(
        shape, until,
        [&](detail::call_agreement& agreement) -> std::unique_ptr<detail::expanded_channel> {
          const deadline end = until.value_or(comm_.default_deadline());
          if (shape.bytes)
            return std::make_unique<detail::expanded_exchange<Transport, codec::fp8_e4m3_as_given>>(
                comm_, agreement, shape, options_, end);
          return std::make_unique<detail::expanded_exchange<Transport, codec::bf16>>(
              comm_, agreement, shape, options_, end);
        });
  }

  communicator<Transport>& comm_;
  elastic_options options_;
  detail::collective_calls<Transport, detail::expanded_channel> calls_;
};

}  // namespace peerbus::deep_ep

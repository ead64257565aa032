// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/compat/cann.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/ascend.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_channel.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// Calls of one shape, whatever carries them.
class ascend_channel {
 public:
  explicit ascend_channel(const low_latency_shape& shape) : shape_{shape} {}
  ascend_channel(const ascend_channel&) = delete;
  ascend_channel& operator=(const ascend_channel&) = delete;
  virtual ~ascend_channel() = default;

  [[nodiscard]] const low_latency_shape& shape() const noexcept { return shape_; }
  virtual ascend_dispatch_result dispatch(const ascend_dispatch_args& args) = 0;
  virtual ascend_combine_result combine(const ascend_combine_args& args) = 0;

 private:
  low_latency_shape shape_;
};

/// As DeepEP-Ascend does it: by the operators.
template <transport Transport, cann::operator_codec Codec>
class ascend_exchange final : public ascend_channel {
 public:
  /// Collective, as the operators' constructor.
  ascend_exchange(communicator<Transport>& comm, const low_latency_shape& shape,
                  std::size_t in_flight, deadline until)
      : ascend_channel{shape},
        operators_{comm,
                   {.hidden = shape.hidden,
                    .top_k = shape.top_k,
                    .max_tokens = shape.max_tokens,
                    .in_flight = in_flight,
                    .moe_expert_num = static_cast<std::int64_t>(shape.experts)},
                   {},
                   until},
        ranks_{comm.size()},
        ids_(shape.max_tokens * shape.top_k),
        active_{std::make_unique<bool[]>(ids_.size())},
        combined_{
            std::make_unique_for_overwrite<bf16[]>(in_flight * shape.max_tokens * shape.hidden)},
        batches_(in_flight) {}

  ascend_dispatch_result dispatch(const ascend_dispatch_args& args) override {
    const std::size_t tokens = args.x.size(0);
    const argument most{"low_latency_dispatch", "x"};
    most.require(tokens <= shape().max_tokens, "has ", tokens,
                 " tokens, expected at most num_max_dispatch_tokens_per_rank, ",
                 shape().max_tokens);
    read_ids("low_latency_dispatch", args.topk_idx, tokens);
    const auto got = operators_.dispatch({.x = args.x.values<bf16>(),
                                          .expert_ids = ids(tokens),
                                          .x_active_mask = {active_.get(), ids(tokens).size()},
                                          .until = args.until});
    const std::uint64_t number = got.rows.ticket().number;
    batch& one = batches_[number % batches_.size()];
    one.number = number;
    one.tokens = tokens;
    one.result.emplace(got);
    return publish(*one.result, number);
  }

  ascend_combine_result combine(const ascend_combine_args& args) override {
    constexpr std::string_view call = "low_latency_combine";
    batch& one = batches_[args.handle.number % batches_.size()];
    const argument handle{call, "handle"};
    handle.require(one.number == args.handle.number && one.result.has_value(), "is of dispatch ",
                   args.handle.number,
                   ", which is combined already or replaced; expected one that is neither");
    const std::size_t hidden = shape().hidden;
    const std::size_t rows = one.result->rows.rows();
    require_form({call, "x"}, args.x, {{dtype::bfloat16}, {any, hidden}});
    const argument x{call, "x"};
    x.require(args.x.size(0) >= rows, "has ", args.x.size(0), " rows, expected at least the ", rows,
              " that came");
    require_form({call, "topk_idx"}, args.topk_idx,
                 {{dtype::int64, dtype::int32}, {one.tokens, shape().top_k}});
    require_form({call, "topk_weights"}, args.topk_weights,
                 {{dtype::float32}, {one.tokens, shape().top_k}});
    read_ids(call, args.topk_idx, one.tokens);
    bf16* const out =
        combined_.get() + args.handle.number % batches_.size() * shape().max_tokens * hidden;
    operators_.combine({.dispatched = *one.result,
                        .expand_x = args.x.values<bf16>().first(rows * hidden),
                        .expert_ids = ids(one.tokens),
                        .expert_scales = args.topk_weights.values<float>(),
                        .x_active_mask = {active_.get(), ids(one.tokens).size()},
                        .out = {out, one.tokens * hidden},
                        .until = args.until});
    one.result.reset();
    return {{out, dtype::bfloat16, {one.tokens, hidden}}};
  }

 private:
  using result_type = typename cann::moe_distribute<Transport, Codec>::result;
  struct batch {
    std::uint64_t number = 0;
    std::size_t tokens = 0;
    std::optional<result_type> result;
  };

  [[nodiscard]] std::span<const std::int32_t> ids(std::size_t tokens) const noexcept {
    return std::span{ids_}.first(tokens * shape().top_k);
  }

  /// The operators have no -1: they take a mask of the slots instead.
  void read_ids(std::string_view call, const const_tensor& topk_idx, std::size_t tokens) {
    for (std::size_t i = 0; i < tokens * shape().top_k; ++i) {
      const std::int64_t id = topk_idx.type() == dtype::int64
                                  ? topk_idx.as<std::int64_t>()[i]
                                  : std::int64_t{topk_idx.as<std::int32_t>()[i]};
      const argument what{call, "topk_idx"};
      what.require(id >= -1 && id < static_cast<std::int64_t>(shape().experts), "has ", id,
                   " for token ", i / shape().top_k, ", slot ", i % shape().top_k,
                   ", expected -1 or 0 to ", shape().experts - 1);
      active_[i] = id >= 0;
      ids_[i] = static_cast<std::int32_t>(std::max<std::int64_t>(id, 0));
    }
  }

  [[nodiscard]] ascend_dispatch_result publish(const result_type& got, std::uint64_t number) {
    using element = typename Codec::element;
    const std::size_t local = got.expert_token_nums.size();
    const std::size_t most = ranks_ * shape().max_tokens * std::min(shape().top_k, local);
    // The buffer's memory, which callers of DeepEP may write; the operators' views are of the same.
    const auto writable = []<class T>(std::span<const T> values) {
      return const_cast<T*>(values.data());
    };
    ascend_dispatch_result made;
    made.recv_x = {writable(got.expand_x), dtype_of<element>, {most, shape().hidden}};
    if (Codec::scale_bytes(shape().hidden) != 0)
      made.recv_x_scales = {writable(got.dynamic_scales), dtype::float32, {most}};
    made.recv_count = {writable(got.expert_token_nums), dtype::int64, {local}};
    made.handle = {{writable(got.expand_idx), dtype::int32, {got.expand_idx.size() / 3, 3}},
                   {writable(got.ep_recv_counts), dtype::int32, {got.ep_recv_counts.size()}},
                   this,
                   number};
    return made;
  }

  cann::moe_distribute<Transport, Codec> operators_;
  std::size_t ranks_;
  std::vector<std::int32_t> ids_;
  std::unique_ptr<bool[]> active_;
  std::unique_ptr<bf16[]> combined_;
  std::vector<batch> batches_;
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/cann/arguments.hpp>
#include <peerbus/compat/cann/check_attributes.hpp>
#include <peerbus/compat/cann/check_calls.hpp>
#include <peerbus/compat/cann/deployment.hpp>
#include <peerbus/compat/cann/dispatched.hpp>
#include <peerbus/compat/cann/home_terms.hpp>
#include <peerbus/compat/cann/operations.hpp>
#include <peerbus/compat/cann/slots.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/transport/concept.hpp>

/// CANN's operators for expert parallelism over peerbus, with their names and meanings.
/// docs/cann.md states what each argument becomes, and which arguments are refused.
namespace peerbus::cann {

/// The operators MoeDistributeDispatch and MoeDistributeCombine, V2 and V3.
///
/// All ranks make the same calls in the same order, even ranks without tokens. Each dispatch may be
/// combined once, and once more after each `reopen`. Up to `in_flight` dispatches may wait for
/// their combine at the same time, and may be combined in any order that is the same on all ranks.
/// The memory of a result belongs to this object, which reuses it at the `in_flight`th next
/// dispatch. After that, combine refuses the result.
///
/// Threads: one call at a time.
template <transport Transport, operator_codec Codec>
class moe_distribute {
 public:
  /// The result of a dispatch, which combine takes.
  using result = dispatch_result<Codec>;

  /// Makes the operators. Collective. Allocates all memory of the calls, most of it untouched.
  /// Cost: two agreements, one `moe::exchange`, and one small window.
  /// Throws, on all ranks: `error` invalid_argument or unsupported for attributes that are
  /// impossible, mismatch if ranks differ in them, out_of_memory, timed_out, peer_dead, poisoned.
  moe_distribute(communicator<Transport>& comm, const attributes& attributes, Codec codec = {},
                 std::optional<deadline> until = std::nullopt)
      : moe_distribute{agreed{}, comm,
                       agree(comm, attributes, until.value_or(comm.default_deadline())), codec,
                       until.value_or(comm.default_deadline())} {}
  moe_distribute(const moe_distribute&) = delete;
  moe_distribute& operator=(const moe_distribute&) = delete;
  ~moe_distribute() = default;

  /// Returns the placement of experts on ranks.
  [[nodiscard]] const cann::deployment& experts() const noexcept { return experts_; }
  /// Returns the rank of the caller in the communicator, the operators' epRankId.
  [[nodiscard]] rank_id rank() const noexcept { return rank_; }
  /// Returns the attributes, completed with size and rank of the communicator.
  [[nodiscard]] const attributes& config() const noexcept { return attributes_; }
  /// Returns the exchange that carries the rows, for tools that measure or inspect it.
  [[nodiscard]] moe::exchange<Transport, Codec, moe::compact>& exchange() noexcept { return moe_; }

  /// Sends each active token to the MoE experts that its slots name, and to one replica of each
  /// shared expert: the replica whose index is the token's rank modulo the number of replicas.
  /// Slots that name zero, copy or constant experts are not sent. Collective:
  /// MoeDistributeDispatch. Returns when all rows for this rank's experts have arrived.
  /// Cost: that of a compact `moe::exchange::dispatch`. Rows are not copied again.
  /// Throws, on all ranks: `error` invalid_argument or unsupported on a rank whose arguments are
  /// bad, and `refused` on the others, before anything is written. Or timed_out or peer_dead, which
  /// poison the communicator.
  [[nodiscard]] result dispatch(const dispatch_arguments& given) {
    operations_.begin();
    auto found = detail::objections_to(given, attributes_, max_tokens_);
    if (found.none_yet()) {
      const detail::active_mask active{given.x_active_mask, given.x.size() / attributes_.hidden,
                                       attributes_.top_k};
      found.add(own_.next.take(given.expert_ids, active, experts_.ids()));
    }
    if (!found.none_yet()) {
      operations_.refuse_dispatch(given.until);
      throw error{*found.first()};
    }

    const auto numbers = own_.next.numbers(experts_, rank_, own_.numbers);
    const auto weights = std::span<const float>{own_.ones}.first(numbers.size());
    const std::size_t tokens = given.x.size() / attributes_.hidden;
    const auto rows = operations_.dispatch(tokens, given.until, [&] {
      return counting_waits(given.performance_info, [&](std::span<std::int64_t> waited) {
        return moe_.dispatch(given.x, {numbers, weights}, {.until = given.until, .waited = waited});
      });
    });
    // Only now: if a dispatch is refused, the earlier batch in this place must stay as it is.
    batch& this_batch = own_.batches.of(rows.ticket().number);
    std::swap(this_batch.slots, own_.next);
    return this_batch.arrays.publish(rows, attributes_.hidden, given.expert_token_nums_type == 0);
  }

  /// Adds up the terms of each token of the dispatch in this order, by fused multiply-add in f32,
  /// and rounds to bf16 once. Collective: MoeDistributeCombine.
  ///
  /// out[t] = shared_expert_x[t] + the sum over its active slots k of expert_scales[t, k] x term
  ///          + the output of each shared expert for it, in the order of the shared experts
  ///
  /// The term depends on the expert that the slot names. For a MoE expert it is the output of the
  /// expert. For a copy expert it is ori_x[t]. For a constant expert c it is alpha_1[c] x ori_x[t]
  /// + alpha_2[c] x v[c], added in this order by fused multiply-add in f32 and rounded to bf16. A
  /// zero expert has no term. A token without active slots gets shared_expert_x[t], or 0. Returns
  /// when `out` is complete.
  /// Cost: copies `expand_x` once, unless it is empty or `dispatched.expert_out`.
  /// Throws: as `dispatch`. Bad arguments leave `dispatched` unchanged. A result of another object,
  /// or one that is too old or already combined, is a bad argument. On all ranks, `error` mismatch
  /// if they give results of different dispatches.
  void combine(const combine_arguments<Codec>& given) {
    operations_.begin();
    const moe::received<Codec>& rows = given.dispatched.rows;
    // A result that cannot be combined: the exchange throws the reason and leaves its rows as they
    // are.
    if (!operations_.knows(rows) || operations_.is_combined(rows))
      return operations_.refuse_misuse(
          given.until, [&] { moe_.combine(rows, given.out, {.until = given.until}); });
    const batch& this_batch = own_.batches.of(rows.ticket().number);
    const auto found = detail::objections_to(given, attributes_, this_batch.slots);
    if (!found.none_yet()) {
      tell_others(given.dispatched, given.until);
      throw error{*found.first()};
    }

    const auto outputs = std::as_writable_bytes(given.dispatched.expert_out);
    const auto expand_x = std::as_bytes(given.expand_x);
    peerbus::detail::copy_bytes(outputs.data(), expand_x.data(), expand_x.size());
    operations_.combine(rows, given.until, [&] {
      counting_waits(given.performance_info, [&](std::span<std::int64_t> waited) {
        moe_.combine(rows, given.out,
                     {.until = given.until,
                      .terms = own_.terms.of(given, this_batch.slots, experts_),
                      .waited = waited});
      });
    });
  }

  /// Reopens a combined dispatch: its `expert_out` may be rewritten, and it may be combined again.
  /// Collective. Returns when all ranks have called it. Does nothing for an open dispatch.
  /// Cost: one signal to each peer.
  /// Throws: as `combine`, if `dispatched` is of another object or too old. The dispatches that
  /// other ranks gave may then be open.
  void reopen(const result& dispatched, std::optional<deadline> until = std::nullopt) {
    operations_.begin();
    if (!operations_.knows(dispatched.rows))
      return operations_.refuse_misuse(until,
                                       [&] { moe_.reopen(dispatched.rows, {.until = until}); });
    if (operations_.is_combined(dispatched.rows)) operations_.reopen(dispatched.rows, until);
  }

  /// Refuses the dispatch that the other ranks make, which throw `error` refused. Collective. For
  /// callers that find an error in their input before the call.
  /// Throws: timed_out, peer_dead, poisoned.
  void refuse_dispatch(std::optional<deadline> until = std::nullopt) {
    operations_.begin();
    operations_.refuse_dispatch(until);
  }
  /// Refuses the combine of `dispatched` that the others make. Contract as `refuse_dispatch`.
  void refuse_combine(const result& dispatched, std::optional<deadline> until = std::nullopt) {
    operations_.begin();
    tell_others(dispatched, until);
  }

 private:
  struct batch {
    detail::slot_table slots;
    detail::result_arrays arrays;
  };
  /// The memory that this rank needs besides the exchange.
  struct own_memory {
    moe::per_batch<batch> batches;
    detail::slot_table next;  ///< slots of the dispatch in progress
    std::vector<std::int32_t> numbers;
    std::vector<float> ones;
    std::vector<std::int64_t> waited;
    detail::home_terms terms;
  };

  struct agreed {};

  moe_distribute(agreed, communicator<Transport>& comm, const attributes& attributes, Codec codec,
                 deadline until)
      : attributes_{completed(attributes, comm)},
        max_tokens_{detail::max_tokens_of(attributes, comm.size())},
        rank_{comm.rank()},
        experts_{attributes, comm.size()},
        operations_{comm, std::min(attributes.in_flight, moe::max_in_flight), until},
        moe_{comm,
             {.experts = experts_.numbers(),
              .hidden = attributes.hidden,
              .top_k = experts_.slots(),
              .max_tokens = max_tokens_,
              .in_flight = attributes.in_flight,
              .relay = attributes.relay,
              .weights_at_combine = true},
             codec,
             moe::compact{},
             until},
        own_{make_memory(comm, until)} {
    operations_.serve(moe_);
  }

  /// Makes the memory that this rank needs besides the exchange. Collective.
  /// Throws, on all ranks: `error` out_of_memory, or as `agree`.
  own_memory make_memory(communicator<Transport>& comm, deadline until) {
    return comm.on_all_ranks("what moe_distribute keeps of calls", until, [&] {
      const std::size_t slots = max_tokens_ * experts_.slots();
      std::vector<batch> batches;
      batches.reserve(attributes_.in_flight);
      for (std::size_t i = 0; i < attributes_.in_flight; ++i)
        batches.push_back(
            {.slots = {max_tokens_, attributes_.top_k},
             .arrays = {experts_.local_experts(rank_), comm.size(), moe_.map().row_capacity}});
      return own_memory{.batches = moe::per_batch<batch>{std::move(batches)},
                        .next = {max_tokens_, attributes_.top_k},
                        .numbers = std::vector<std::int32_t>(slots),
                        .ones = std::vector<float>(slots, 1.0F),
                        .waited = std::vector<std::int64_t>(comm.size()),
                        .terms = {attributes_, experts_, max_tokens_}};
    });
  }

  /// Returns `attributes`, after all ranks have agreed on them. Collective.
  static attributes agree(communicator<Transport>& comm, const attributes& attributes,
                          deadline until) {
    const auto objection = detail::objection_to<Codec>(attributes, comm.size(), comm.rank());
    comm.agree("moe_distribute",
               objection ? std::vector<declared>{} : detail::declared_by(attributes, comm.size()),
               until, objection);
    return attributes;
  }

  /// Returns the attributes with the size and rank of the communicator, and without the views of
  /// the caller's texts, which may not live as long.
  static attributes completed(attributes attributes, const communicator<Transport>& comm) noexcept {
    attributes.ep_world_size = static_cast<std::int64_t>(comm.size());
    attributes.ep_rank_id = static_cast<std::int64_t>(comm.rank().index());
    attributes.group_tp = {};
    attributes.comm_alg = {};
    return attributes;
  }

  /// Returns what `call(waited)` returns. The exchange counts nanoseconds in `waited`, which is
  /// empty if `performance_info` is. Adds them to `performance_info` in microseconds, even if the
  /// call throws, because the wait for a missing rank counts.
  template <class Call>
  decltype(auto) counting_waits(std::span<std::int64_t> performance_info, Call&& call) {
    if (performance_info.empty()) return call(std::span<std::int64_t>{});
    const std::span<std::int64_t> waited{own_.waited};
    std::ranges::fill(waited, 0);
    struct adding {
      std::span<const std::int64_t> nanoseconds;
      std::span<std::int64_t> sums;
      adding(std::span<const std::int64_t> addends, std::span<std::int64_t> totals) noexcept
          : nanoseconds{addends}, sums{totals} {}
      adding(const adding&) = delete;
      adding& operator=(const adding&) = delete;
      ~adding() {
        for (std::size_t r = 0; r < sums.size(); ++r) sums[r] += nanoseconds[r] / 1000;
      }
    };
    const adding at_the_end{waited, performance_info};
    return call(waited);
  }

  /// Refuses the combine of `dispatched` on all ranks. The exchange tells the other ranks.
  void tell_others(const result& dispatched, std::optional<deadline> until) {
    try {
      moe_.combine(dispatched.rows, {}, {.until = until, .refuse = true});
    } catch (const error& refusal) {
      if (refusal.code() != errc::invalid_argument) throw;
    }
  }

  attributes attributes_;
  std::size_t max_tokens_;
  rank_id rank_;
  cann::deployment experts_;
  detail::operations<moe::exchange<Transport, Codec, moe::compact>> operations_;
  moe::exchange<Transport, Codec, moe::compact> moe_;
  own_memory own_;
};

}  // namespace peerbus::cann

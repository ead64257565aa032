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
#include <peerbus/communicator.hpp>
#include <peerbus/compat/cann/arguments.hpp>
#include <peerbus/compat/cann/check_attributes.hpp>
#include <peerbus/compat/cann/check_calls.hpp>
#include <peerbus/compat/cann/deployment.hpp>
#include <peerbus/compat/cann/dispatched.hpp>
#include <peerbus/compat/cann/home_terms.hpp>
#include <peerbus/compat/cann/slots.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/make_together.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/transport/concept.hpp>

/// CANN's operators for expert parallelism, by their names and meanings, over peerbus. What each
/// argument becomes, and what is refused: docs/cann.md.
namespace peerbus::cann {

/// MoeDistributeDispatch and MoeDistributeCombine, V2 and V3.
///
/// All ranks make the same calls in the same order, also with zero tokens. Each dispatch may be
/// combined once, in any order that all ranks share; up to `in_flight` dispatches wait for their
/// combine at once. The memory of a result, and what combine needs to know of a dispatch, belong to
/// this object until its `in_flight`th next dispatch; combine refuses a result from before.
///
/// Threads: one call at a time.
template <transport Transport, operator_codec Codec>
class moe_distribute {
 public:
  using result = dispatch_result<Codec>;

  /// Collective. Takes all memory that the calls will ever use, most of it untouched.
  /// Throws, on all ranks: `error` invalid_argument or unsupported for attributes that cannot be,
  /// mismatch if ranks differ in them, out_of_memory, timed_out, peer_dead, poisoned.
  moe_distribute(communicator<Transport>& comm, const attributes& of, Codec codec = {},
                 std::optional<deadline> until = std::nullopt)
      : moe_distribute{agreed{}, comm, agree(comm, of, until.value_or(comm.default_deadline())),
                       codec, until.value_or(comm.default_deadline())} {}
  moe_distribute(const moe_distribute&) = delete;
  moe_distribute& operator=(const moe_distribute&) = delete;
  ~moe_distribute() = default;

  /// Which rank holds which experts.
  [[nodiscard]] const cann::deployment& experts() const noexcept { return experts_; }
  [[nodiscard]] rank_id rank() const noexcept { return rank_; }
  [[nodiscard]] const attributes& config() const noexcept { return of_; }
  /// What carries the rows, for tools that measure or inspect it.
  [[nodiscard]] moe::exchange<Transport, Codec, moe::compact>& exchange() noexcept { return moe_; }

  /// Collective: MoeDistributeDispatch. Sends each active token to the MoE experts that its slots
  /// name, and to one replica of each shared expert: that of its rank modulo the replicas. Slots
  /// that name zero, copy or constant experts are not sent. Returns when all rows for this rank's
  /// experts are there.
  /// Throws, on all ranks: `error` invalid_argument or unsupported on a rank whose arguments are
  /// bad and `refused` on the others, nothing having been written anywhere. Or timed_out or
  /// peer_dead, which poison the communicator.
  [[nodiscard]] result dispatch(const dispatch_arguments& given) {
    auto found = detail::objections_to(given, of_, max_tokens_);
    if (found.none_yet()) {
      const detail::active_mask active{given.x_active_mask, given.x.size() / of_.hidden, of_.top_k};
      found.add(own_.next.take(given.expert_ids, active, experts_.ids()));
    }
    if (!found.none_yet()) refuse_dispatch(*found.first(), given.until);

    const auto numbers = own_.next.numbers(experts_, rank_, own_.numbers);
    const auto weights = std::span<const float>{own_.ones}.first(numbers.size());
    const auto rows =
        moe_.dispatch(given.x, {numbers, weights},
                      {.until = given.until, .waited = waits_for(given.performance_info)});
    add_waits(given.performance_info);
    // Not before, as a dispatch that does not happen leaves the one that had the place.
    batch& one = own_.batches.of(rows.ticket().number);
    one.number = rows.ticket().number;
    one.combined = false;
    std::swap(one.slots, own_.next);
    return one.arrays.publish(rows, of_.hidden, given.expert_token_nums_type == 0);
  }

  /// Collective: MoeDistributeCombine. For each token of the dispatch, added in this order by fused
  /// multiply-add in f32 and rounded to bf16 once:
  ///
  /// out[t] = shared_expert_x[t] + the sum over its active slots k of expert_scales[t, k] x term
  ///          + what each shared expert made of it, in their order
  ///
  /// where the term is what the MoE expert made of the token; for a copy expert ori_x[t]; for a
  /// constant expert c, alpha_1[c] x ori_x[t] + alpha_2[c] x v[c], itself a sum by fused
  /// multiply-add in f32 in that order which is rounded to bf16; for a zero expert none. A token
  /// without active slots gets shared_expert_x[t], or 0. Returns when `out` is complete.
  /// Throws: as `dispatch`, the result being as before; on this rank alone, `error`
  /// invalid_argument if `dispatched` is of another object, too old, or combined already.
  void combine(const combine_arguments<Codec>& given) {
    const moe::received<Codec>& rows = given.dispatched.rows;
    batch& one = own_.batches.of(rows.ticket().number);
    // A result that is not to be combined is left alone, its rows too; the exchange says why.
    if (rows.ticket().exchange != &moe_ || one.number != rows.ticket().number || one.combined)
      return moe_.combine(rows, given.out, {.until = given.until});
    const auto found = detail::objections_to(given, of_, one.slots);
    if (!found.none_yet()) refuse_combine(*found.first(), rows, given.until);

    const std::span<bf16> outputs = given.dispatched.expert_out;
    if (!given.expand_x.empty() && given.expand_x.data() != outputs.data())
      std::copy(given.expand_x.begin(), given.expand_x.end(), outputs.begin());
    moe_.combine(rows, given.out,
                 {.until = given.until,
                  .terms = own_.terms.of(given, one.slots, experts_),
                  .waited = waits_for(given.performance_info)});
    add_waits(given.performance_info);
    one.combined = true;
  }

 private:
  struct batch {
    std::uint64_t number = 0;  ///< of the dispatch
    bool combined = false;
    detail::slot_table slots;
    detail::result_arrays arrays;
  };
  /// What this rank keeps besides the exchange.
  struct own_memory {
    moe::per_batch<batch> batches;
    detail::slot_table next;  ///< of the dispatch under way
    std::vector<std::int32_t> numbers;
    std::vector<float> ones;
    std::vector<std::int64_t> waited;
    detail::home_terms terms;
  };

  struct agreed {};

  moe_distribute(agreed, communicator<Transport>& comm, const attributes& of, Codec codec,
                 deadline until)
      : of_{completed(of, comm)},
        max_tokens_{detail::max_tokens_of(of, comm.size())},
        rank_{comm.rank()},
        experts_{of, comm.size()},
        moe_{comm,
             {.experts = experts_.numbers(),
              .hidden = of.hidden,
              .top_k = experts_.slots(),
              .max_tokens = max_tokens_,
              .in_flight = of.in_flight},
             codec,
             moe::compact{},
             until},
        own_{made_memory(comm, until)} {}

  /// Throws, on all ranks: `error` out_of_memory, or as `agree`.
  own_memory made_memory(communicator<Transport>& comm, deadline until) {
    return make_together(comm, "what moe_distribute keeps of calls", until, [&] {
      const std::size_t slots = max_tokens_ * experts_.slots();
      std::vector<batch> batches;
      for (std::size_t i = 0; i < of_.in_flight; ++i)
        batches.push_back(
            {.slots = {max_tokens_, of_.top_k},
             .arrays = {experts_.local_experts(rank_), comm.size(), moe_.map().row_capacity}});
      return own_memory{.batches = moe::per_batch<batch>{std::move(batches)},
                        .next = {max_tokens_, of_.top_k},
                        .numbers = std::vector<std::int32_t>(slots),
                        .ones = std::vector<float>(slots, 1.0F),
                        .waited = std::vector<std::int64_t>(comm.size()),
                        .terms = {of_, experts_, max_tokens_}};
    });
  }

  static attributes agree(communicator<Transport>& comm, const attributes& of, deadline until) {
    const auto objection = detail::objection_to<Codec>(of, comm.size(), comm.rank());
    comm.agree("moe_distribute",
               objection ? std::vector<declared>{} : detail::declared_by(of, comm.size()), until,
               objection);
    return of;
  }

  /// With the communicator's numbers, and without views of the caller's texts.
  static attributes completed(attributes of, const communicator<Transport>& comm) noexcept {
    of.ep_world_size = static_cast<std::int64_t>(comm.size());
    of.ep_rank_id = static_cast<std::int64_t>(comm.rank().index());
    of.group_tp = {};
    of.comm_alg = {};
    return of;
  }

  /// Where the exchange notes waits, in nanoseconds; nowhere if nobody asks for them.
  [[nodiscard]] std::span<std::int64_t> waits_for(std::span<const std::int64_t> performance_info) {
    if (performance_info.empty()) return {};
    std::fill(own_.waited.begin(), own_.waited.end(), 0);
    return own_.waited;
  }
  void add_waits(std::span<std::int64_t> performance_info) const noexcept {
    for (std::size_t r = 0; r < performance_info.size(); ++r)
      performance_info[r] += own_.waited[r] / 1000;
  }

  /// Refuses on all ranks: the others learn it from the exchange.
  /// Throws: `why`, or what went wrong meanwhile.
  [[noreturn]] void refuse_dispatch(const error& why, std::optional<deadline> until) {
    tell_others(why, [&] {
      static_cast<void>(moe_.dispatch_send({}, no_routing(), {.until = until, .refuse = true}));
    });
  }
  [[noreturn]] void refuse_combine(const error& why, const moe::received<Codec>& rows,
                                   std::optional<deadline> until) {
    tell_others(why, [&] { moe_.combine(rows, {}, {.until = until, .refuse = true}); });
  }
  template <class Refused>
  [[noreturn]] static void tell_others(const error& why, Refused&& refused) {
    try {
      refused();
    } catch (const error& told) {
      if (told.code() != errc::invalid_argument) throw;
    }
    throw why;
  }
  static moe::routing no_routing() noexcept {
    return {std::span<const std::int32_t>{}, std::span<const float>{}};
  }

  attributes of_;
  std::size_t max_tokens_;
  rank_id rank_;
  cann::deployment experts_;
  moe::exchange<Transport, Codec, moe::compact> moe_;
  own_memory own_;
};

}  // namespace peerbus::cann

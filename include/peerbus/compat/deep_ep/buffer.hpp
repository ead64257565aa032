// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/detail/check_options.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_calls.hpp>
#include <peerbus/compat/deep_ep/detail/normal_calls.hpp>
#include <peerbus/compat/deep_ep/low_latency.hpp>
#include <peerbus/compat/deep_ep/normal.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/concept.hpp>

/// DeepEP's names over peerbus. The guide is docs/porting-from-deepep.md.
namespace peerbus::deep_ep {

/// DeepEP's Buffer with its names and meanings, over any transport. It has the normal and the
/// low-latency mode. Calls of both may alternate. All ranks make the same calls in the same order.
///
/// Arguments and results are views (`tensor`). Results lie in the buffer's memory; each result type
/// states how long they stay valid. No argument is ignored: a call refuses arguments that it cannot
/// honour.
///
/// Cost of agreeing: nothing while a rank's calls of a mode have the shape of the previous one. A
/// call whose shape has changed waits until all ranks have made it.
///
/// Memory: the first call of a shape (format, hidden, experts, top_k) allocates, on all ranks
/// together. A low-latency call with a larger `num_max_dispatch_tokens_per_rank` than any before
/// allocates again, for at least twice as many tokens as the largest before, unless that is more
/// than 1024. A call with a smaller one uses the same memory. A normal dispatch for which the
/// memory is too small allocates again, for a power of two of tokens (beyond 65 536 for a multiple
/// of 65 536), even if only one rank has that many. Later calls of the shape allocate nothing, with
/// one exception: `get_dispatch_layout` and a normal `dispatch` without a handle make a new routing
/// if the caller still holds all earlier ones, and enlarge it if the call has more tokens, slots or
/// experts.
///
/// Errors: `error` invalid_argument or unsupported names the argument, the expected and the given
/// value. A collective call then has no effect on any rank. The other ranks throw `error` refused
/// at once, which quotes that text; with a hook or an event, they throw when they receive. All
/// ranks throw `error` mismatch, which names the argument, if ranks give different values to an
/// argument that must be equal or handles of different dispatches, or if only some ranks give
/// weights to a normal combine. For the handles of a combine, that takes a tenth of a second. The
/// next call works. Calls that are not collective, hooks and events throw on the calling rank only.
///
/// Threads: one call at a time.
template <transport Transport>
class buffer {
 public:
  /// Makes a buffer without communicating and without memory for rows. `comm` must outlive it.
  /// Throws: `error` invalid_argument for options that are out of range or contradict each other.
  explicit buffer(communicator<Transport>& comm, const buffer_options& options = {})
      : options_{detail::checked(options)}, normal_{comm, options_}, low_latency_{comm, options_} {}
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  ~buffer() = default;

  /// Returns the options that the buffer was made with.
  [[nodiscard]] const buffer_options& options() const noexcept { return options_; }

  // --- normal mode -------------------------------------------------------------------------------

  /// Counts the tokens for each rank and each expert, without communication. `topk_idx` is int64 or
  /// int32 [T, K]; a negative id is an unused slot. The views of the result stay valid as long as
  /// its `memory` is held.
  /// Cost: copies the ids, and writes one bool for each token and rank.
  /// Throws: `error` invalid_argument if an argument is bad or an id is not below `num_experts`.
  /// With `buffer_options::other_ids` `skipped`, ids of `num_experts` and more are accepted.
  [[nodiscard]] dispatch_layout get_dispatch_layout(const const_tensor& topk_idx,
                                                    std::size_t num_experts) {
    return normal_.layout(topk_idx, num_experts);
  }
  /// Sends each token once to every rank that holds an expert that the token names. Collective.
  /// Returns when all rows for this rank have arrived.
  /// Cost: that of a rank-major `moe::exchange::dispatch`. Rows are not copied again. The ids of
  /// each row are copied if `topk_idx` is given. Scales with gaps are copied before they travel.
  [[nodiscard]] dispatch_result dispatch(const dispatch_args& args) {
    return normal_.dispatch(args);
  }
  /// Returns rows to their home ranks and adds them up there, unweighted. Collective. Returns when
  /// the sums are complete. With `async_finish` it may return earlier, and the event completes the
  /// sums.
  /// Cost: copies each row once. If later dispatches have replaced the handle's latest dispatch, or
  /// `x` has another hidden size, first makes a dispatch without rows. Otherwise, a combine of a
  /// combined handle first waits until all ranks have called it.
  [[nodiscard]] combine_result combine(const combine_args& args) { return normal_.combine(args); }

  /// Refuses the `dispatch` or `combine` that the other ranks make, which throw `error` refused
  /// that quotes `why`. Collective. For callers that find an error in their own input before they
  /// can make the call. Returns when all ranks have learned of it.
  /// Cost: one round of messages between all ranks.
  void refuse(const error& why, std::optional<deadline> until = std::nullopt) {
    normal_.refuse(why, until);
  }
  /// States that this rank's next call is one with `do_expand`, of an `elastic_buffer`. Collective.
  /// For callers that keep a buffer of each kind under one name and choose by an argument of their
  /// caller. Returns when all ranks have stated it.
  /// Cost: one round of messages between all ranks.
  /// Throws, on all ranks: `error` mismatch if some rank calls `dispatch` or `combine`, refused if
  /// some rank calls `refuse`.
  void call_other_form(std::optional<deadline> until = std::nullopt) {
    normal_.call_other_form(until);
  }

  // --- low-latency mode --------------------------------------------------------------------------

  /// Returns exactly the size in bytes that DeepEP asks for its buffer. `low_latency_map` gives the
  /// size that this library takes instead.
  [[nodiscard]] static std::size_t get_low_latency_rdma_size_hint(
      std::size_t num_max_dispatch_tokens_per_rank, std::size_t hidden, std::size_t num_ranks,
      std::size_t num_experts) {
    return low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks,
                                      num_experts);
  }
  /// Sends each token to every expert that it names. Collective. Returns when all rows for this
  /// rank have arrived. With `return_recv_hook` or `async_finish` it returns without waiting for
  /// rows, and the hook or event completes the dispatch. The results are overwritten by the
  /// `in_flight`th next dispatch that differs from this one at most in its tokens and in
  /// `num_max_dispatch_tokens_per_rank`.
  /// Cost: that of a padded `moe::exchange::dispatch`. Rows are not copied again. Scales are copied
  /// column by column.
  [[nodiscard]] low_latency_dispatch_result low_latency_dispatch(
      const low_latency_dispatch_args& args) {
    return low_latency_.dispatch(args);
  }
  /// Returns rows to their home ranks and adds them up there, weighted. Collective. Returns when
  /// the sums are complete. With `return_recv_hook` or `async_finish` it returns without waiting
  /// for rows, and the hook or event completes the sums. A dispatch can be combined any number of
  /// times, until `in_flight` later ones. Each combine of it after the first waits until all ranks
  /// have called it. Without `out`, each combine overwrites the sums of the previous one.
  /// Cost: copies each row once, unless `zero_copy` is set.
  [[nodiscard]] low_latency_combine_result low_latency_combine(
      const low_latency_combine_args& args) {
    return low_latency_.combine(args);
  }
  /// Refuses the `low_latency_dispatch` or `low_latency_combine` that the other ranks make.
  /// Contract as `refuse`.
  void low_latency_refuse(const error& why, std::optional<deadline> until = std::nullopt) {
    low_latency_.refuse(why, until);
  }
  /// Returns the place where outputs of this handle's dispatch may be written for a `zero_copy`
  /// combine: bfloat16 [L, R*B, H], contiguous. Requires `buffer_options::zero_copy`. If the handle
  /// has been combined, the call is collective: it waits until all ranks have begun the next
  /// combine of the handle, by this call or by `low_latency_combine`.
  /// Throws, on all ranks: `error` mismatch if some rank makes another call, or has another handle.
  [[nodiscard]] tensor get_next_low_latency_combine_buffer(const low_latency_handle& handle) {
    return low_latency_.combine_buffer(handle);
  }
  /// Frees the memory of low-latency calls whose tokens, hidden or experts differ from these.
  /// Collective, and a barrier. Nothing needs to be cleaned, because signals only ever grow.
  /// Cost: one round of messages between all ranks.
  /// Throws: `error` invalid_argument if a hook or event was not called yet.
  void clean_low_latency_buffer(std::size_t num_max_dispatch_tokens_per_rank, std::size_t hidden,
                                std::size_t num_experts) {
    low_latency_.clean(num_max_dispatch_tokens_per_rank, hidden, num_experts);
  }

  /// Waits until all ranks have called it. Collective, at the same place among low-latency calls.
  /// Cost: that of `communicator::barrier`.
  void low_latency_barrier(std::optional<deadline> until = std::nullopt) {
    low_latency_.barrier(until);
  }

  /// Masks or unmasks a rank for the low-latency calls of this rank. Calls send nothing to a masked
  /// rank, as if the slots of its experts were -1. A masked rank that is alive still takes part in
  /// every call, and the rows that it sends still arrive. A rank that has died or left is masked by
  /// the call that finds out. That call goes on without the rank, which stays masked.
  /// Cost: no communication.
  /// Throws: `error` invalid_argument if the rank does not exist. All calls about masks throw it
  /// without `buffer_options::enable_shrink`.
  void low_latency_update_mask_buffer(std::size_t rank, bool mask) {
    low_latency_.masks().update(rank, mask);
  }
  /// Writes the masks of all ranks to `mask_status`, int32 [R]: 1 is masked.
  void low_latency_query_mask_buffer(const tensor& mask_status) const {
    low_latency_.masks().query(mask_status);
  }
  /// Unmasks all ranks, except ranks that have died or left.
  void low_latency_clean_mask_buffer() { low_latency_.masks().clean(); }

 private:
  buffer_options options_;
  detail::normal_calls<Transport> normal_;
  detail::low_latency_calls<Transport> low_latency_;
};

}  // namespace peerbus::deep_ep

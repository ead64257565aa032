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
/// states how long they stay valid. No argument is ignored: a call refuses what it cannot honour.
///
/// Cost of agreeing: nothing while a rank's calls of a mode have the shape of the previous one. A
/// call whose shape has changed waits until all ranks have made it.
///
/// Memory: the first call of a shape (format, hidden, experts, top_k) allocates, on all ranks
/// together, and so does a low-latency call of that shape with a larger
/// `num_max_dispatch_tokens_per_rank` than any before, for twice as many tokens as the largest
/// before. Calls with a smaller one use the same memory. A normal dispatch for which that is too
/// small allocates likewise, for a power of two of tokens (beyond 65 536 for a multiple of that),
/// even if only one rank has so many. Later calls of that shape allocate nothing, except that
/// `get_dispatch_layout` and a normal `dispatch` without a handle take a new routing if the caller
/// still holds all earlier ones, and a larger one if the call has more tokens, slots or experts.
///
/// Errors: `error` invalid_argument or unsupported names the argument, what was expected and what
/// was given. A collective call then has no effect on any rank: the other ranks throw `error`
/// refused at once, which quotes that text (with a hook or an event, when they receive). If ranks
/// give different values to an argument that must be equal, handles of different dispatches, or
/// only some give weights to a normal combine, all ranks throw `error` mismatch, which names it.
/// For handles of a combine that takes a tenth of a second. The next call works. Calls that are not
/// collective, hooks and events throw on the calling rank only.
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

  /// Returns the options that the buffer was made with, checked.
  [[nodiscard]] const buffer_options& options() const noexcept { return options_; }

  // --- normal mode -------------------------------------------------------------------------------

  /// Counts the tokens for each rank and each expert, without communication. `topk_idx` is int64 or
  /// int32 [T, K]; a negative id is an unused slot. The views of the result stay valid as long as
  /// its `memory` is held.
  /// Cost: copies the ids, and writes one bool for each token and rank.
  /// Throws: `error` invalid_argument if an id is not below `num_experts`, unless
  /// `buffer_options::other_ids` is `skipped`.
  [[nodiscard]] dispatch_layout get_dispatch_layout(const const_tensor& topk_idx,
                                                    std::size_t num_experts) {
    return normal_.layout(topk_idx, num_experts);
  }
  /// Collective. Sends each token once to every rank that holds an expert that the token names.
  /// Returns when all rows for this rank have arrived.
  /// Cost: that of a rank-major `moe::exchange::dispatch`. Rows are not copied again. With
  /// `topk_idx`, the ids of each row are. Scales are copied before they travel if they have gaps.
  [[nodiscard]] dispatch_result dispatch(const dispatch_args& args) {
    return normal_.dispatch(args);
  }
  /// Collective. Returns rows to their home ranks and adds them up there, unweighted. Returns when
  /// the sums are complete. With `async_finish` it may return earlier, and the event completes the
  /// sums.
  /// Cost: copies each row once. If later dispatches have replaced the handle's latest one, or `x`
  /// has another hidden size, a dispatch without rows precedes; else a further combine of the
  /// handle first waits until all ranks have come to it.
  [[nodiscard]] combine_result combine(const combine_args& args) { return normal_.combine(args); }

  /// Collective: refuses the `dispatch` or `combine` that the other ranks make, for callers that
  /// find an error in their own input before they can make the call. Returns when all ranks have
  /// learned of it; the others throw `error` refused, which quotes `why`.
  /// Cost: one round of messages between all ranks.
  void refuse(const error& why, std::optional<deadline> until = std::nullopt) {
    normal_.refuse(why, until);
  }
  /// Collective: states that the next call is one with `do_expand`, of an `elastic_buffer`, for
  /// callers that keep one of each under one name and choose by a caller's argument. Returns when
  /// all ranks have stated that.
  /// Cost: one round of messages between all ranks.
  /// Throws, on all ranks: `error` mismatch if some rank calls `dispatch` or `combine`, refused if
  /// some rank calls `refuse`.
  void call_other_form(std::optional<deadline> until = std::nullopt) {
    normal_.call_other_form(until);
  }

  // --- low-latency mode --------------------------------------------------------------------------

  /// Returns exactly the bytes that DeepEP asks for its buffer. The bytes that this library takes
  /// instead are those of `low_latency_map`.
  [[nodiscard]] static std::size_t get_low_latency_rdma_size_hint(
      std::size_t num_max_dispatch_tokens_per_rank, std::size_t hidden, std::size_t num_ranks,
      std::size_t num_experts) {
    return low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks,
                                      num_experts);
  }
  /// Collective. Sends each token to every expert that it names. Returns when all rows for this
  /// rank have arrived. With `return_recv_hook` or `async_finish` it returns without waiting for
  /// rows, and the hook or event completes the dispatch. The results are overwritten by the
  /// `in_flight`th next dispatch that differs from this one at most in its tokens and in
  /// `num_max_dispatch_tokens_per_rank`.
  /// Cost: that of a padded `moe::exchange::dispatch`. Rows are not copied again. Their scales are,
  /// column by column.
  [[nodiscard]] low_latency_dispatch_result low_latency_dispatch(
      const low_latency_dispatch_args& args) {
    return low_latency_.dispatch(args);
  }
  /// Collective. Returns rows to their home ranks and adds them up there, weighted. Returns when
  /// the sums are complete. With `return_recv_hook` or `async_finish` it returns without waiting
  /// for rows, and the hook or event completes the sums. A dispatch can be combined any number of
  /// times, until `in_flight` later ones; each but the first first waits until all ranks have come
  /// to it. Without `out`, each overwrites the sums of the one before.
  /// Cost: copies each row once, unless `zero_copy` is set.
  [[nodiscard]] low_latency_combine_result low_latency_combine(
      const low_latency_combine_args& args) {
    return low_latency_.combine(args);
  }
  /// Does as `refuse`, for a `low_latency_dispatch` or `low_latency_combine`.
  void low_latency_refuse(const error& why, std::optional<deadline> until = std::nullopt) {
    low_latency_.refuse(why, until);
  }
  /// Returns the place where outputs of this handle's dispatch may be written for a `zero_copy`
  /// combine: bfloat16 [L, R*B, H], contiguous. Requires `buffer_options::zero_copy`. After a
  /// combine of the handle it is collective: it waits until all ranks have come to their next one.
  /// Throws, on all ranks: `error` mismatch if some rank makes another call, or has another handle.
  [[nodiscard]] tensor get_next_low_latency_combine_buffer(const low_latency_handle& handle) {
    return low_latency_.combine_buffer(handle);
  }
  /// Collective, and a barrier. Frees the memory of low-latency calls whose tokens, hidden or
  /// experts differ from these. Nothing needs to be cleaned, because signals only ever grow.
  /// Cost: one barrier.
  /// Throws: `error` invalid_argument if a hook or event was not called yet.
  void clean_low_latency_buffer(std::size_t num_max_dispatch_tokens_per_rank, std::size_t hidden,
                                std::size_t num_experts) {
    low_latency_.clean(num_max_dispatch_tokens_per_rank, hidden, num_experts);
  }

  /// Returns after all ranks have called it, among low-latency calls. Collective.
  /// Cost: that of `communicator::barrier`.
  void low_latency_barrier(std::optional<deadline> until = std::nullopt) {
    low_latency_.barrier(until);
  }

  /// Masks or unmasks a rank for the low-latency calls of this rank. Calls send nothing to a masked
  /// rank, as if the slots of its experts were -1. A masked rank that is alive still takes part in
  /// every call, and the rows that it sends still arrive. A rank that has died or left is masked by
  /// the call that finds out, which goes on without it, and stays masked. All calls about masks
  /// require `buffer_options::enable_shrink`.
  /// Cost: no communication.
  void low_latency_update_mask_buffer(std::size_t rank, bool mask) {
    low_latency_.masks().update(rank, mask);
  }
  /// Writes the masks of all ranks to `mask_status`, int32 [R]: 1 is masked.
  void low_latency_query_mask_buffer(const tensor& mask_status) const {
    low_latency_.masks().query(mask_status);
  }
  /// Unmasks all ranks.
  void low_latency_clean_mask_buffer() { low_latency_.masks().clean(); }

 private:
  buffer_options options_;
  detail::normal_calls<Transport> normal_;
  detail::low_latency_calls<Transport> low_latency_;
};

}  // namespace peerbus::deep_ep

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string_view>

#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/detail/check_options.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_calls.hpp>
#include <peerbus/compat/deep_ep/detail/normal_calls.hpp>
#include <peerbus/compat/deep_ep/low_latency.hpp>
#include <peerbus/compat/deep_ep/normal.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep {

/// DeepEP's Buffer, by its names and meanings, over any transport: the normal and the low-latency
/// mode, side by side and in any order, which all ranks must keep alike.
///
/// Arguments and results are views (`tensor`); results lie in the buffer's memory, as each result
/// says for how long. Memory is taken, by all ranks together, when a call of a new shape first
/// comes (hidden, experts, top_k, tokens at most, format); after that calls take none.
///
/// Errors: `error` invalid_argument or unsupported names the argument, what was expected and what
/// was given; that rank has then not called. What all ranks must know of (expert ids out of range,
/// too many tokens) is refused on all of them, as in `moe::exchange`. Weights that some ranks give
/// to a normal combine and others do not are refused on all of them as `error` mismatch. No
/// argument is ignored.
///
/// Threads: one call at a time.
template <transport Transport>
class buffer {
 public:
  /// Takes no memory yet. `comm` must outlive it.
  explicit buffer(communicator<Transport>& comm, const buffer_options& options = {})
      : options_{detail::checked(options)}, normal_{comm, options_}, low_latency_{comm, options_} {}
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  ~buffer() = default;

  [[nodiscard]] const buffer_options& options() const noexcept { return options_; }

  // --- normal mode -------------------------------------------------------------------------------

  /// Counts where tokens go: no communication. `topk_idx` is int64 or int32 [T, K].
  [[nodiscard]] dispatch_layout get_dispatch_layout(const const_tensor& topk_idx,
                                                    std::size_t num_experts) {
    return normal_.layout(topk_idx, num_experts);
  }
  /// Collective. Sends each token once to every rank that has experts of it. Returns when all rows
  /// for this rank are there.
  [[nodiscard]] dispatch_result dispatch(const dispatch_args& args) {
    return normal_.dispatch(args);
  }
  /// Collective. Brings rows home and adds them up, unweighted.
  [[nodiscard]] combine_result combine(const combine_args& args) { return normal_.combine(args); }

  // --- low-latency mode --------------------------------------------------------------------------

  /// DeepEP's figure for its buffer, in bytes, to the byte. What this library takes instead:
  /// `low_latency_map`.
  [[nodiscard]] static std::size_t get_low_latency_rdma_size_hint(
      std::size_t num_max_dispatch_tokens_per_rank, std::size_t hidden, std::size_t num_ranks,
      std::size_t num_experts) {
    return low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks,
                                      num_experts);
  }
  /// Collective. Sends each token to every expert it names.
  [[nodiscard]] low_latency_dispatch_result low_latency_dispatch(
      const low_latency_dispatch_args& args) {
    return low_latency_.dispatch(args);
  }
  /// Collective. Brings rows home and adds them up there, weighted.
  [[nodiscard]] low_latency_combine_result low_latency_combine(
      const low_latency_combine_args& args) {
    return low_latency_.combine(args);
  }
  /// bfloat16 [L, R*B, H], rows side by side: where outputs may be written for a `zero_copy`
  /// combine of this handle. Needs `buffer_options::zero_copy`.
  [[nodiscard]] tensor get_next_low_latency_combine_buffer(const low_latency_handle& handle) {
    return low_latency_.combine_buffer(handle);
  }
  /// Collective; a barrier. Gives back the memory of low-latency calls of other shapes. Nothing
  /// needs to be cleaned: signals only ever grow.
  void clean_low_latency_buffer(std::size_t num_max_dispatch_tokens_per_rank, std::size_t hidden,
                                std::size_t num_experts) {
    low_latency_.clean(num_max_dispatch_tokens_per_rank, hidden, num_experts);
  }

  // Ranks that low-latency calls send nothing to, as if the slots of their experts were -1; of this
  // rank alone, 1: masked. A masked rank that is alive still takes part in every call, and what it
  // sends still arrives; one that dies ends the communicator, masked or not. Need
  // `buffer_options::enable_shrink`.
  void low_latency_update_mask_buffer(std::size_t rank, bool mask) {
    low_latency_.masks().update(rank, mask);
  }
  /// `mask_status`: int32 [R].
  void low_latency_query_mask_buffer(const tensor& mask_status) const {
    low_latency_.masks().query(mask_status);
  }
  void low_latency_clean_mask_buffer() { low_latency_.masks().clean(); }

 private:
  buffer_options options_;
  detail::normal_calls<Transport> normal_;
  detail::low_latency_calls<Transport> low_latency_;
};

}  // namespace peerbus::deep_ep

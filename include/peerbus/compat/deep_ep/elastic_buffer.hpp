// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_calls.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
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
      : calls_{comm, options} {}
  elastic_buffer(const elastic_buffer&) = delete;
  elastic_buffer& operator=(const elastic_buffer&) = delete;
  ~elastic_buffer() = default;

  /// Collective. Sends each token to every expert that it names, or that `handle` names for it.
  /// Returns when all rows for this rank's experts have arrived.
  /// Cost: that of a compact `moe::exchange::dispatch`. Rows are not copied again.
  /// Throws, on all ranks, besides the errors of `buffer`: `error` mismatch if ranks give handles
  /// of different dispatches, or only some of them give a handle.
  [[nodiscard]] elastic_dispatch_result dispatch(const elastic_dispatch_args& args) {
    return calls_.dispatch(args);
  }

  /// Collective. Returns rows to their home ranks and adds them up there, unweighted. A handle can
  /// be combined any number of times, after any number of later dispatches; the results of its
  /// combines are then those of the latest. Returns when the sums are complete. With
  /// `async_with_compute_stream` it may return earlier, and the event completes the sums.
  /// Cost: copies each row once. If `in_flight` dispatches of the same shape came after the latest
  /// one of the handle, or hidden differs from it, a dispatch without rows comes first.
  /// Throws, on all ranks, besides the errors of `buffer`: `error` mismatch if only some ranks give
  /// weights.
  [[nodiscard]] elastic_combine_result combine(const elastic_combine_args& args) {
    return calls_.combine(args);
  }

  /// Does as `buffer::refuse`.
  void refuse(const error& why, std::optional<deadline> until = std::nullopt) {
    calls_.refuse(why, until);
  }

 private:
  detail::expanded_calls<Transport> calls_;
};

}  // namespace peerbus::deep_ep

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/agrs_sessions.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/expanded_calls.hpp>
#include <peerbus/compat/deep_ep/engram_buffer.hpp>
#include <peerbus/compat/deep_ep/expanded.hpp>
#include <peerbus/compat/deep_ep/pp_buffer.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep {

/// DeepEP V2's ElasticBuffer with `do_expand`, with its names and meanings. Rows arrive grouped by
/// expert, ready for a grouped GEMM, together with their origins. The form without `do_expand` is
/// `buffer::dispatch`. The buffer also has entries that all ranks store and each rank reads by
/// number (`engram_...`), tensors for neighbours in a ring (`pp_...`), and all-gathers in sessions
/// (`agrs_...`). Each of these allocates memory of its own when it is first used or configured. The
/// rules of `buffer` on memory, errors and threads hold here too.
template <transport Transport>
class elastic_buffer {
 public:
  /// Makes a buffer without communicating and without memory for rows. `comm` must outlive it.
  /// Throws: `error` invalid_argument or unsupported for an option that cannot be honoured.
  explicit elastic_buffer(communicator<Transport>& comm, const elastic_options& options = {})
      : comm_{comm}, calls_{comm, options}, engram_{comm} {}
  elastic_buffer(const elastic_buffer&) = delete;
  elastic_buffer& operator=(const elastic_buffer&) = delete;
  ~elastic_buffer() = default;

  /// Sends each token to every expert that it names, or that `handle` names for it. Collective.
  /// Returns when all rows for this rank's experts have arrived.
  /// Cost: that of a compact `moe::exchange::dispatch`. Rows are not copied again.
  /// Throws, on all ranks, besides the errors of `buffer`: `error` mismatch if ranks give handles
  /// of different dispatches, or only some ranks give a handle.
  [[nodiscard]] elastic_dispatch_result dispatch(const elastic_dispatch_args& args) {
    return calls_.dispatch(args);
  }

  /// Returns rows to their home ranks and adds them up there, unweighted. Collective. A handle can
  /// be combined any number of times, after any number of later dispatches. Each combine of a
  /// handle overwrites the results of the previous one. Returns when the sums are complete. With
  /// `async_with_compute_stream` it may return earlier, and the event completes the sums.
  /// Cost: copies each row once. If `in_flight` dispatches of the same shape followed the handle's
  /// latest dispatch, or `x` has another hidden size, first makes a dispatch without rows.
  /// Throws, on all ranks, besides the errors of `buffer`: `error` mismatch if only some ranks give
  /// weights.
  [[nodiscard]] elastic_combine_result combine(const elastic_combine_args& args) {
    return calls_.combine(args);
  }

  /// Refuses the `dispatch` or `combine` that the other ranks make. Collective. Contract as
  /// `buffer::refuse`.
  void refuse(const error& why, std::optional<deadline> until = std::nullopt) {
    calls_.refuse(why, until);
  }
  /// States that this rank's next call is one without `do_expand`, of a `buffer`. Collective.
  /// Contract as `buffer::call_other_form`.
  void call_other_form(std::optional<deadline> until = std::nullopt) {
    calls_.call_other_form(until);
  }

  // --- entries -----------------------------------------------------------------------------------

  /// Stores this rank's entries, [entries, hidden], and the scales of the entries of all ranks, if
  /// there are any. Collective. Contract as `engram_buffer::write` with one table.
  void engram_write(const const_tensor& storage, const const_tensor& sf = {},
                    std::optional<deadline> until = std::nullopt) {
    engram_.write({&storage, 1}, {&sf, sf ? std::size_t{1} : 0}, until);
  }
  /// Reads entries that `engram_write` has stored, from the memory of their ranks. Contract as
  /// `engram_buffer::fetch`.
  [[nodiscard]] engram_rows engram_fetch(const const_tensor& indices,
                                         bool use_tma_aligned_col_major_sf = false) {
    return engram_.fetch(indices, 0, use_tma_aligned_col_major_sf);
  }

  // --- neighbours --------------------------------------------------------------------------------

  /// Allocates memory for tensors between neighbours. Collective. Contract as the constructor of
  /// `pp_buffer`. Tensors that were sent before and not received are lost.
  void pp_set_config(const pp_config& sizes, std::optional<deadline> until = std::nullopt) {
    pp_ = std::make_unique<pp_buffer>(comm_, sizes, until);
  }
  /// Sends a tensor to the previous or the next rank. Contract as `pp_buffer::send`.
  void pp_send(const const_tensor& t, std::size_t dst_rank_idx,
               std::optional<deadline> until = std::nullopt) {
    configured("pp_send", "pp_set_config", pp_).send(t, dst_rank_idx, until);
  }
  /// Receives the next tensor of the previous or the next rank into `t`. Contract as
  /// `pp_buffer::recv`.
  void pp_recv(const tensor& t, std::size_t src_rank_idx,
               std::optional<deadline> until = std::nullopt) {
    configured("pp_recv", "pp_set_config", pp_).recv(t, src_rank_idx, until);
  }

  // --- gathers -----------------------------------------------------------------------------------

  /// Allocates memory for the gathered tensors of a session. Collective. Contract as the
  /// constructor of `agrs_sessions`.
  void agrs_set_config(const agrs_config& sizes, std::optional<deadline> until = std::nullopt) {
    agrs_ = std::make_unique<agrs_sessions>(comm_, sizes, until);
  }
  /// Begins a session. Contract as `agrs_sessions::begin`.
  void create_agrs_session() { sessions("create_agrs_session").begin(); }
  /// Ends the session. Collective. Contract as `agrs_sessions::end`.
  void destroy_agrs_session(std::optional<deadline> until = std::nullopt) {
    sessions("destroy_agrs_session").end(until);
  }
  /// Returns this rank's part of a tensor that the next `all_gather` gathers. Contract as
  /// `agrs_sessions::place`.
  [[nodiscard]] tensor agrs_get_inplace_tensor(std::initializer_list<std::size_t> shape, dtype type,
                                               std::span<const const_tensor> earlier = {}) {
    return sessions("agrs_get_inplace_tensor").place(shape, type, earlier);
  }
  ///@{
  /// Gathers one or several tensors from all ranks. Collective. Contract as
  /// `agrs_sessions::gather`.
  [[nodiscard]] all_gather_result all_gather(const const_tensor& t) {
    return all_gather(std::span{&t, 1});
  }
  [[nodiscard]] all_gather_result all_gather(std::span<const const_tensor> tensors) {
    return sessions("all_gather").gather(tensors);
  }
  ///@}

 private:
  template <class Part>
  [[nodiscard]] static Part& configured(std::string_view call, std::string_view set_config,
                                        const std::unique_ptr<Part>& part) {
    const detail::argument configuration{call, set_config};
    configuration.require(part != nullptr, "was not called, expected it before");
    return *part;
  }
  [[nodiscard]] agrs_sessions& sessions(std::string_view call) const {
    return configured(call, "agrs_set_config", agrs_);
  }

  communicator<Transport>& comm_;
  detail::expanded_calls<Transport> calls_;
  engram_buffer engram_;
  std::unique_ptr<pp_buffer> pp_;
  std::unique_ptr<agrs_sessions> agrs_;
};

}  // namespace peerbus::deep_ep

// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/channel_set.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The collective calls of one mode of a buffer: their channels, and the agreement of the ranks on
/// their arguments. The first call makes the agreement, so that a buffer is made without
/// communicating.
template <transport Transport, class Channel>
class collective_calls {
 public:
  /// `title` names the calls in errors, `parts` the numbers of their keys.
  collective_calls(communicator<Transport>& comm, std::string_view title, key_parts parts)
      : comm_{comm}, title_{title}, parts_{parts} {}

  /// Begins a collective call. All that may refuse it comes later, in `or_refuse`.
  void begin(const std::optional<deadline>& until) {
    if (agreement_ == nullptr) {
      const deadline limit = until.value_or(comm_.default_deadline());
      // Early ranks wait here, where a transport can end the wait. A bootstrap cannot.
      comm_.barrier(limit);
      agreement_ = std::make_unique<call_agreement>(comm_, title_, parts_, channels_, limit);
    }
    agreement_->begin();
  }
  /// Returns what `check()` returns. If it throws, all ranks refuse the call, and this rank throws
  /// that error.
  template <class Check>
  decltype(auto) or_refuse(const std::optional<deadline>& until, Check&& check) {
    return agreement_->or_refuse(until, std::forward<Check>(check));
  }
  /// Returns the number of the call. The same on all ranks.
  [[nodiscard]] std::uint64_t number() const noexcept { return agreement_->number(); }
  /// Makes all ranks refuse the call because of `why`.
  void refuse(const error& why, const std::optional<deadline>& until) {
    agreement_->refuse(why, until);
  }
  /// Throws, on all ranks, if ranks give different keys to this call.
  void agree(const call_key& key, bool has_channel, const std::optional<deadline>& until) {
    agreement_->agree(key, has_channel, until);
  }
  /// Returns the channel for `shape`, on which all ranks agree. If the shape is new, calls
  /// `make(agreement)`, which is collective.
  template <class Shape, class Make>
  [[nodiscard]] Channel& channel_for(const Shape& shape, const std::optional<deadline>& until,
                                     Make&& make) {
    Channel* const known = channels_.find(shape);
    agree(numbers_of(shape), known != nullptr, until);
    if (known != nullptr) return *known;
    return channels_.add(std::forward<Make>(make)(*agreement_));
  }
  [[nodiscard]] channel_set<Channel>& channels() noexcept { return channels_; }
  [[nodiscard]] const channel_set<Channel>& channels() const noexcept { return channels_; }

 private:
  communicator<Transport>& comm_;
  std::string_view title_;
  key_parts parts_;
  std::unique_ptr<call_agreement> agreement_;  ///< outlives the channels, which refer to it
  channel_set<Channel> channels_;
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/channel_set.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/fnv_hash.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The collective calls of one mode of a buffer: their channels, and the agreement of the ranks on
/// their arguments. The first call makes the agreement, so that a buffer can be made without
/// communicating.
template <transport Transport, class Channel>
class collective_calls {
 public:
  /// Makes the calls without communicating. `names` are the names of the calls in errors, and
  /// `parts` the names of the numbers of their keys.
  collective_calls(communicator<Transport>& comm, const call_names& names, key_parts parts)
      : comm_{comm}, names_{names}, parts_{parts} {}

  /// Begins a collective call. Checks that may refuse the call must come later, in `or_refuse`.
  void begin(const std::optional<deadline>& until) {
    if (!recover_) comm_.require_healthy(names_.dispatch);  // In view 0 only.
    void_channels_.clear();
    void_agreement_.reset();
    if (agreement_ == nullptr) {
      const deadline limit = until.value_or(comm_.default_deadline());
      // Early ranks wait here, where a transport can end the wait. A bootstrap cannot.
      comm_.barrier(limit);
      agreement_ = std::make_unique<call_agreement>(comm_, names_, parts_, channels_, limit);
      agreement_->recover_by(recover_);
    }
    agreement_->begin();
  }
  /// Sets `recover`. An operation that fails because a rank is gone goes on if `recover` returns
  /// true.
  void recover_by(std::function<bool(const error&)> recover) { recover_ = std::move(recover); }
  /// Continues in the present view of the communicator, inside the call that has failed. Collective
  /// among the ranks of the view. If all these ranks are in the same call, and their earlier calls
  /// have come equally far, begins the call again. Otherwise all batches are void, for example if
  /// one rank has completed a dispatch whose rows other ranks lack.
  /// Throws, on all ranks: `error` view_changed if the batches are void.
  void resume(deadline until) {
    const std::uint64_t own = fingerprint();
    const auto all =
        comm_.gather_in_view(names_.dispatch, std::as_bytes(std::span{&own, 1}), until);
    for (std::size_t i = 0; i < all.size(); i += sizeof own)
      if (std::memcmp(&all[i], &own, sizeof own) != 0) {
        // Calls that this one is inside of still refer to them. `begin` frees them.
        void_agreement_ = std::move(agreement_);
        void_channels_ = channels_.take_all();
        throw error{errc::view_changed,
                    concat(names_.dispatch,
                           ": ranks are gone, and the others were in different calls; expected the "
                           "batch to be dispatched again")};
      }
    if (agreement_ == nullptr) return;
    agreement_->resume();
    channels_.for_each([](Channel& channel) { channel.resume(); });
  }
  /// Calls `check()` and returns its result. If it throws an `error`, all ranks refuse the call,
  /// and this rank throws that error.
  template <class Check>
  decltype(auto) or_refuse(const std::optional<deadline>& until, Check&& check) {
    return agreement_->or_refuse(until, std::forward<Check>(check));
  }
  /// Returns the number of the call, which is the same on all ranks.
  [[nodiscard]] std::uint64_t number() const noexcept { return agreement_->number(); }
  /// Makes all ranks refuse the call because of `why`.
  void refuse(const error& why, const std::optional<deadline>& until) {
    agreement_->refuse(why, until);
  }
  /// States that this rank makes its next call elsewhere, where the keys of calls begin with
  /// `form`.
  /// Throws, on all ranks: `error` mismatch if other ranks make a call here.
  void call_elsewhere(std::uint64_t form, const std::optional<deadline>& until) {
    begin(until);
    agree({form}, false, until);
  }
  /// Requires that all ranks give `key` to this call.
  /// Throws: as `call_agreement::agree`.
  void agree(const call_key& key, bool has_channel, const std::optional<deadline>& until) {
    agreement_->agree(key, has_channel, until);
  }
  /// Returns the channel for `shape`, on which all ranks agree. If the shape is new, calls
  /// `make(agreement)`, which is collective.
  /// Throws: as `call_agreement::agree`.
  template <class Shape, class Make>
  [[nodiscard]] Channel& channel_for(const Shape& shape, const std::optional<deadline>& until,
                                     Make&& make) {
    Channel* const known = channels_.find(shape);
    agree(numbers_of(shape), known != nullptr, until);
    if (known != nullptr) return *known;
    return channels_.add(std::forward<Make>(make)(*agreement_));
  }
  /// Calls `carry_out(channel)` with the channel for calls of `shape` that has room for `room`
  /// tokens of this rank, and returns its result. `shape.max_tokens` is the bound that the call
  /// states, or 0. If the shape is new or the room is too small for some rank, all ranks make a new
  /// channel by `make(agreement, shape)`. A call that this rank has begun in a smaller channel is
  /// made again.
  template <class Shape, class Make, class CarryOut>
  decltype(auto) call_with_room(const Shape& shape, std::size_t room,
                                const std::optional<deadline>& until, Make&& make,
                                CarryOut&& carry_out) {
    Channel* const known = channels_.latest(shape);
    const std::size_t has = known == nullptr ? 0 : known->shape().max_tokens;
    const std::size_t needed =
        agreement_->agree(numbers_of(shape), known != nullptr && room <= has, until, room);
    const auto larger = [&](Shape wanted, std::size_t tokens) -> Channel& {
      wanted.max_tokens = channels_.latest(shape) == nullptr ? tokens : grown(tokens);
      return channels_.add(make(*agreement_, wanted));
    };
    Channel* channel = known != nullptr && needed <= has ? known : &larger(shape, needed);
    for (;;) {
      try {
        return carry_out(*channel);
      } catch (const error& refused) {
        // A rank whose own input the exchange refused makes the call again too, as the others do.
        const auto wanted = agreement_->take_growth();
        const bool is_refusal =
            refused.code() == errc::refused || refused.code() == errc::invalid_argument;
        if (!is_refusal || !wanted) throw;
        channel = &larger(shape, *wanted);
      }
    }
  }
  /// Returns the channel for a combine of a plan whose latest dispatch is `latest`, with hidden
  /// `shape.hidden`. If the memory of that dispatch has been used again, or its hidden differs,
  /// first makes another dispatch by `prepare(channel)` in a channel of `shape`. Contract of the
  /// other arguments as `call_with_room`.
  template <class Shape, class Make, class Prepare>
  [[nodiscard]] Channel& channel_to_combine(const pending_operation& latest, const Shape& shape,
                                            std::size_t room, const std::optional<deadline>& until,
                                            Make&& make, Prepare&& prepare) {
    // The owner of a plan's dispatch is always a channel of this buffer.
    auto* const known = static_cast<Channel*>(latest.owner());
    if (known != nullptr && known->is_received(latest.number()) &&
        known->shape().hidden == shape.hidden)
      return *known;
    Channel& prepared = call_with_room(shape, room, until, std::forward<Make>(make),
                                       [&](Channel& channel) -> Channel& {
                                         prepare(channel);
                                         return channel;
                                       });
    begin(until);
    return prepared;
  }
  [[nodiscard]] channel_set<Channel>& channels() noexcept { return channels_; }
  [[nodiscard]] const channel_set<Channel>& channels() const noexcept { return channels_; }

 private:
  /// Returns a hash of the calls and batches of this rank so far.
  [[nodiscard]] std::uint64_t fingerprint() const {
    peerbus::detail::fnv_hash hash;
    hash.add(agreement_ == nullptr ? 0 : 1 + agreement_->number());
    channels_.for_each([&](const Channel& channel) { channel.add_to(hash); });
    return hash.value();
  }
  /// Returns the room of a channel that replaces a smaller one. It is larger than needed, so that
  /// numbers of tokens that grow one by one need few channels.
  static constexpr std::size_t grown(std::size_t tokens) noexcept {
    constexpr std::size_t most_doubled = std::size_t{1} << 16U;
    return tokens <= most_doubled ? std::bit_ceil(tokens) : align_up(tokens, most_doubled);
  }

  communicator<Transport>& comm_;
  call_names names_;
  key_parts parts_;
  std::function<bool(const error&)> recover_;
  std::unique_ptr<call_agreement> void_agreement_;
  std::vector<std::unique_ptr<Channel>> void_channels_;
  std::unique_ptr<call_agreement> agreement_;  ///< outlives the channels, which refer to it
  channel_set<Channel> channels_;
};

}  // namespace peerbus::deep_ep::detail

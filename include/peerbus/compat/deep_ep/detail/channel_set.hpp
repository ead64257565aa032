// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/agreeing_channels.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::deep_ep::detail {

/// The channels of a buffer, one for each shape that its calls have used.
template <class Channel>
class channel_set final : public agreeing_channels {
 public:
  /// Returns the first channel that has room for calls of `shape`, or null if there is none.
  template <class Shape>
  [[nodiscard]] Channel* find(const Shape& shape) const noexcept {
    for (const auto& known : channels_)
      if (known->has_room_for(shape)) return known.get();
    return nullptr;
  }
  /// Returns the latest channel for calls of `shape`, with any room, or null if there is none.
  template <class Shape>
  [[nodiscard]] Channel* latest(Shape shape) const noexcept {
    for (auto known = channels_.rbegin(); known != channels_.rend(); ++known) {
      shape.max_tokens = (*known)->shape().max_tokens;
      if (shape == (*known)->shape()) return known->get();
    }
    return nullptr;
  }
  /// Calls `visit(channel)` for all channels.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& known : channels_) visit(*known);
  }
  /// Returns the channel for `shape`. If the shape is new, calls `make()`, which is collective.
  template <class Shape, class Make>
  [[nodiscard]] Channel& for_shape(const Shape& shape, Make&& make) {
    if (Channel* const known = find(shape)) return *known;
    return add(std::forward<Make>(make)());
  }
  /// Adds a channel, which all ranks have made together.
  template <class Made>
  Channel& add(Made&& made) {
    channels_.push_back(std::forward<Made>(made));
    channels_.back()->set_id(++made_);
    return *channels_.back();
  }

  /// Returns the channel of a handle.
  /// Throws: `error` invalid_argument if it is not in this set.
  [[nodiscard]] Channel& of(const argument& handle, const pending_operation& dispatched) const {
    const pending_operations* const owner = dispatched.owner();
    const auto found = std::find_if(channels_.begin(), channels_.end(),
                                    [&](const auto& known) { return known.get() == owner; });
    handle.require(found != channels_.end(),
                   "is of another buffer, or of memory that was given back; expected one of this "
                   "buffer's dispatch");
    return **found;
  }

  [[nodiscard]] call_key key_of(const started_operation& begun) const override {
    auto shape = with_id(begun.channel).shape();
    if constexpr (requires { shape.max_tokens; }) shape.max_tokens = begun.bound;
    return numbers_of(shape);
  }
  void refuse(const started_operation& begun, deadline until) override {
    with_id(begun.channel).refuse(begun, until);
  }
  void finish_refusal(const started_operation& begun, deadline until) override {
    with_id(begun.channel).finish_refusal(begun, until);
  }

  template <class Unwanted>
  void erase_if(Unwanted&& unwanted) {
    std::erase_if(channels_, [&](const auto& known) { return unwanted(*known); });
  }
  /// Removes all channels and returns them. The ids of later channels begin again at 1.
  [[nodiscard]] std::vector<std::unique_ptr<Channel>> take_all() noexcept {
    made_ = 0;
    return std::exchange(channels_, {});
  }
  [[nodiscard]] bool anything_pending() const noexcept {
    return std::any_of(channels_.begin(), channels_.end(),
                       [](const auto& known) { return known->anything_pending(); });
  }

 private:
  [[nodiscard]] Channel& with_id(std::uint64_t id) const {
    return **std::find_if(channels_.begin(), channels_.end(),
                          [&](const auto& known) { return known->id() == id; });
  }

  std::vector<std::unique_ptr<Channel>> channels_;
  std::uint64_t made_ = 0;  ///< number of channels made so far
};

}  // namespace peerbus::deep_ep::detail

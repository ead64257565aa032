// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>

namespace peerbus::deep_ep::detail {

/// The channels of a buffer, one for each shape that its calls have used.
template <class Channel>
class channel_set {
 public:
  /// Returns the channel for `shape`. If the shape is new, calls `make()`, which is collective.
  template <class Shape, class Make>
  [[nodiscard]] Channel& for_shape(const Shape& shape, Make&& make) {
    for (const auto& known : channels_)
      if (known->shape() == shape) return *known;
    channels_.push_back(std::forward<Make>(make)());
    return *channels_.back();
  }

  /// Returns the channel of a handle. Throws: `error` invalid_argument if it is not in this set.
  [[nodiscard]] Channel& of(const argument& handle, const pending_operation& dispatched) const {
    const pending_operations* const owner = dispatched.owner();
    const auto found = std::find_if(channels_.begin(), channels_.end(),
                                    [&](const auto& known) { return known.get() == owner; });
    handle.require(found != channels_.end(),
                   "is of another buffer, or of memory that was given back; expected one of this "
                   "buffer's dispatch");
    return **found;
  }

  template <class Unwanted>
  void erase_if(Unwanted&& unwanted) {
    std::erase_if(channels_, [&](const auto& known) { return unwanted(*known); });
  }
  [[nodiscard]] bool anything_pending() const noexcept {
    return std::any_of(channels_.begin(), channels_.end(),
                       [](const auto& known) { return known->anything_pending(); });
  }

 private:
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace peerbus::deep_ep::detail

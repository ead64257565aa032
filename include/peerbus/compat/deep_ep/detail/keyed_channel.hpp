// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>

namespace peerbus::deep_ep::detail {

/// A channel: calls that share one exchange because their keys are equal. This base knows neither
/// transport nor codec.
template <class Key>
class keyed_channel : public pending_operations {
 public:
  explicit keyed_channel(const Key& shape) : shape_{shape} {}

  [[nodiscard]] const Key& shape() const noexcept { return shape_; }
  /// Returns whether dispatch `number` is received, not combined and not replaced.
  [[nodiscard]] virtual bool is_received(std::uint64_t /*number*/) const noexcept { return false; }
  /// Returns whether a hook or event has not been called.
  [[nodiscard]] virtual bool anything_pending() const noexcept { return false; }

 private:
  Key shape_;
};

}  // namespace peerbus::deep_ep::detail

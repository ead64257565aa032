// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/compat/deep_ep/ascend.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_channel.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>

namespace peerbus::deep_ep::detail {

/// Calls of one shape in CANN's layout, whatever carries them. They have no halves.
class ascend_channel : public pending_operations {
 public:
  explicit ascend_channel(const low_latency_key& shape) : shape_{shape} {}

  [[nodiscard]] const low_latency_key& shape() const noexcept { return shape_; }
  virtual ascend_dispatch_result dispatch(const ascend_dispatch_args& args) = 0;
  virtual ascend_combine_result combine(const ascend_combine_args& args) = 0;

 private:
  low_latency_key shape_;
};

}  // namespace peerbus::deep_ep::detail

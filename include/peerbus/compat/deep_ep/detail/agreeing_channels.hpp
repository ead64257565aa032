// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::deep_ep::detail {

/// The interface by which `call_agreement` uses the channels of a buffer.
class agreeing_channels {
 public:
  agreeing_channels() = default;
  agreeing_channels(const agreeing_channels&) = delete;
  agreeing_channels& operator=(const agreeing_channels&) = delete;
  virtual ~agreeing_channels() = default;

  /// Returns the key of the call that began an operation. The channel of the operation must exist.
  [[nodiscard]] virtual call_key key_of(const started_operation& begun) const = 0;
  /// Refuses an operation that other ranks have begun and this rank has not. Does not wait for
  /// steps that ranks take after they have learned of the refusal; `finish_refusal` waits for them.
  virtual void refuse(const started_operation& begun, deadline until) = 0;
  /// Completes an operation that `refuse` has refused.
  virtual void finish_refusal(const started_operation& begun, deadline until) = 0;
};

}  // namespace peerbus::deep_ep::detail

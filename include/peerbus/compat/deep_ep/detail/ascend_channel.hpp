// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/compat/deep_ep/ascend.hpp>
#include <peerbus/compat/deep_ep/detail/keyed_channel.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_channel.hpp>

namespace peerbus::deep_ep::detail {

/// The interface of a channel of calls in CANN's layout, independent of transport and codec. These
/// calls are not split into halves.
class ascend_channel : public keyed_channel<low_latency_key> {
 public:
  using keyed_channel::keyed_channel;

  virtual ascend_dispatch_result dispatch(const ascend_dispatch_args& args) = 0;
  virtual ascend_combine_result combine(const ascend_combine_args& args) = 0;
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/window_part.hpp>

namespace peerbus::detail::rdma {

/// A window of the `verbs` transport, as its owner holds it. The network outlives it.
class window {
 public:
  window(std::shared_ptr<network> net, window_part& part) noexcept
      : net_{std::move(net)}, part_{&part} {}
  window(window&& other) noexcept
      : net_{std::move(other.net_)}, part_{std::exchange(other.part_, nullptr)} {}
  window(const window&) = delete;
  window& operator=(window&&) = delete;
  window& operator=(const window&) = delete;
  ~window() {
    // order: release; pairs with the acquire in window_maker: all use of it is over.
    if (part_ != nullptr) part_->released.store(true, std::memory_order_release);
  }

  /// Keys and addresses, for the data path, and for tools and tests that look inside.
  [[nodiscard]] window_part& part() const noexcept { return *part_; }

 private:
  std::shared_ptr<network> net_;
  window_part* part_;
};

}  // namespace peerbus::detail::rdma

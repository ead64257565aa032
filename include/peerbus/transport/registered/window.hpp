// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::registered {

/// A window as its owner holds it. Its network outlives it.
template <class Network>
class window {
 public:
  using part_type = typename Network::window_part;

  window(std::shared_ptr<Network> net, part_type& part) noexcept
      : net_{std::move(net)}, part_{&part} {}
  window(window&& other) noexcept
      : net_{std::move(other.net_)}, part_{std::exchange(other.part_, nullptr)} {}
  window(const window&) = delete;
  window& operator=(window&& other) noexcept {
    window taken{std::move(other)};
    std::swap(net_, taken.net_);
    std::swap(part_, taken.part_);
    return *this;  // The destructor of `taken` releases the former part.
  }
  window& operator=(const window&) = delete;
  ~window() {
    // order: release; pairs with the acquire in window_maker: all use of it is over.
    if (part_ != nullptr) part_->released.store(true, std::memory_order_release);
  }

  /// Returns the rank's end of the network that carries the traffic of this window.
  [[nodiscard]] Network& network() const noexcept { return *net_; }
  /// Returns the keys and addresses, for the data path, and for tools and tests that look inside.
  [[nodiscard]] part_type& part() const noexcept { return *part_; }

 private:
  std::shared_ptr<Network> net_;
  part_type* part_;
};

}  // namespace peerbus::detail::registered

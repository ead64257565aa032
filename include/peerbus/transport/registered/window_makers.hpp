// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/registered/window_maker.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus::detail::registered {

/// Has a maker of windows for each class of traffic. The network for bulk traffic is connected when
/// the first window needs it.
///
/// `Network` is as for `window_maker`, of latency traffic. It has `bulk()`, which is null before
/// `add_bulk(network)`.
template <class Network>
class window_makers {
 public:
  /// The maker for a class, and its network with the reference that keeps all classes.
  struct of_class {
    std::shared_ptr<Network> net;
    window_maker<Network>* maker;
  };

  explicit window_makers(std::shared_ptr<Network> latency)
      : net_{std::move(latency)}, latency_{*net_} {}

  /// Returns what makes a window of that shape. If it is the first for bulk traffic, adds the
  /// network that `connect_bulk()` makes; all ranks must then be about to make a window of that
  /// shape. Throws: as `window_maker::compare` and `connect_bulk`.
  template <class ConnectBulk>
  [[nodiscard]] of_class maker_for(bootstrap& boot, window_shape shape, deadline until,
                                   ConnectBulk&& connect_bulk) {
    if (shape.traffic == traffic_class::latency) return {net_, &latency_};
    if (net_->bulk() == nullptr) {
      window_maker<Network>::compare(boot, shape, until);
      net_->add_bulk(connect_bulk());
      bulk_.emplace(*net_->bulk());
    }
    return {{net_, net_->bulk()}, &*bulk_};
  }

 private:
  std::shared_ptr<Network> net_;
  window_maker<Network> latency_;
  std::optional<window_maker<Network>> bulk_;
};

}  // namespace peerbus::detail::registered

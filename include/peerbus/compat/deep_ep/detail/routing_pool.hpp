// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

namespace peerbus::deep_ep::detail {

/// A pool of routings: it reuses a routing that no handle or layout holds any more, so that calls
/// need not allocate.
template <class Routing>
class routing_pool {
 public:
  /// Returns an unused routing. Allocates one if all are in use.
  [[nodiscard]] std::shared_ptr<Routing> take() {
    for (const auto& routing : all_)
      if (routing.use_count() == 1) {
        routing->latest = {};
        return routing;
      }
    all_.push_back(std::make_shared<Routing>());
    return all_.back();
  }

 private:
  std::vector<std::shared_ptr<Routing>> all_;
};

}  // namespace peerbus::deep_ep::detail

// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/deadline.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace test {

/// `Transport`, each of whose windows is for bulk traffic if `Every` is 1, or each second one.
template <class Transport, std::size_t Every>
class with_bulk : public Transport {
 public:
  using Transport::Transport;
  [[nodiscard]] typename Transport::window make_window(peerbus::window_shape shape,
                                                       peerbus::deadline until) {
    if (++made_ % Every == 0) shape.traffic = peerbus::traffic_class::bulk;
    return Transport::make_window(shape, until);
  }

 private:
  std::size_t made_ = 0;
};

}  // namespace test

// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "../module.hpp"

namespace peerbus::c_library {

/// The functions of a module whose `Network` serves alone or for far ranks. `options_of(place)` are
/// its options without time limits, and `describe` says which device it has.
template <class Network, auto options_of, auto describe>
struct network_module {
  [[nodiscard]] static std::chrono::milliseconds time_left(const network_place& place) {
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(place.until.remaining()),
                    std::chrono::milliseconds{1});
  }
  [[nodiscard]] static Network make_network(bootstrap& boot, const network_place& place,
                                            std::string& device) {
    auto options = options_of(place);
    options.setup_timeout = time_left(place);
    options.stall_timeout = place.stall_timeout;
    Network made{boot, options};
    device = (made.*describe)();
    return made;
  }
  [[nodiscard]] static any_transport make(bootstrap& boot, const network_place& place,
                                          std::string& device) {
    return any_transport{make_network(boot, place, device)};
  }
  [[nodiscard]] static any_transport make_planes(bootstrap& boot, const network_place& place,
                                                 std::string& device) {
    return any_transport{planes<unified_bus, Network>{
        boot,
        {.setup_timeout = time_left(place)},
        [](bootstrap& group) { return unified_bus{group}; },
        [&](bootstrap& all) { return make_network(all, place, device); }}};
  }
};

}  // namespace peerbus::c_library
